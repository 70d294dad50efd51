"""The range that the samples of one family cover.

It decides which calls a fitted model predicts, and how far other calls are outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.work import Array, Dims, is_one_of

WINDOW_DIMS = ("kernel_size", "stride", "padding", "groups", "dilation")
"""Dims of a convolution's window. Other windows use other algorithms, so the model does not interpolate between
windows."""

WINDOW_DEFAULTS = {"stride": 1.0, "padding": 0.0, "groups": 1.0, "dilation": 1.0}

SIZE_ONLY_FAMILIES = ("elementwise",)
"""Families whose time depends only on the number of elements B x H: (458752, 14) takes as long as (16384, 392)."""

MIN_MOVED_BYTES = 8
"""Minimum traffic per fp32 element of a flat family, in bytes: 4 bytes are read and 4 bytes are written."""

PHASE_INDEPENDENT_FAMILIES = ("gemm", "bmm")
"""Families whose kernels are the same in every phase, because the gradient of a product is a product."""


def without_phase(name: str, calls: pd.DataFrame) -> pd.DataFrame:
    """Calls of family `name`; their phase becomes `forward` in families whose kernels do not depend on it."""
    return calls.assign(phase="forward") if name in PHASE_INDEPENDENT_FAMILIES else calls


@dataclass(frozen=True)
class Scope:
    """The ops, dtypes, phases and windows (of convolutions) in the samples, and the range of each dim."""

    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    phases: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    windows: tuple[tuple[float, ...], ...] = ()
    name: str = ""

    @classmethod
    def of(cls, name: str, samples: pd.DataFrame, dims: tuple[str, ...]) -> Scope:
        """The scope of a samples table of one family."""
        d = Dims(samples)
        present = [dim for dim in dims if dim in samples.columns and samples[dim].notna().any()]
        ranges = {dim: (float(np.nanmin(d(dim))), float(np.nanmax(d(dim)))) for dim in present}
        kinds = [tuple(sorted(map(str, samples[key].dropna().unique()))) for key in ("op", "dtype", "phase")]
        found_windows = (
            tuple(map(tuple, np.unique(windows(samples), axis=0).tolist())) if name.startswith("conv2d") else ()
        )
        return cls(kinds[0], kinds[1], kinds[2], ranges, found_windows, name)

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Whether each call has an op, dtype, phase and window of the samples, and all dims of the samples.

        A 3D convolution has none of their windows, although its dims are those of an image (`volume` in `attributes`).
        """
        d = Dims(calls)
        covered = d.op_in(self.ops) | (d.op_in(("mm", "addmm", "linear")) & ("linear" in self.ops))
        covered &= is_one_of(d.text("dtype", "fp32"), self.dtypes)
        if self.name not in PHASE_INDEPENDENT_FAMILIES:
            covered &= is_one_of(d.text("phase", "forward"), self.phases)
        for dim in self.ranges:
            if dim not in WINDOW_DEFAULTS and dim != "B":
                covered &= np.isfinite(d(dim))
        if self.windows:
            sampled_windows = {tuple(window) for window in self.windows}
            square = _square(d)
            covered &= square & ~d.flag("volume")
            covered &= np.array([tuple(row) in sampled_windows for row in windows(calls).tolist()], dtype=bool)
        return np.asarray(covered, dtype=bool)

    def clamp(self, calls: pd.DataFrame, cache_bytes: float = 0.0) -> tuple[pd.DataFrame, Array]:
        """Calls with every dim moved into its range, and the largest distance from a range, octaves, (rows,).

        Args:
            calls: calls of the family.
            cache_bytes: size of the GPU's last-level cache. Flat calls keep their number of elements if clipping would
                leave so few elements that they fit into this cache.
        """
        d, clamped, octaves = Dims(calls), {}, np.zeros(len(calls))
        folded = (
            self._folded(d, cache_bytes) if self.name in SIZE_ONLY_FAMILIES and {"B", "H"} <= set(self.ranges) else {}
        )
        for dim, (low, high) in self.ranges.items():
            values = folded[dim] if dim in folded else d(dim, WINDOW_DEFAULTS.get(dim, low))
            inside = np.clip(values, low, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                distance = np.abs(np.log2(np.maximum(values, 0.5) / np.maximum(inside, 0.5)))
            octaves = np.maximum(octaves, np.nan_to_num(distance))
            clamped[dim] = inside
        # other columns would change the features; the model was fitted on these dims only
        keep = [column for column in ("family", "op", "phase", "dtype", "attributes") if column in calls.columns]
        return calls[keep].assign(**clamped), octaves

    def _folded(self, d: Dims, cache_bytes: float) -> dict[str, Array]:
        """B and H of flat calls, reshaped where clipping both would make the call fit into the cache.

        A reshaped call has the same number of elements, with B and H inside their ranges as far as possible. Clipping
        alone would give the time of the cache, from which the time of device memory cannot be predicted.
        """
        dims = {name: d(name, self.ranges[name][0]) for name in ("B", "H")}
        left = np.prod([np.clip(values, *self.ranges[name]) for name, values in dims.items()], axis=0)
        cached = MIN_MOVED_BYTES * left <= cache_bytes
        for long, short in (("B", "H"), ("H", "B")):
            most, room = self.ranges[long][1], self.ranges[short][1] / np.maximum(dims[short], 1.0)
            with np.errstate(invalid="ignore"):
                parts = np.clip(np.ceil(dims[long] / max(most, 1.0)), 1.0, np.maximum(np.floor(room), 1.0))
            parts = np.where(cached, parts, 1.0)
            dims = {long: dims[long] / parts, short: dims[short] * parts}
        return dims

    def to_json(self) -> dict[str, Any]:
        """The fields as plain lists, for JSON."""
        return {"ops": self.ops, "dtypes": self.dtypes, "phases": self.phases, "ranges": self.ranges,
                "windows": self.windows, "name": self.name}  # fmt: skip

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Scope:
        """Rebuild from the values of `to_json`."""
        ranges = {str(key): (float(low), float(high)) for key, (low, high) in values["ranges"].items()}
        sampled_windows = tuple(tuple(float(v) for v in window) for window in values["windows"])
        ops, dtypes, phases = (tuple(map(str, values[key])) for key in ("ops", "dtypes", "phases"))
        return cls(ops, dtypes, phases, ranges, sampled_windows, str(values["name"]))


def windows(calls: pd.DataFrame) -> Array:
    """The window of each convolution, shape (rows, len(WINDOW))."""
    d = Dims(calls)
    return np.column_stack([d(dim, WINDOW_DEFAULTS.get(dim, np.nan)) for dim in WINDOW_DIMS])


def _square(d: Dims) -> npt.NDArray[np.bool_]:
    pairs = (("kernel_size", np.nan), ("input_size", np.nan), ("stride", 1.0), ("padding", 0.0))
    square = np.ones(d.rows, dtype=bool)
    for dim, default in pairs:
        square &= d(f"{dim}_w", d(dim, default)) == d(dim, default)
    return square
