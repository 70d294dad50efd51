"""Small neural networks: trained with torch, stored as safetensors, evaluated with numpy alone.

One network is a stack of layers of equal width with SiLU activations; `residual` adds each hidden layer's input to its
output. Inputs are standardised and clipped; the output is standardised log time, or one score for each of several
choices. Beside each input, the first layer may take a few units made of its sines and cosines, whose frequencies are
learned (Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning", NeurIPS 2022, "PLR"): times that
jump where another kernel, tile or wave begins are hard for smooth layers alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.kernels.work import Array

if TYPE_CHECKING:
    import torch

Float32 = npt.NDArray[np.float32]

CLIP = 6.0
"""Standardised inputs beyond this many deviations are clipped."""

ROWS_AT_ONCE = 4096
"""Rows per block of a prediction: activations of one block stay in the processor's cache."""


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
        frequencies: sines and cosines of each input; 0 for none.
        spread: standard deviation of the frequencies at first, in periods per deviation of the input.
        units: units made of them, for each input.
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


@dataclass(frozen=True)
class Periodic:
    """Units made of sines and cosines of each input.

    Attributes:
        frequency: periods per deviation of the input, shape (inputs, frequencies).
        weight: from cosines, then sines, to units, shape (inputs, 2 x frequencies, units).
        bias: shape (inputs, units).
    """

    frequency: Float32
    weight: Float32
    bias: Float32

    def extend(self, x: Float32) -> Float32:
        """Inputs of shape (rows, inputs), with their units behind them: (rows, inputs x (1 + units)).

        Rows are the last axis while it works, so that sines, cosines and products run along memory.
        """
        columns = np.ascontiguousarray(x.T)
        (inputs, rows), count = columns.shape, self.frequency.shape[1]
        angle = columns[:, None, :] * (np.float32(2.0 * np.pi) * self.frequency)[:, :, None]
        waves = np.empty((inputs, 2 * count, rows), dtype=np.float32)
        np.cos(angle, out=waves[:, :count])
        np.sin(angle, out=waves[:, count:])
        units = self.weight.transpose(0, 2, 1) @ waves
        units += self.bias[:, :, None]
        np.maximum(units, np.float32(0.0), out=units)
        return np.concatenate([columns, units.reshape(-1, rows)]).T

    def fits(self, inputs: int) -> bool:
        """Whether the arrays fit each other and that many inputs."""
        if self.frequency.ndim != 2 or self.weight.ndim != 3:
            return False
        count, units = self.frequency.shape[1], self.weight.shape[2]
        expected = [(inputs, count), (inputs, 2 * count, units), (inputs, units)]
        return [self.frequency.shape, self.weight.shape, self.bias.shape] == expected

    def width(self) -> int:
        """Units for each input."""
        return int(self.weight.shape[2])


