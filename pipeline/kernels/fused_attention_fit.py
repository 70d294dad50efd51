"""Fitting the constants of fused attention, and what held-out sizes say of them.

All measured rows of one GPU make one least-squares problem in log time, in which every kind of row (mask, head width,
decade of time) weighs the same. Constants that a GPU's rows do not show stay where the fit started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, fields

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.fused_attention import AttentionModel, Constants, Fitted, Shape, attention_us
from pipeline.kernels.intervals import Quantiles, fit_quantiles
from pipeline.kernels.physics import Physics
from pipeline.kernels.work import Array, Dims

TILES: Mapping[str, tuple[float, float]] = {
    "A100-SXM4-80GB": (128.0, 128.0), "L40S": (128.0, 64.0), "H100": (192.0, 128.0), "H200": (192.0, 128.0),
    "B200": (256.0, 256.0),
}  # fmt: skip
"""Queries per block for heads of up to 96, and wider: FlashAttention-2 halves them for wide heads where an SM has little
shared memory (8.6, 8.9), FlashAttention-3 takes 192 for narrow ones, Blackwell's kernels keep two tiles of 128 at once."""

START_FROM: Mapping[str, str] = {"A100-SXM4-80GB": "L40S"}
"""GPUs whose rows show one head width and causal masks only; the rest is that of another with the same kernels."""

NAMES = tuple(entry.name for entry in fields(Constants))

LOW = Constants(0.5, 0.01, 0.01, 0.01, 0.05, 0.02, 8.0, 0.1, 0.1, 0.1, 0.1, 0.8, 0.3, 0.05, 0.1, 0.01, 0.05, 0.2)
HIGH = Constants(15.0, 6.0, 6.0, 3.0, 1.5, 1.0, 128.0, 1.0, 1.0, 1.0, 1.0, 1.6, 1.0, 6.0, 2.0, 20.0, 8.0, 1.0)
"""Bounds of the constants, in their order."""

EDGES = (0.4, 0.8, 1.5)
"""Shares of L2 from which the search starts: its error has a minimum on either side of a jump."""

PULL = 0.03
"""Weight of the start (in log) against a hundred rows."""

TIMES_US = (0.0, 20.0, 50.0, 200.0, 1000.0, np.inf)
"""Ranges of time that weigh the same."""

FOLDS = 5


def fit_constants(samples: pd.DataFrame, gpu: GpuSpec, tiles: tuple[float, float], start: Constants) -> Constants:
    """The constants that explain a GPU's samples best.

    Args:
        samples: fused attention's B, M, N, K, dtype, attributes, `kernel_us`.
        gpu: where they were taken.
        tiles: queries per block for narrow and wide heads.
        start: where the search starts, and where constants stay that the rows do not show.
    """
    from scipy.optimize import least_squares

    shape, target = Shape.of(samples), np.log(samples["kernel_us"].to_numpy(dtype=np.float64))
    peak = Physics.of(gpu).peak_flop_per_us(Dims(samples))
    weight, pull = _weights(samples, shape), PULL * np.sqrt(len(samples) / 100.0)
    low, high = (np.log(astuple(ends)) for ends in (LOW, HIGH))

    def constants(p: Array) -> Constants:
        return Constants(*map(float, np.exp(p)))

    best: tuple[float, Array] | None = None
    for edge in EDGES:
        first = np.log(astuple(start))
        first[NAMES.index("l2_edge")] = np.log(edge)
        first = np.clip(first, low + 1e-6, high - 1e-6)

        def residual(p: Array, first: Array = first) -> Array:
            error = weight * (np.log(attention_us(constants(p), tiles, gpu, peak, shape)) - target)
            return np.concatenate([error, pull * (p - first)])

        found = least_squares(residual, first, bounds=(low, high), loss="soft_l1", f_scale=0.15, max_nfev=150)
        if best is None or found.cost < best[0]:
            best = (float(found.cost), found.x)
    assert best is not None
    return constants(best[1])


def _weights(samples: pd.DataFrame, shape: Shape) -> Array:
    """Square roots of weights under which every kind of row counts the same, mean square 1."""
    times = pd.cut(samples["kernel_us"], TIMES_US).cat.codes.to_numpy()
    kinds = pd.DataFrame({"causal": shape.causal, "width": shape.width, "time": times})
    size = kinds.groupby(list(kinds))["time"].transform("size")
    weight = np.sqrt(1.0 / size.to_numpy(dtype=np.float64))
    return np.asarray(weight / np.sqrt(np.mean(weight**2)))


def folds_of(samples: pd.DataFrame, seed: int = 0) -> npt.NDArray[np.int64]:
    """Fold of each row; all rows of one (heads, sequence) share theirs."""
    kinds = samples.groupby(["heads", "M"], sort=True).ngroup().to_numpy()
    order = np.random.default_rng(seed).permutation(kinds.max() + 1)
    return np.asarray(order[kinds] % FOLDS, dtype=np.int64)


def held_out(samples: pd.DataFrame, gpu: GpuSpec, tiles: tuple[float, float], start: Constants) -> Array:
    """Times predicted by fits that had not seen a row's heads and sequence length together, us, shape (rows,)."""
    fold, found = folds_of(samples), np.full(len(samples), np.nan)
    for number in range(FOLDS):
        seen = samples[fold != number].reset_index(drop=True)
        unseen = samples[fold == number].reset_index(drop=True)
        model = AttentionModel(gpu, gpu, _plain(fit_constants(seen, gpu, tiles, start), tiles))
        found[fold == number] = model.predict(unseen).kernel
    return found


def _plain(constants: Constants, tiles: tuple[float, float]) -> Fitted:
    return Fitted(constants, tiles, Quantiles.constant(1.0), (0.0, np.inf), open=True)


def fitted_on(samples: pd.DataFrame, gpu: GpuSpec, tiles: tuple[float, float], start: Constants) -> Fitted:
    """Constants from all rows, intervals from what folds of them say of unseen ones."""
    unseen = held_out(samples, gpu, tiles, start)
    residual = np.log(samples["kernel_us"].to_numpy(dtype=np.float64) / unseen)
    widths, causal = samples["K"].to_numpy(dtype=np.float64), Shape.of(samples).causal
    return Fitted(fit_constants(samples, gpu, tiles, start), tiles, fit_quantiles(np.log(unseen), residual),
                  (float(widths.min()), float(widths.max())), bool((~causal).any()))  # fmt: skip


def fit_gpus(samples: Mapping[str, pd.DataFrame]) -> dict[str, Fitted]:
    """What ships, by GPU."""
    found: dict[str, Fitted] = {}
    for gpu in sorted(samples, key=lambda name: name in START_FROM):
        start = found[START_FROM[gpu]].constants if gpu in START_FROM else Constants()
        found[gpu] = fitted_on(samples[gpu], load_gpu(gpu), TILES[gpu], start)
    return {gpu: found[gpu] for gpu in samples}
