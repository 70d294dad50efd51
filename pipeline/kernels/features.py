"""Derived features: inputs of kernel models, computed from dims and the GPU's spec.

Sizes are given as log2, so that products become sums. Matrix families add tile and wave counts for the tile shapes of
the libraries' kernels. Whole tiles run in whole waves: a product of 81 tiles on 80 SMs takes twice as long as one of 80
tiles. `VERSION` changes with the meaning of any column; saved models store the version that they need.

The range that the samples of one family cover (`Scope`) decides which calls a fitted model predicts, and how far other calls
are outside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.families import family
from pipeline.families.dims import Dims, is_one_of
from pipeline.families.family import IO, Columns, Law
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.physics import Physics

VERSION = 2
"""Version of the columns below."""

MIN_DTYPE_SHARE = 0.2
"""Samples that a dtype needs, as a share of those of the family's most frequent dtype: each runs kernels of its own, and few
samples do not fill the range of sizes. With 11 % of an H100's products in TF32, BERT's step was 23 % too long; with 11 % of its
element-wise samples in bf16, those of another H100 were 32 % too short."""


def raw_features(name: str, calls: pd.DataFrame, ops: tuple[str, ...] = ()) -> Array:
    """Inputs of the paper (Lin et al.): log2 of the dims, and a column for each op; shape (rows, columns)."""
    columns, d = Columns(), Dims(calls)
    present = (dim for dim in family(name).dims if dim in calls.columns)
    columns.log(*(d(dim, 1.0) for dim in present if calls[dim].notna().any()))
    _add_ops(columns, d, ops)
    return columns.stack()


def derived_features(
    name: str, calls: pd.DataFrame, gpu: GpuSpec, ops: tuple[str, ...] = ()
) -> Array:
    """Derived features of calls of one family.

    Args:
        name: the family.
        calls: its calls or samples.
        gpu: the device, for waves and peaks.
        ops: ops that get one column each, in the order of a fitted model.

    Returns:
        Matrix of shape (rows, columns). The columns depend only on the family, the dims present and `ops`.
    """
    columns, physics = Columns(), Physics.of(gpu)
    own = physics.calls(name, calls)
    work = own.work
    columns.log(work.bytes, physics.reference_us(name, calls))
    if own.family.law is Law.COMPUTE:
        columns.log(work.flops, (work.flops + 1.0) / np.maximum(work.bytes, 1.0))
    own.family.columns(columns, own)
    _add_ops(columns, own.d, ops)
    return columns.stack()


def _add_ops(columns: Columns, d: Dims, ops: tuple[str, ...]) -> None:
    """A column for each of several ops: which calls are of it."""
    if len(ops) > 1:
        columns.add(*(d.op == op for op in ops))


WINDOW_DIMS = ("kernel_size", "stride", "padding", "groups", "dilation")
"""Dims of a convolution's window. Other windows use other algorithms, so the model does not interpolate between
windows."""

WINDOW_DEFAULTS = {"stride": 1.0, "padding": 0.0, "groups": 1.0, "dilation": 1.0}

MIN_MOVED_BYTES = 8
"""Minimum traffic per fp32 element of a flat family, in bytes: 4 bytes are read and 4 bytes are written."""


def without_phase(name: str, calls: pd.DataFrame) -> pd.DataFrame:
    """Calls of family `name`; their phase becomes `forward` in families whose kernels do not depend on it."""
    return calls.assign(phase="forward") if family(name).any_phase else calls


@dataclass(frozen=True)
class Scope:
    """The ops, dtypes, phases, marks and windows (of convolutions) in the samples, and the range of each dim."""

    ops: tuple[str, ...]
    dtypes: tuple[str, ...]
    phases: tuple[str, ...]
    ranges: dict[str, tuple[float, float]]
    windows: tuple[tuple[float, ...], ...] = ()
    name: str = ""
    marks: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, samples: pd.DataFrame, dims: tuple[str, ...]) -> Scope:
        """The scope of a samples table of one family."""
        d = Dims(samples)
        square = (
            dim for dim in dims if not dim.endswith("_w")
        )  # what is not square is not covered
        present = [dim for dim in square if dim in samples.columns and samples[dim].notna().any()]
        ranges = {dim: (float(np.nanmin(d(dim))), float(np.nanmax(d(dim)))) for dim in present}
        ops, dtypes, phases = (
            samples[key].dropna().astype(str).value_counts() for key in ("op", "dtype", "phase")
        )
        common = dtypes[dtypes >= MIN_DTYPE_SHARE * dtypes.max()]
        kinds = [tuple(sorted(counts.index)) for counts in (ops, common, phases)]
        found_windows = (
            tuple(map(tuple, np.unique(windows(samples), axis=0).tolist()))
            if name.startswith("conv2d")
            else ()
        )
        marks = tuple(mark for mark in family(name).marks if d.flag(mark).any())
        return cls(kinds[0], kinds[1], kinds[2], ranges, found_windows, name, marks)

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Whether each call has an op, dtype, phase and window of the samples, and all dims of the samples.

        A 3D convolution has none of their windows, although its dims are those of an image (`volume` in `attributes`).
        """
        d = Dims(self.as_sampled(calls))
        covered = d.op_in(self.ops) | (d.op_in(("mm", "addmm", "linear")) & ("linear" in self.ops))
        covered &= is_one_of(d.dtype, self.dtypes)
        if not family(self.name).any_phase:
            covered &= is_one_of(d.text("phase", "forward"), self.phases)
        for mark in set(family(self.name).marks) - set(self.marks):
            covered &= ~d.flag(mark)
        for dim in self.ranges:
            if dim not in WINDOW_DEFAULTS and dim not in ("B", *IO):
                covered &= np.isfinite(d(dim))
        if self.windows:
            sampled_windows = {tuple(window) for window in self.windows}
            square = _square(d)
            covered &= square & ~d.flag("volume")
            covered &= np.array(
                [tuple(row) in sampled_windows for row in windows(calls).tolist()], dtype=bool
            )
        return np.asarray(covered, dtype=bool)

    def as_sampled(self, calls: pd.DataFrame) -> pd.DataFrame:
        """Calls, those in fp16 as in bf16 where the latter alone was sampled: the same kernels move as many bytes."""
        if "bf16" not in self.dtypes or "fp16" in self.dtypes:
            return calls
        dtype = Dims(calls).dtype
        return calls.assign(dtype=np.where(dtype == "fp16", "bf16", dtype))

    def clamp(self, calls: pd.DataFrame, cache_bytes: float = 0.0) -> tuple[pd.DataFrame, Array]:
        """Calls with every dim moved into its range, and the largest distance from a range, octaves, (rows,).

        Args:
            calls: calls of the family.
            cache_bytes: size of the GPU's last-level cache. Flat calls keep their number of elements if clipping would
                leave so few elements that they fit into this cache.
        """
        d, clamped, octaves = Dims(calls), {}, np.zeros(len(calls))
        folded = (
            self._folded(d, cache_bytes)
            if family(self.name).flat and {"B", "H"} <= set(self.ranges)
            else {}
        )
        for dim, (low, high) in self.ranges.items():
            missing = np.nan if dim in IO else WINDOW_DEFAULTS.get(dim, low)
            values = folded[dim] if dim in folded else d(dim, missing)
            inside = np.clip(values, low, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                distance = np.abs(np.log2(np.maximum(values, 0.5) / np.maximum(inside, 0.5)))
            octaves = np.maximum(octaves, np.nan_to_num(distance))
            clamped[dim] = inside
        if "B" in self.ranges and (octaves > 0).any():
            clamped |= self._with_bytes(d, clamped)
        # other columns would change the features; the model was fitted on these dims only
        kept = calls.filter(["family", "op", "phase", "dtype", "attributes"])
        return kept.assign(**clamped), octaves

    def _with_bytes(self, d: Dims, clamped: dict[str, Array]) -> dict[str, Array]:
        """B and the stated bytes of clipped calls: bytes follow the sizes, of so few rows that no sample moves less.

        A call of 640 images that is cut to 389 moves 389 / 640 of its bytes. One whose dims are all in their ranges, and whose
        bytes are not, is like a call of fewer rows.
        """
        stated = [dim for dim in IO if dim in self.ranges]
        if not stated:
            return {}
        sizes = d.table.drop(columns=list(IO), errors="ignore")
        whole = family(self.name).work(Dims(sizes))
        plain = {dim: values for dim, values in clamped.items() if dim not in IO}

        def moved(rows: Array) -> dict[str, Array]:
            part = family(self.name).work(Dims(sizes.assign(**plain | {"B": rows})))
            both = zip(IO, (part.read, part.written), (whole.read, whole.written), strict=True)
            with np.errstate(divide="ignore", invalid="ignore"):
                return {dim: d(dim) * np.where(of > 0, own / of, 1.0) for dim, own, of in both}

        over = [moved(plain["B"])[dim] / self.ranges[dim][1] for dim in stated]
        rows = plain["B"] / np.fmax(np.fmax.reduce(over), 1.0)
        rows = np.maximum(rows, self.ranges["B"][0])
        return {"B": rows, **{dim: np.clip(moved(rows)[dim], *self.ranges[dim]) for dim in stated}}

    def _folded(self, d: Dims, cache_bytes: float) -> dict[str, Array]:
        """B and H of flat calls, reshaped where clipping both would make the call fit into the cache.

        A reshaped call has the same number of elements, with B and H inside their ranges as far as possible. Clipping
        alone would give the time of the cache, from which the time of device memory cannot be predicted.
        """
        dims = {name: d(name, self.ranges[name][0]) for name in ("B", "H")}
        left = np.prod(
            [np.clip(values, *self.ranges[name]) for name, values in dims.items()], axis=0
        )
        cached = MIN_MOVED_BYTES * left <= cache_bytes
        for long, short in (("B", "H"), ("H", "B")):
            most, room = self.ranges[long][1], self.ranges[short][1] / np.maximum(dims[short], 1.0)
            with np.errstate(invalid="ignore"):
                parts = np.clip(
                    np.ceil(dims[long] / max(most, 1.0)), 1.0, np.maximum(np.floor(room), 1.0)
                )
            parts = np.where(cached, parts, 1.0)
            dims = {long: dims[long] / parts, short: dims[short] * parts}
        return dims


def windows(calls: pd.DataFrame) -> Array:
    """The window of each convolution, shape (rows, len(WINDOW))."""
    d = Dims(calls)
    return np.column_stack([d(dim, WINDOW_DEFAULTS.get(dim, np.nan)) for dim in WINDOW_DIMS])


def _square(d: Dims) -> Flags:
    pairs = (("kernel_size", np.nan), ("input_size", np.nan), ("stride", 1.0), ("padding", 0.0))
    square = np.ones(d.rows, dtype=bool)
    for dim, default in pairs:
        square &= d(f"{dim}_w", d(dim, default)) == d(dim, default)
    return square