@dataclass(frozen=True)
class Network:
    """A trained network: standardisation and weights, float32.

    `weights[i]` has shape (inputs, outputs); the last one has one output, or one for each choice. The first layer's
    inputs are those of `periodic` where there is one.
    """

    mean: Float32
    scale: Float32
    target_mean: float
    target_scale: float
    weights: tuple[Float32, ...]
    biases: tuple[Float32, ...]
    residual: bool
    periodic: Periodic | None = None

    def predict(self, features: Array) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns)."""
        return np.asarray(self.scores(features)[:, 0].astype(np.float64) * self.target_scale + self.target_mean)

    def scores(self, features: Array) -> Float32:
        """What the last layer puts out, shape (rows, outputs)."""
        found = np.empty((len(features), self.weights[-1].shape[1]), dtype=np.float32)
        for start in range(0, len(features), ROWS_AT_ONCE):
            rows = features[start : start + ROWS_AT_ONCE]
            found[start : start + ROWS_AT_ONCE] = self._block(rows)
        return found

    def _block(self, features: Array) -> Float32:
        x = standardise(features, self.mean, self.scale)
        if self.periodic is not None:
            x = self.periodic.extend(x)
        x = _silu(x @ self.weights[0] + self.biases[0])
        for weight, bias in zip(self.weights[1:-1], self.biases[1:-1], strict=True):
            y = _silu(x @ weight + bias)
            x = x + y if self.residual else y
        return np.asarray(x @ self.weights[-1] + self.biases[-1])

    def tensors(self, prefix: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save, half precision for hidden weights (an error of about 1e-4 in log time)."""
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
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[np.generic]], prefix: str = "") -> Network:
        """Back from `tensors`.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        try:
            count = sum(name.startswith(f"{prefix}weight") for name in tensors)
            weights = tuple(tensors[f"{prefix}weight{i}"].astype(np.float32) for i in range(count))
            biases = tuple(tensors[f"{prefix}bias{i}"].astype(np.float32) for i in range(count))
            mean, scale = (tensors[f"{prefix}{key}"].astype(np.float32) for key in ("mean", "scale"))
            target = tensors[f"{prefix}target"].astype(np.float64)
            periodic = None
            if f"{prefix}periodic_frequency" in tensors:
                keys = ("frequency", "units", "offset")
                periodic = Periodic(*(tensors[f"{prefix}periodic_{key}"].astype(np.float32) for key in keys))
        except KeyError as error:
            raise PackError(f"network misses array {error.args[0]!r}; rebuild it") from None
        if periodic is not None and not periodic.fits(len(mean)):
            raise PackError("network arrays do not fit each other; rebuild it")
        first = len(mean) * (1 if periodic is None else 1 + periodic.width())
        inputs = [first, *(weight.shape[1] for weight in weights[:-1])]
        if count < 2 or any(w.shape[0] != size for w, size in zip(weights, inputs, strict=True)) or len(target) != 3:
            raise PackError("network arrays do not fit each other; rebuild it")
        return cls(mean, scale, float(target[0]), float(target[1]), weights, biases, bool(target[2]), periodic)


def standardise(features: Array, mean: Float32, scale: Float32) -> Float32:
    """Centred, scaled, clipped, float32."""
    x = (features - mean) / scale
    return np.asarray(np.clip(x, -CLIP, CLIP), dtype=np.float32)


def _silu(x: Float32) -> Float32:
    with np.errstate(over="ignore"):
        y = np.exp(-x)
    y += np.float32(1.0)
    return np.divide(x, y, out=y)


def train_network(features: Array, target: Array, recipe: Recipe, seed: int) -> Network:
    """Train on features (rows, columns) and log times (rows,), or odds of shape (rows, choices) where the recipe says so.

    The same seed gives the same network on one machine.
    """
    import torch

    torch.set_num_threads(1)
    mean = features.mean(axis=0).astype(np.float32)
    scale = (features.std(axis=0) + 1e-6).astype(np.float32)
    # an all-equal target leaves nothing to learn: the network stays at its mean
    chooses = recipe.loss == "odds"
    target_mean, target_scale = (0.0, 1.0) if chooses else (float(target.mean()), max(float(target.std()), 1e-6))
    x = torch.from_numpy(standardise(features, mean, scale))
    y = torch.from_numpy(((target - target_mean) / target_scale).astype(np.float32))
    generator = torch.Generator().manual_seed(seed)
    columns = features.shape[1]
    embedding = _periodic_parameters(columns, recipe, generator) if recipe.frequencies else []
    first = columns * (1 + recipe.units) if recipe.frequencies else columns
    sizes = [first, *([recipe.width] * recipe.layers), target.shape[1] if chooses else 1]
    parameters: list[torch.Tensor] = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        bound = inputs**-0.5
        parameters.append((torch.rand(inputs, outputs, generator=generator) * 2 - 1) * bound)
        parameters.append((torch.rand(outputs, generator=generator) * 2 - 1) * bound)
    parameters[-2].zero_()
    parameters[-1].zero_()
    trained = [*embedding, *parameters]
    for parameter in trained:
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, recipe.learning_rate, total_steps=recipe.steps, pct_start=0.15, final_div_factor=1e3
    )
    batch = min(recipe.batch, len(y))
    order, at = torch.randperm(len(y), generator=generator), 0
    for _ in range(recipe.steps):
        if at + batch > len(y):
            order, at = torch.randperm(len(y), generator=generator), 0
        rows = order[at : at + batch]
        at += batch
        value = _loss(_forward(_extend(x[rows], embedding), parameters, recipe.residual), y[rows], recipe.loss)
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    arrays = [parameter.detach().numpy().copy() for parameter in parameters]
    weights, biases = tuple(arrays[::2]), tuple(arrays[1::2])
    periodic = Periodic(*(parameter.detach().numpy().copy() for parameter in embedding)) if embedding else None
    return Network(mean, scale, target_mean, target_scale, weights, biases, recipe.residual, periodic)


def _periodic_parameters(columns: int, recipe: Recipe, generator: torch.Generator) -> list[torch.Tensor]:
    """What `Periodic` holds, untrained."""
    import torch

    frequency = torch.randn(columns, recipe.frequencies, generator=generator) * recipe.spread
    bound = (2 * recipe.frequencies) ** -0.5
    weight = (torch.rand(columns, 2 * recipe.frequencies, recipe.units, generator=generator) * 2 - 1) * bound
    return [frequency, weight, torch.zeros(columns, recipe.units)]


def _extend(x: torch.Tensor, embedding: list[torch.Tensor]) -> torch.Tensor:
    """`Periodic.extend`, in torch."""
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


def _forward(x: torch.Tensor, parameters: list[torch.Tensor], residual: bool) -> torch.Tensor:
    import torch

    silu = torch.nn.functional.silu
    x = silu(torch.addmm(parameters[1], x, parameters[0]))
    for i in range(2, len(parameters) - 2, 2):
        y = silu(torch.addmm(parameters[i + 1], x, parameters[i]))
        x = x + y if residual else y
    return torch.addmm(parameters[-1], x, parameters[-2])
