"""Train networks with torch: AdamW on a one-cycle schedule, a batch per step.

On one machine, the same seed gives the same weights. The caller seeds the generators of weights and batches, and the
loop draws no random numbers. It runs on one thread, so that the number of cores
does not change the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.arrays import Array
from pipeline.errors import SteptimeError
from pipeline.kernels.networks import Float32, Floats, Network, Periodic, standardise

if TYPE_CHECKING:
    import torch

WARM_UP, FINAL_DIVISOR = 0.15, 1e3
"""The one-cycle schedule of `train_network`: share of the steps in which the rate rises, and first over last rate."""


@dataclass(frozen=True)
class Recipe:
    """How to train a network.

    Attributes:
        width: units of each hidden layer.
        layers: hidden layers.
        residual: whether hidden layers add their input to their output.
        steps: optimiser steps, however many samples there are.
        batch: samples per step.
        learning_rate: peak of a one-cycle schedule of AdamW.
        weight_decay: of AdamW.
        loss: of log times: `l1` (aims at the median) or `l2`; `relative` is the relative error of the time itself.
        frequencies: frequencies of sines and cosines per input; 0 for no periodic embedding.
        spread: initial standard deviation of the frequencies, in periods per standard deviation of the input.
        units: units made of these sines and cosines, per input.
        relu: whether hidden layers have ReLU activations, which are computed faster, instead of SiLU.
    """

    width: int = 128
    layers: int = 4
    residual: bool = True
    steps: int = 3000
    batch: int = 256
    learning_rate: float = 3e-3
    weight_decay: float = 1e-2
    loss: str = "l1"
    frequencies: int = 0
    spread: float = 0.5
    units: int = 6
    relu: bool = False


def minimise(
    loss: Callable[[], torch.Tensor],
    parameters: Sequence[torch.Tensor],
    steps: int,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    undecayed: Sequence[torch.Tensor] = (),
    warm_up: float | None = 0.3,
    final_divisor: float = 1e4,
    fused: bool = False,
) -> None:
    """Minimise a loss by changing parameters in place, on one thread.

    Args:
        loss: draws a batch and returns its loss.
        parameters: the parameters to train.
        steps: optimizer steps.
        learning_rate: peak of the one-cycle schedule.
        weight_decay: weight decay of `parameters`.
        undecayed: further parameters, trained without weight decay.
        warm_up: share of the steps in which the rate rises; None for a constant rate.
        final_divisor: ratio of the first learning rate to the last one.
        fused: whether to use torch's fused AdamW, which is faster and changes the last bits of the weights.

    Raises:
        SteptimeError: the loss or a parameter became NaN or infinite.
    """
    import torch

    torch.set_num_threads(1)
    trained = [parameter.requires_grad_(True) for parameter in (*parameters, *undecayed)]
    decays = ((parameters, weight_decay), (undecayed, 0.0))
    groups = [{"params": list(group), "weight_decay": decay} for group, decay in decays if group]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=fused)
    schedule: torch.optim.lr_scheduler.LRScheduler
    if warm_up is None:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    else:
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            learning_rate,
            total_steps=steps,
            pct_start=warm_up,
            final_div_factor=final_divisor,
        )
    for step in range(steps):
        optimizer.zero_grad()
        value = loss()
        if not math.isfinite(value.item()):
            raise _diverged(f"the loss is {value.item()} at step {step + 1} of {steps}")
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trained):
        raise _diverged(f"parameters are NaN or infinite after step {steps}")


def _diverged(how: str) -> SteptimeError:
    advice = "look for zero, missing or huge values among the samples"
    return SteptimeError(f"training diverged: {how}; {advice}")


def shuffled_batches(rows: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the row numbers of batches, endlessly.

    Each pass has all rows in a new order, without the last incomplete batch.
    """
    import torch

    batch = min(batch, rows)
    while True:
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows - batch + 1, batch):
            yield order[start : start + batch]


def uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> torch.Tensor:
    """Initial weights: uniform between -`bound` and `bound`."""
    import torch

    return (torch.rand(*shape, generator=generator) * 2 - 1) * bound


