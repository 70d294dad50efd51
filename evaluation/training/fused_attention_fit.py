"""Fit the constants of fused attention, and evaluate them on held-out sizes.

All measured rows of one GPU make one least-squares problem in log time. Every kind of row (mask, head width, range of
time) has the same total weight. Constants that a GPU's rows do not determine keep their start values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints
from pipeline.families.dims import Dims
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Quantiles, fit_quantiles
from pipeline.kernels.fused_attention import (
    AttentionModel,
    Constants,
    FittedAttention,
    Shape,
    attention_us,
)
from pipeline.kernels.physics import Physics

TILES: Mapping[str, tuple[float, float]] = {
    "A100-SXM4-80GB": (128.0, 128.0), "L40S": (128.0, 64.0), "H100": (192.0, 128.0),
    "H200": (192.0, 128.0), "B200": (256.0, 256.0),
}  # fmt: skip
"""Queries per block for heads of width up to 96, and for wider heads.

FlashAttention-2 halves them for wide heads where an SM has little shared memory (compute capability 8.6, 8.9).
FlashAttention-3 uses 192 for narrow heads. Blackwell's kernels process two tiles of 128 at once."""

START_CONSTANTS_FROM: Mapping[str, str] = {"A100-SXM4-80GB": "L40S"}
"""GPUs whose rows have one head width and causal masks only, and the GPU with the same kernels whose constants start
the fit."""

CONSTANT_NAMES = tuple(entry.name for entry in fields(Constants))

LOWER_BOUNDS = Constants(
    0.5, 0.01, 0.01, 0.01, 0.05, 0.02, 8.0, 0.1, 0.1, 0.1, 0.1, 0.8, 0.3, 0.05, 0.1, 0.01, 0.05, 0.2
)
UPPER_BOUNDS = Constants(
    15.0, 6.0, 6.0, 3.0, 1.5, 1.0, 128.0, 1.0, 1.0, 1.0, 1.0, 1.6, 1.0, 6.0, 2.0, 20.0, 8.0, 1.0
)
"""Lower and upper bounds of the constants, in the order of `Constants`."""

L2_EDGE_STARTS = (0.4, 0.8, 1.5)
"""Start values of `l2_edge` (shares of the L2 size): times jump there, and the error has a minimum on either side."""

START_WEIGHT = 0.03
"""Weight of the distance (in log) from the start values, for a fit of 100 rows; it grows with the root of the rows."""

TIME_RANGE_EDGES_US = (0.0, 20.0, 50.0, 200.0, 1000.0, np.inf)
"""Edges of the ranges of time, us, that have the same total weight."""

FOLDS = 5


def fit_constants(
    samples: pd.DataFrame, gpu: GpuSpec, tiles: tuple[float, float], start: Constants
) -> Constants:
    """Fit the constants to a GPU's samples.

    Args:
        samples: columns B, M, N, K, dtype, attributes and `kernel_us` of fused attention.
        gpu: the GPU of the samples.
        tiles: queries per block for narrow and wide heads.
        start: start values of the search; constants that the rows do not determine keep them.
    """
    from scipy.optimize import least_squares

    shape, target = Shape.of(samples), np.log(samples["kernel_us"].to_numpy(dtype=np.float64))
    peak = Physics.of(gpu).flop_per_us(Dims(samples).dtype)
    weight, pull = _weights(samples, shape), START_WEIGHT * np.sqrt(len(samples) / 100.0)
    low, high = (np.log(astuple(ends)) for ends in (LOWER_BOUNDS, UPPER_BOUNDS))

    def constants(p: Array) -> Constants:
        return Constants(*map(float, np.exp(p)))

    best: tuple[float, Array] | None = None
    for edge in L2_EDGE_STARTS:
        first = np.log(astuple(start))
        first[CONSTANT_NAMES.index("l2_edge")] = np.log(edge)
        first = np.clip(first, low + 1e-6, high - 1e-6)

        def residual(p: Array, first: Array = first) -> Array:
            error = weight * (np.log(attention_us(constants(p), tiles, gpu, peak, shape)) - target)
            return np.concatenate([error, pull * (p - first)])

        found = least_squares(
            residual, first, bounds=(low, high), loss="soft_l1", f_scale=0.15, max_nfev=150
        )
        if best is None or found.cost < best[0]:
            best = (float(found.cost), found.x)
    assert best is not None
    return constants(best[1])


def _weights(samples: pd.DataFrame, shape: Shape) -> Array:
    """Square roots of the row weights; every kind of row has the same total weight, and the mean weight is 1."""
    times = pd.cut(samples["kernel_us"], TIME_RANGE_EDGES_US).cat.codes.to_numpy()
    kinds = pd.DataFrame({"causal": shape.causal, "width": shape.width, "time": times})
    size = kinds.groupby(list(kinds))["time"].transform("size")
    weight = np.sqrt(1.0 / size.to_numpy(dtype=np.float64))
    return np.asarray(weight / np.sqrt(np.mean(weight**2)))


def folds_of(samples: pd.DataFrame, seed: int = 0) -> Ints:
    """Fold of each row; all rows with the same heads and sequence length are in one fold."""
    kinds = samples.groupby(["heads", "M"], sort=True).ngroup().to_numpy()
    order = np.random.default_rng(seed).permutation(kinds.max() + 1)
    return np.asarray(order[kinds] % FOLDS, dtype=np.int64)


def held_out(
    samples: pd.DataFrame, gpu: GpuSpec, tiles: tuple[float, float], start: Constants
) -> Array:
    """Times by fits without any row of the same heads and sequence length; us, shape (rows,)."""
    fold, found = folds_of(samples), np.full(len(samples), np.nan)
    for number in range(FOLDS):
        seen = samples[fold != number].reset_index(drop=True)
        unseen = samples[fold == number].reset_index(drop=True)
        model = AttentionModel(
            gpu,
            gpu,
            _plain(fit_constants(seen, gpu, tiles, start), tiles),
        )
        found[fold == number] = model.predict(unseen).kernel
    return found


def _plain(constants: Constants, tiles: tuple[float, float]) -> FittedAttention:
    return FittedAttention(
        constants,
        tiles,
        Quantiles.constant(1.0),
        (0.0, np.inf),
        open=True,
    )


def fit_with_intervals(
    samples: pd.DataFrame, gpu: GpuSpec, tiles: tuple[float, float], start: Constants
) -> FittedAttention:
    """Fit constants to all rows, and intervals to the errors of held-out folds."""
    unseen = held_out(samples, gpu, tiles, start)
    residual = np.log(samples["kernel_us"].to_numpy(dtype=np.float64) / unseen)
    widths, causal = samples["K"].to_numpy(dtype=np.float64), Shape.of(samples).causal
    return FittedAttention(
        fit_constants(samples, gpu, tiles, start),
        tiles,
        fit_quantiles(np.log(unseen), residual),
        (
            float(widths.min()),
            float(widths.max()),
        ),
        bool((~causal).any()),
    )


def fit_gpus(samples: Mapping[str, pd.DataFrame]) -> dict[str, FittedAttention]:
    """Fitted constants and intervals of each GPU, as they are saved."""
    fitted: dict[str, FittedAttention] = {}
    for gpu in sorted(samples, key=lambda name: name in START_CONSTANTS_FROM):
        start = (
            fitted[START_CONSTANTS_FROM[gpu]].constants
            if gpu in START_CONSTANTS_FROM
            else Constants()
        )
        fitted[gpu] = fit_with_intervals(
            samples[gpu],
            load_gpu(gpu),
            TILES[gpu],
            start,
        )
    return {gpu: fitted[gpu] for gpu in samples}
