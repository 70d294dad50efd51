"""Small neural networks. They are trained with torch, stored as safetensors, and evaluated with numpy only.

A network is a stack of layers of equal width with SiLU or ReLU activations; `residual` adds each hidden layer's input to
its output. Inputs are standardised and clipped. The output is standardised log time, or one score per choice.

Times jump where another kernel, tile or wave begins, and smooth layers fit such jumps poorly. The first layer can
therefore take periodic embeddings of each input, with learned frequencies ("PLR" in Gorishniy et al., "On Embeddings
for Numerical Features in Tabular Deep Learning", NeurIPS 2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.kernels.training_loop import minimise, shuffled_batches, uniform
from pipeline.kernels.work import Array
from pipeline.model_files import Shapes, check_shapes, layer_shapes

if TYPE_CHECKING:
    import torch

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]

CLIP = 6.0
"""Standard deviations from the mean to which standardised inputs are clipped."""

ROWS_AT_ONCE = 1024
"""Rows predicted in one block, so that the activations of a block fit into the processor's cache. With 4096 rows the two
networks of matrix products take 1.3 times as long."""

ROWS_IN_DOUBLE = 16_384
"""Largest table that is evaluated in float64. In float32 the rounding of a row depends on the rows beside it, by 1e-8 of
the time, because BLAS treats blocks of other sizes differently. In float64 the difference is below 1e-12, so a step
predicted alone and in a grid has the same time. Larger tables, such as those of `steptime kernels predict`, keep float32,
which is twice as fast."""


@dataclass(frozen=True)
class Recipe:
    """How to train a network.

    Attributes:
        width: units of each hidden layer.
        layers: hidden layers.
        residual: whether hidden layers add their input to their output.
        steps: optimiser steps, however many samples there are.
        batch: samples per step.
        learning_rate: peak of a one-cycle schedule.
        weight_decay: of AdamW.
        loss: `l1` (aims at the median), `l2`, or `odds`: cross-entropy between scores and the odds of each choice.
        frequencies: frequencies of sines and cosines per input; 0 for no periodic embedding.
        spread: initial standard deviation of the frequencies, in periods per standard deviation of the input.
        units: units made of these sines and cosines, per input.
        relu: whether hidden layers have ReLU activations, which are computed faster, instead of SiLU.
    """

    width: int = 256
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

    def has_form(self, network: Network) -> bool:
        """Whether a network has the width, layers and frequencies of this recipe."""
        frequencies = 0 if network.periodic is None else network.periodic.frequency.shape[1]
        hidden = {weight.shape[1] for weight in network.weights[:-1]}
        return (hidden, len(network.weights) - 1, frequencies) == ({self.width}, self.layers, self.frequencies)


@dataclass(frozen=True)
class Periodic:
    """Units made of sines and cosines of each input.

    Attributes:
        frequency: periods per standard deviation of the input, shape (inputs, frequencies).
        weight: factors from waves to units, cosines first, then sines, shape (inputs, 2 x frequencies, units).
        bias: shape (inputs, units).
    """

    frequency: Floats
    weight: Floats
    bias: Floats

    def extend(self, x: Floats) -> Floats:
        """Append the units to inputs of shape (rows, inputs): shape (rows, inputs x (1 + units)).

        Internally, rows are the last axis, so that sines, cosines and products read contiguous memory.
        """
        columns = np.ascontiguousarray(x.T)
        (inputs, rows), count = columns.shape, self.frequency.shape[1]
        angle = columns[:, None, :] * (np.float32(2.0 * np.pi) * self.frequency)[:, :, None]
        waves = np.empty((inputs, 2 * count, rows), dtype=columns.dtype)
        np.cos(angle, out=waves[:, :count])
        np.sin(angle, out=waves[:, count:])
        units = self.weight.transpose(0, 2, 1) @ waves
        units += self.bias[:, :, None]
        np.maximum(units, np.float32(0.0), out=units)
        return np.concatenate([columns, units.reshape(-1, rows)]).T

    def in_double(self) -> Periodic:
        """The same embedding in float64."""
        return Periodic(*(values.astype(np.float64) for values in (self.frequency, self.weight, self.bias)))


@dataclass(frozen=True)
class _Layers:
    """The layers of a network in one precision: that of the weights."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    residual: bool
    periodic: Periodic | None
    relu: bool

    def outputs(self, x: Floats) -> Floats:
        """Outputs of the last layer, shape (rows, outputs), from standardised inputs of shape (rows, columns)."""
        if self.periodic is not None:
            x = self.periodic.extend(x)
        x = self._hidden(x, 0)
        for layer in range(1, len(self.weights) - 1):
            y = self._hidden(x, layer)
            if self.residual:
                y += x
            x = y
        return np.asarray(x @ self.weights[-1] + self.biases[-1])

    def _hidden(self, x: Floats, layer: int) -> Floats:
        y = x @ self.weights[layer]
        y += self.biases[layer]
        return np.maximum(y, 0, out=y) if self.relu else _silu(y)

    def in_double(self) -> _Layers:
        """The same layers in float64."""
        return _Layers(
            tuple(weight.astype(np.float64) for weight in self.weights),
            tuple(bias.astype(np.float64) for bias in self.biases),
            self.residual, None if self.periodic is None else self.periodic.in_double(), self.relu,
        )  # fmt: skip


