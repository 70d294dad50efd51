"""Train a network of `networks.py` with torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.kernels.networks import Float32, Floats, Network, Periodic, Recipe, standardise
from pipeline.kernels.training_loop import descend, shuffled_batches, uniform
from pipeline.kernels.work import Array

if TYPE_CHECKING:
    import torch

    from pipeline.kernels.backpropagation import Parameters

WARM_UP, FINAL_DIVISOR = 0.15, 1e3
"""The one-cycle schedule of `training_loop.descend`."""


def train_network(features: Floats, target: Array, recipe: Recipe, seed: int, start: Network | None = None) -> Network:
    """Train on features (rows, columns) and log times (rows,); with the loss `odds`, on odds (rows, choices) instead.

    On one machine, the same seed gives the same network. With `start`, training goes on from that network, whose form
    replaces that of the recipe.

    Raises:
        SteptimeError: the loss or a parameter became NaN or infinite.
    """
    import torch

    from pipeline.kernels.backpropagation import Backpropagation, Parameters

    chooses = recipe.loss == "odds"
    if start is None:
        mean = features.mean(axis=0, dtype=np.float64).astype(np.float32)
        scale = (features.std(axis=0) + 1e-6).astype(np.float32)
        # if all targets are equal, the minimum scale avoids a division by 0, and the network predicts their mean
        target_mean, target_scale = (0.0, 1.0) if chooses else (float(target.mean()), max(float(target.std()), 1e-6))
    else:
        mean, scale, target_mean, target_scale = start.mean, start.scale, start.target_mean, start.target_scale
    x = torch.from_numpy(np.ascontiguousarray(standardise(features, mean, scale)))  # rows are drawn
    y = torch.from_numpy(((target - target_mean) / target_scale).astype(np.float32))
    generator = torch.Generator().manual_seed(seed)
    if start is None:
        embedding, layers = _new_parameters(features.shape[1], target.shape[1] if chooses else 1, recipe, generator)
    else:
        embedding, layers = _parameters_of(start)
        recipe = replace(recipe, residual=start.residual, relu=start.relu)
    parameters = Parameters.copy_of(embedding, layers)
    step, batches = Backpropagation(parameters, recipe, x, y), shuffled_batches(len(y), recipe.batch, generator)
    by_adamw, by_muon = _by_optimizer(parameters, recipe)
    for parts, gradients in zip((by_adamw, by_muon), _by_optimizer(step.gradient, recipe), strict=True):
        for part, gradient in zip(parts, gradients, strict=True):
            part.grad = gradient
    descend(
        lambda: step(next(batches)), by_adamw, recipe.steps, recipe.learning_rate, fused=True, matrices=by_muon,
        matrix_rate=recipe.muon_rate, weight_decay=recipe.weight_decay, warm_up=WARM_UP, final_divisor=FINAL_DIVISOR,
    )  # fmt: skip
    periodic = Periodic(*_arrays(parameters.embedding)) if parameters.embedding else None
    weights, biases = _arrays(parameters.weights), _arrays(parameters.biases)
    return Network(mean, scale, target_mean, target_scale, weights, biases, recipe.residual, periodic, recipe.relu)


def _by_optimizer(parameters: Parameters, recipe: Recipe) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that AdamW trains, and those that Muon trains."""
    if not recipe.muon_rate:
        return [parameters.flat], []
    *hidden, last = parameters.weights
    return [*parameters.embedding, *parameters.biases, last], hidden


def _arrays(tensors: Sequence[torch.Tensor]) -> tuple[Float32, ...]:
    return tuple(tensor.detach().numpy().copy() for tensor in tensors)


def _new_parameters(
    columns: int, outputs: int, recipe: Recipe, generator: torch.Generator
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random initial values of the periodic embedding, and of the weights and biases of all layers."""
    embedding = _new_embedding(columns, recipe, generator) if recipe.frequencies else []
    first = columns * (1 + recipe.units) if recipe.frequencies else columns
    sizes = [first, *([recipe.width] * recipe.layers), outputs]
    layers: list[torch.Tensor] = []
    for inputs, units in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [uniform(shape, inputs**-0.5, generator) for shape in ((inputs, units), (units,))]
    layers[-2].zero_()
    layers[-1].zero_()
    return embedding, layers


def _new_embedding(columns: int, recipe: Recipe, generator: torch.Generator) -> list[torch.Tensor]:
    """Initial values of the fields of `Periodic`."""
    import torch

    frequency = torch.randn(columns, recipe.frequencies, generator=generator) * recipe.spread
    bound = (2 * recipe.frequencies) ** -0.5
    weight = uniform((columns, 2 * recipe.frequencies, recipe.units), bound, generator)
    return [frequency, weight, torch.zeros(columns, recipe.units)]


def _parameters_of(network: Network) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A network's periodic embedding, and the weights and biases of all layers."""
    periodic = network.periodic
    embedding = [] if periodic is None else [periodic.frequency, periodic.weight, periodic.bias]
    layers = [values for layer in zip(network.weights, network.biases, strict=True) for values in layer]
    return _tensors(embedding), _tensors(layers)


def _tensors(arrays: Sequence[Floats]) -> list[torch.Tensor]:
    import torch

    return [torch.from_numpy(np.asarray(values, dtype=np.float32)) for values in arrays]
