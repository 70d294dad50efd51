"""Small neural networks. They are trained by `network_training`, stored as safetensors, and evaluated with numpy only.

A network is a stack of layers of equal width with SiLU or ReLU activations; `residual` adds each hidden layer's input to
its output. Inputs are standardised and clipped. The output is standardised log time.

Times jump where another kernel, tile or wave begins, and smooth layers fit such jumps poorly. The first layer can
therefore take periodic embeddings of each input, with learned frequencies ("PLR" in Gorishniy et al., "On Embeddings
for Numerical Features in Tabular Deep Learning", NeurIPS 2022).

Gradient-boosted trees on derived features (LightGBM), saved in LightGBM's text format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Array
from pipeline.errors import PackError
from pipeline.model_files import Shapes, check_shapes, layer_shapes

Float32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]

CLIP = 6.0
"""Standard deviations from the mean to which standardised inputs are clipped."""

ROWS_AT_ONCE = 1024
"""Rows predicted in one block, so that the activations of a block fit into the processor's cache."""

ROWS_IN_DOUBLE = 16_384
"""Largest table that is evaluated in float64, where the rows beside a row change its time by less than 1e-12 (BLAS): a step
predicted alone and in a grid has the same time. Larger tables, as of `steptime kernels predict`, keep the faster float32."""


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
        waves = np.empty(
            (inputs, 2 * count, rows),
            dtype=columns.dtype,
        )
        np.cos(angle, out=waves[:, :count])
        np.sin(angle, out=waves[:, count:])
        units = self.weight.transpose(0, 2, 1) @ waves
        units += self.bias[:, :, None]
        np.maximum(units, np.float32(0.0), out=units)
        return np.concatenate([columns, units.reshape(-1, rows)]).T


PERIODIC_SHAPES: Shapes = {
    "periodic_frequency": ("inputs", "frequencies"),
    "periodic_units": ("inputs", "waves", "units"),
    "periodic_offset": ("inputs", "units"),
}
"""Shapes of the arrays in which the fields of `Periodic` are saved, in their order."""