def train_network(features: Floats, target: Array, seed: int, recipe: Recipe) -> Network:
    """Train on features (rows, columns) and log times (rows,); on one machine, the same seed gives the same network.

    Raises:
        SteptimeError: the loss or a parameter became NaN or infinite.
    """
    import torch

    mean = features.mean(axis=0, dtype=float).astype(np.float32)
    scale = (features.std(axis=0) + 1e-6).astype(np.float32)
    # if all targets are equal, the minimum scale avoids a division by 0, and the network predicts their mean
    target_mean, target_scale = float(target.mean()), max(float(target.std()), 1e-6)
    x = torch.from_numpy(np.ascontiguousarray(standardise(features, mean, scale)))  # rows are drawn
    y = torch.from_numpy(((target - target_mean) / target_scale).astype(np.float32))
    generator = torch.Generator().manual_seed(seed)
    embedding = _new_embedding(features.shape[1], recipe, generator) if recipe.frequencies else []
    layers = _new_layers(features.shape[1], recipe, generator)
    batches = shuffled_batches(len(y), recipe.batch, generator)

    def loss() -> torch.Tensor:
        rows = next(batches)
        error = _outputs(x[rows], embedding, layers, recipe) - y[rows]
        if recipe.loss == "relative":
            # the exponent is limited, so that a large initial error does not overflow
            log_error = target_scale * error
            relative = torch.expm1(log_error.clamp(max=3.0)).abs() + torch.relu(log_error - 3.0)
            return relative.mean()
        return error.abs().mean() if recipe.loss == "l1" else error.square().mean()

    minimise(
        loss,
        [*embedding, *layers],
        recipe.steps,
        recipe.learning_rate,
        weight_decay=recipe.weight_decay,
        warm_up=WARM_UP,
        final_divisor=FINAL_DIVISOR,
        fused=True,
    )
    periodic = Periodic(*_arrays(embedding)) if embedding else None
    weights, biases = _arrays(layers[::2]), _arrays(layers[1::2])
    return Network(
        mean,
        scale,
        target_mean,
        target_scale,
        weights,
        biases,
        recipe.residual,
        periodic,
        recipe.relu,
    )


def _outputs(
    x: torch.Tensor,
    embedding: Sequence[torch.Tensor],
    layers: Sequence[torch.Tensor],
    recipe: Recipe,
) -> torch.Tensor:
    """Outputs of a network, shape (rows,), as `networks.Network` computes them."""
    import torch

    if embedding:
        frequency, weight, bias = embedding
        angle = (2.0 * math.pi) * frequency[:, :, None] * x.T[:, None, :]
        waves = torch.cat([angle.cos(), angle.sin()], dim=1)
        units = torch.relu(
            torch.baddbmm(
                bias[:, :, None],
                weight.transpose(1, 2),
                waves,
            )
        )
        x = torch.cat([x, units.flatten(0, 1).T], dim=1)
    activation = torch.relu if recipe.relu else torch.nn.functional.silu
    *hidden, last_weight, last_bias = layers
    for number, (weight, bias) in enumerate(
        zip(
            hidden[::2],
            hidden[1::2],
            strict=True,
        )
    ):
        activated = activation(torch.addmm(bias, x, weight))
        x = activated + x if recipe.residual and number > 0 else activated
    return torch.addmm(last_bias, x, last_weight)[:, 0]


def _new_layers(columns: int, recipe: Recipe, generator: torch.Generator) -> list[torch.Tensor]:
    """Random initial weights and biases of all layers; those of the last one are zero."""
    inputs = columns * (1 + recipe.units) if recipe.frequencies else columns
    sizes = [inputs, *[recipe.width] * recipe.layers, 1]
    layers: list[torch.Tensor] = []
    for before, after in zip(
        sizes[:-1],
        sizes[1:],
        strict=True,
    ):
        layers += [uniform(shape, before**-0.5, generator) for shape in ((before, after), (after,))]
    layers[-2].zero_()
    layers[-1].zero_()
    return layers


def _new_embedding(columns: int, recipe: Recipe, generator: torch.Generator) -> list[torch.Tensor]:
    """Initial values of the fields of `Periodic`."""
    import torch

    frequency = torch.randn(columns, recipe.frequencies, generator=generator) * recipe.spread
    bound = (2 * recipe.frequencies) ** -0.5
    weight = uniform((columns, 2 * recipe.frequencies, recipe.units), bound, generator)
    return [frequency, weight, torch.zeros(columns, recipe.units)]


def _arrays(tensors: Sequence[torch.Tensor]) -> tuple[Float32, ...]:
    return tuple(tensor.detach().numpy().copy() for tensor in tensors)