@dataclass(frozen=True)
class Network:
    """A trained network: standardisation and weights, float32.

    `weights[i]` has shape (inputs, outputs). The last layer has one output, or one per choice. If there is `periodic`,
    the first layer takes the outputs of `periodic.extend`.
    """

    mean: Float32
    scale: Float32
    target_mean: float
    target_scale: float
    weights: tuple[Float32, ...]
    biases: tuple[Float32, ...]
    residual: bool
    periodic: Periodic | None = None
    relu: bool = False

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns); `table_rows` as in `scores`."""
        scores = self.scores(features, table_rows)[:, 0].astype(np.float64)
        return np.asarray(scores * self.target_scale + self.target_mean)

    def scores(self, features: Array, table_rows: int = 0) -> Floats:
        """Outputs of the last layer, shape (rows, outputs).

        Args:
            features: shape (rows, columns).
            table_rows: rows of the table that these rows are a block of; 0 if they are the table. Tables of at most
                `ROWS_IN_DOUBLE` rows are evaluated in float64, larger ones in float32.
        """
        layers = self._in_double if max(len(features), table_rows) <= ROWS_IN_DOUBLE else self._layers
        found = np.empty((len(features), self.weights[-1].shape[1]), dtype=layers.weights[-1].dtype)
        for start in range(0, len(features), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            found[rows] = layers.outputs(standardise(features[rows], self.mean, self.scale, found.dtype))
        return found

    @property
    def _layers(self) -> _Layers:
        return _Layers(self.weights, self.biases, self.residual, self.periodic, self.relu)

    @cached_property
    def _in_double(self) -> _Layers:
        """The layers in float64, converted once."""
        return self._layers.in_double()

    def tensors(self, prefix: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save. Weights are saved in half precision, which changes log times by about 1e-4."""
        found: dict[str, npt.NDArray[np.generic]] = {
            f"{prefix}mean": self.mean,
            f"{prefix}scale": self.scale,
            f"{prefix}target": np.array([self.target_mean, self.target_scale, float(self.residual)]),
        }
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            found[f"{prefix}weight{i}"] = weight.astype(np.float16)
            found[f"{prefix}bias{i}"] = bias
        if self.periodic is not None:
            found[f"{prefix}periodic_frequency"] = self.periodic.frequency
            found[f"{prefix}periodic_units"] = self.periodic.weight
            found[f"{prefix}periodic_offset"] = self.periodic.bias
        return found

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, npt.NDArray[np.generic]], prefix: str = "", relu: bool = False
    ) -> Network:
        """Rebuild the network from the arrays of `tensors`, which do not tell its activation.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        own = {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
        layers = max(2, sum(name.startswith("weight") for name in own))
        shapes: Shapes = {"mean": ("inputs",), "scale": ("inputs",), "target": (3,)}
        shapes |= layer_shapes([f"width{i}" for i in range(layers + 1)])
        if "periodic_frequency" in own:
            shapes |= {
                "periodic_frequency": ("inputs", "frequencies"), "periodic_units": ("inputs", "waves", "units"),
                "periodic_offset": ("inputs", "units"),
            }  # fmt: skip
        sizes = check_shapes("network", own, shapes)
        first, waves = sizes["inputs"] * (1 + sizes.get("units", 0)), 2 * sizes.get("frequencies", 0)
        if (sizes["width0"], sizes.get("waves", 0)) != (first, waves):
            raise PackError("the first layer of the network has a wrong number of inputs; rebuild the model")
        target_mean, target_scale, residual = own["target"].astype(np.float64)
        single = {name: own[name].astype(np.float32) for name in shapes}
        periodic = [single[name] for name in shapes if name.startswith("periodic")]
        return cls(
            single["mean"], single["scale"], float(target_mean), float(target_scale),
            tuple(single[f"weight{i}"] for i in range(layers)), tuple(single[f"bias{i}"] for i in range(layers)),
            bool(residual), Periodic(*periodic) if periodic else None, relu,
        )  # fmt: skip


def standardise(features: Floats, mean: Float32, scale: Float32, dtype: npt.DTypeLike = np.float32) -> Floats:
    """Features after centring, scaling and clipping, in the precision `dtype`."""
    x = np.subtract(features, mean, dtype=dtype, casting="same_kind")
    x /= scale
    return np.asarray(np.clip(x, -CLIP, CLIP, out=x))


def _silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        y = np.exp(-x)
    y += np.float32(1.0)
    return np.asarray(np.divide(x, y, out=y))


def train_network(features: Floats, target: Array, recipe: Recipe, seed: int, start: Network | None = None) -> Network:
    """Train on features (rows, columns) and log times (rows,); with the loss `odds`, on odds (rows, choices) instead.

    On one machine, the same seed gives the same network. With `start`, training goes on from that network, whose form
    replaces that of the recipe.
    """
    import torch

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
        embedding, parameters = _new_parameters(features.shape[1], target.shape[1] if chooses else 1, recipe, generator)
    else:
        embedding, parameters = _parameters_of(start)
        recipe = replace(recipe, residual=start.residual, relu=start.relu)
    batches = shuffled_batches(len(y), recipe.batch, generator)

    def loss() -> torch.Tensor:
        rows = next(batches)
        return _loss(_forward(_extend(x[rows], embedding), parameters, recipe), y[rows], recipe.loss)

    minimise(
        loss, [*embedding, *parameters], recipe.steps, recipe.learning_rate, weight_decay=recipe.weight_decay,
        warm_up=0.15, final_divisor=1e3, fused=True,
    )  # fmt: skip
    arrays = [parameter.detach().numpy().copy() for parameter in parameters]
    periodic = Periodic(*(parameter.detach().numpy().copy() for parameter in embedding)) if embedding else None
    return Network(
        mean, scale, target_mean, target_scale, tuple(arrays[::2]), tuple(arrays[1::2]), recipe.residual, periodic,
        recipe.relu,
    )  # fmt: skip


def _new_parameters(
    columns: int, outputs: int, recipe: Recipe, generator: torch.Generator
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Random initial values of the periodic embedding, and of the weights and biases of all layers."""
    embedding = _periodic_parameters(columns, recipe, generator) if recipe.frequencies else []
    first = columns * (1 + recipe.units) if recipe.frequencies else columns
    sizes = [first, *([recipe.width] * recipe.layers), outputs]
    parameters: list[torch.Tensor] = []
    for rows, units in zip(sizes[:-1], sizes[1:], strict=True):
        parameters += [uniform(shape, rows**-0.5, generator) for shape in ((rows, units), (units,))]
    parameters[-2].zero_()
    parameters[-1].zero_()
    return embedding, parameters