@dataclass(frozen=True)
class Network:
    """A trained network: standardisation and weights, float32.

    `weights[i]` has shape (inputs, outputs); the last layer has one output. If there is `periodic`, the first layer takes
    the outputs of `periodic.extend`.
    """

    mean: Float32
    scale: Float32
    target_mean: float
    target_scale: float
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]
    residual: bool
    periodic: Periodic | None = None
    relu: bool = False

    def predict(self, features: Floats, table_rows: int = 0) -> Array:
        """Log times of shape (rows,).

        Args:
            features: shape (rows, columns).
            table_rows: rows of the table that these rows are a block of; 0 if they are the table. Tables of at most
                `ROWS_IN_DOUBLE` rows are evaluated in float64, larger ones in float32.
        """
        network = self._in_double if max(len(features), table_rows) <= ROWS_IN_DOUBLE else self
        outputs = np.empty(
            len(features),
            dtype=network.weights[-1].dtype,
        )
        for start in range(0, len(features), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            outputs[rows] = network._outputs(
                standardise(features[rows], self.mean, self.scale, outputs.dtype)
            )
        return outputs.astype(float) * self.target_scale + self.target_mean

    @cached_property
    def _in_double(self) -> Network:
        """The network with layers in float64, converted once."""

        def double(arrays: Sequence[Floats]) -> tuple[Floats, ...]:
            return tuple(array.astype(float) for array in arrays)

        periodic = self.periodic and Periodic(*double([*vars(self.periodic).values()]))
        return replace(
            self, weights=double(self.weights), biases=double(self.biases), periodic=periodic
        )

    def _outputs(self, x: Floats) -> Floats:
        """Output of the last layer, shape (rows,), from standardised inputs of shape (rows, columns)."""
        if self.periodic is not None:
            x = self.periodic.extend(x)
        for layer, (weight, bias) in enumerate(
            zip(
                self.weights[:-1],
                self.biases[:-1],
                strict=True,
            )
        ):
            y = x @ weight
            y += bias
            activated = np.asarray(np.maximum(y, 0, out=y)) if self.relu else _silu(y)
            if self.residual and layer > 0:
                activated += x
            x = activated
        return np.asarray(x @ self.weights[-1] + self.biases[-1])[:, 0]

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save. Weights are saved in half precision, which changes log times by about 1e-4."""
        target = [self.target_mean, self.target_scale, float(self.residual)]
        arrays = {"mean": self.mean, "scale": self.scale, "target": np.array(target)}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            arrays |= {f"weight{i}": weight.astype(np.float16), f"bias{i}": bias}
        if self.periodic is not None:
            arrays |= dict(zip(PERIODIC_SHAPES, vars(self.periodic).values(), strict=True))
        return arrays

    @classmethod
    def from_tensors(
        cls, arrays: Mapping[str, npt.NDArray[np.generic]], relu: bool = False
    ) -> Network:
        """Rebuild the network from the arrays of `tensors`, which do not tell its activation.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        layers = max(2, sum(name.startswith("weight") for name in arrays))
        shapes: Shapes = {"mean": ("inputs",), "scale": ("inputs",), "target": (3,)}
        shapes |= layer_shapes([f"width{i}" for i in range(layers + 1)])
        if "periodic_frequency" in arrays:
            shapes |= PERIODIC_SHAPES
        sizes = check_shapes("network", arrays, shapes)
        first = sizes["inputs"] * (1 + sizes.get("units", 0))
        waves = 2 * sizes.get("frequencies", 0)
        if (sizes["width0"], sizes.get("waves", 0)) != (first, waves):
            raise PackError(
                "the first layer of the network has a wrong number of inputs; rebuild the model"
            )
        target_mean, target_scale, residual = arrays["target"].astype(float)
        single = {name: arrays[name].astype(np.float32) for name in shapes}
        periodic = [single[name] for name in PERIODIC_SHAPES if name in single]
        return cls(
            single["mean"],
            single["scale"],
            float(target_mean),
            float(target_scale),
            tuple(single[f"weight{i}"] for i in range(layers)),
            tuple(single[f"bias{i}"] for i in range(layers)),
            bool(residual),
            Periodic(*periodic) if periodic else None,
            relu,
        )


def standardise(
    features: Floats, mean: Float32, scale: Float32, dtype: npt.DTypeLike = np.float32
) -> Floats:
    """Features after centring, scaling and clipping, in the precision `dtype`."""
    x = np.subtract(features, mean, dtype=dtype, casting="same_kind")
    x /= scale
    return np.clip(x, -CLIP, CLIP, out=x)


def _silu(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        y = np.exp(-x)
    y += np.float32(1.0)
    return np.divide(x, y, out=y)


REGRESSION_PARAMETERS: dict[str, Any] = {
    "objective": "regression", "learning_rate": 0.15, "num_leaves": 31, "min_data_in_leaf": 10,
    "lambda_l2": 1.0, "linear_tree": True, "linear_lambda": 0.5, "bagging_fraction": 0.8,
    "bagging_freq": 1, "feature_fraction": 0.4, "verbose": -1, "num_threads": 1,
    "deterministic": True, "force_row_wise": True,
}  # fmt: skip
"""LightGBM's parameters for log times, chosen on development shapes of V100, A100 and T4. Linear leaves have smaller
errors than constant ones, in half the time; the squared error is better than L1 and Huber."""

REGRESSION_ROUNDS = 200
"""Boosting rounds for log times."""


@dataclass(frozen=True)
class Trees:
    """A boosted ensemble."""

    booster: Any

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,); float64, however many rows the table has."""
        return np.asarray(
            self.booster.predict(features, num_threads=1),
            dtype=float,
        )

    def text(self) -> str:
        """The trees in LightGBM's portable text format."""
        return str(self.booster.model_to_string())

    @classmethod
    def from_text(cls, text: str) -> Trees:
        """Rebuild from the string of `text`.

        Raises:
            PackError: the text is not a LightGBM model.
        """
        import lightgbm

        try:
            return cls(lightgbm.Booster(model_str=text))
        except lightgbm.basic.LightGBMError as error:
            raise PackError(
                f"not a LightGBM model ({str(error).splitlines()[0]}); rebuild the model"
            ) from None


def train_trees(features: Array, target: Array, seed: int, **parameters: Any) -> Trees:
    """Boost trees on features (rows, columns) and log times (rows,); `parameters` replace `REGRESSION_PARAMETERS`."""
    import lightgbm

    options = {**REGRESSION_PARAMETERS, "seed": seed, **parameters}
    rounds = options.pop("num_iterations", REGRESSION_ROUNDS)
    if len(target) < 10 * options["min_data_in_leaf"]:
        options |= {"min_data_in_leaf": 1, "num_leaves": 7, "linear_tree": False}
    data_options = {"verbose": -1, "min_data_in_bin": 1, "linear_tree": options["linear_tree"]}
    data = lightgbm.Dataset(features, np.asarray(target), params=data_options)
    return Trees(lightgbm.train(options, data, rounds))