def _parameters_of(network: Network) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Copies of a network's periodic embedding, and of its weights and biases."""
    import torch

    periodic = network.periodic
    embedding = [] if periodic is None else [periodic.frequency, periodic.weight, periodic.bias]
    layers = [values for layer in zip(network.weights, network.biases, strict=True) for values in layer]
    copies = [[torch.from_numpy(np.array(values, dtype=np.float32)) for values in part] for part in (embedding, layers)]
    return copies[0], copies[1]


def _periodic_parameters(columns: int, recipe: Recipe, generator: torch.Generator) -> list[torch.Tensor]:
    """Initial values of the fields of `Periodic`."""
    import torch

    frequency = torch.randn(columns, recipe.frequencies, generator=generator) * recipe.spread
    bound = (2 * recipe.frequencies) ** -0.5
    weight = uniform((columns, 2 * recipe.frequencies, recipe.units), bound, generator)
    return [frequency, weight, torch.zeros(columns, recipe.units)]


def _extend(x: torch.Tensor, embedding: list[torch.Tensor]) -> torch.Tensor:
    """The same as `Periodic.extend`, in torch."""
    import torch

    if not embedding:
        return x
    frequency, weight, bias = embedding
    columns = x.T.contiguous()
    angle = (2.0 * torch.pi * frequency)[:, :, None] * columns[:, None, :]
    waves = torch.cat([torch.cos(angle), torch.sin(angle)], dim=1)
    units = torch.relu(torch.baddbmm(bias[:, :, None], weight.transpose(1, 2), waves))
    return torch.cat([columns, units.flatten(0, 1)]).T


def _loss(found: torch.Tensor, wanted: torch.Tensor, loss: str) -> torch.Tensor:
    import torch

    if loss == "odds":
        return torch.nn.functional.cross_entropy(found, wanted)
    error = found[:, 0] - wanted
    return error.abs().mean() if loss == "l1" else (error * error).mean()


def _forward(x: torch.Tensor, parameters: list[torch.Tensor], recipe: Recipe) -> torch.Tensor:
    import torch

    activation = torch.relu if recipe.relu else torch.nn.functional.silu
    x = activation(torch.addmm(parameters[1], x, parameters[0]))
    for i in range(2, len(parameters) - 2, 2):
        y = activation(torch.addmm(parameters[i + 1], x, parameters[i]))
        x = x + y if recipe.residual else y
    return torch.addmm(parameters[-1], x, parameters[-2])
