"""Derived features: inputs of kernel models, computed from dims and the GPU's spec.

Sizes are given as log2, so that products become sums. Matrix families add tile and wave counts for the tile shapes of
the libraries' kernels. Whole tiles run in whole waves: a product of 81 tiles on 80 SMs takes twice as long as one of 80
tiles. `VERSION` changes with the meaning of any column; saved models store the version that they need.

The range that the samples of one family cover (`Scope`) decides which calls a fitted model predicts, and how far other calls
are outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import Law, family, work_of
from pipeline.kernels.physics import Physics
from pipeline.kernels.work import Array, ConvShape, Dims, Work, implicit_product, is_one_of

VERSION = 2
"""Version of the columns below."""

MIN_DTYPE_SHARE = 0.2
"""Samples that a dtype needs, as a share of those of the family's most frequent dtype: each runs kernels of its own, and few
samples do not fill the range of sizes. With 11 % of an H100's products in TF32, BERT's step was 23 % too long; with 11 % of its
element-wise samples in bf16, those of another H100 were 32 % too short."""

PRODUCT_TILES = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (32, 32), (64, 32))
"""Tiles (along K, along M) in the names of the cuBLAS fp32 kernels that the public samples ran."""

CONV_TILES = ((128, 128), (128, 64), (128, 32), (64, 64))
"""Tiles (along positions, along channels) in the names of the cuDNN and cuBLAS kernels of convolutions."""

MAX_WARP_ROW = 1024
"""Longest row, in elements, that a warp of PyTorch's softmax holds in registers (`softmax_warp_forward`)."""

MIN_LOG_ARGUMENT = 1e-9


class Columns:
    """Named feature columns in the order of their appearance."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.arrays: list[Array] = []

    def add(self, name: str, values: Array) -> None:
        """Append one column."""
        self.names.append(name)
        self.arrays.append(np.asarray(values, dtype=np.float64))

    def log(self, name: str, values: Array) -> None:
        """Append log2 of a positive quantity."""
        self.add(f"log {name}", np.log2(np.maximum(values, MIN_LOG_ARGUMENT)))

    def stack(self) -> Array:
        """Matrix of shape (rows, columns), with each column in contiguous memory; NaN become 0, infinities 60 or -60."""
        matrix = np.stack(self.arrays)
        if not np.isfinite(matrix).all():
            np.nan_to_num(matrix, copy=False, nan=0.0, posinf=60.0, neginf=-60.0)
        return np.asarray(matrix.T)


def raw_features(name: str, calls: pd.DataFrame) -> tuple[Array, list[str]]:
    """Inputs of the paper (Lin et al.): only log2 of the dims, shape (rows, dims)."""
    columns, d = Columns(), Dims(calls)
    for dim in family(name).dims:
        if dim in calls.columns and calls[dim].notna().any():
            columns.log(dim, d(dim, 1.0))
    return columns.stack(), columns.names


def derived_features(
    name: str, calls: pd.DataFrame, gpu: GpuSpec, ops: tuple[str, ...] = ()
) -> tuple[Array, list[str]]:
    """Derived features of calls of one family.

    Args:
        name: the family.
        calls: its calls or samples.
        gpu: the device, for waves and peaks.
        ops: ops that get one column each, in the order of a fitted model.

    Returns:
        Matrix of shape (rows, columns), and the columns' names. The columns depend only on the family, the dims present
        and `ops`.
    """
    columns, d = Columns(), Dims(calls)
    work = work_of(name, calls)
    _work_columns(columns, work, name, calls, gpu)
    if name in ("gemm", "bmm"):
        _product_columns(columns, d, gpu)
    elif name.startswith("conv2d"):
        _conv_columns(columns, name, d, gpu)
    else:
        _plain_columns(columns, name, d, gpu)
    if len(ops) > 1:
        kinds = d.text("op")
        for op in ops:
            columns.add(f"op {op}", (kinds == op).astype(np.float64))
    return columns.stack(), columns.names


def _work_columns(
    columns: Columns, work: Work, name: str, calls: pd.DataFrame, gpu: GpuSpec
) -> None:
    columns.log("bytes", work.bytes)
    columns.log("physics", Physics.of(gpu).reference_us(name, calls))
    if family(name).law is Law.COMPUTE:
        columns.log("flops", work.flops)
        columns.log("intensity", (work.flops + 1.0) / np.maximum(work.bytes, 1.0))


def alignment(values: Array, largest: int = 5) -> Array:
    """log2 of the largest power of two, up to 2^largest, that divides each value."""
    whole = np.maximum(values, 1.0).astype(np.int64)
    lowest_bit = (whole & -whole).astype(np.float64)
    return np.asarray(np.minimum(np.log2(lowest_bit), largest))


def wave_columns(columns: Columns, label: str, blocks: Array, useful: Array, sms: int) -> None:
    """Add waves at one block per SM, mean occupancy of these waves, and the useful share of the tiles' area."""
    waves = blocks / max(sms, 1)
    columns.log(f"waves {label}", waves)
    columns.log(f"whole waves {label}", np.ceil(waves))
    columns.add(f"wave efficiency {label}", waves / np.maximum(np.ceil(waves), 1.0))
    columns.add(f"tile efficiency {label}", useful)


def _product_columns(columns: Columns, d: Dims, gpu: GpuSpec) -> None:
    b, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    for label, values in (("B", b), ("M", m), ("N", n), ("K", k)):
        columns.log(label, values)
    for tile_k, tile_m in PRODUCT_TILES:
        blocks = b * np.ceil(k / tile_k) * np.ceil(m / tile_m)
        useful = b * k * m / (blocks * tile_k * tile_m)
        wave_columns(columns, f"{tile_k}x{tile_m}", blocks, useful, gpu.sms)
    # two to four blocks with large tiles fit on an SM, so that a wave has two to four times as many
    for tile_k, tile_m in ((128, 128), (128, 64), (64, 64)):
        blocks = b * np.ceil(k / tile_k) * np.ceil(m / tile_m)
        for resident in (2.0, 4.0):
            waves = blocks / (max(gpu.sms, 1) * resident)
            columns.add(
                f"wave efficiency {tile_k}x{tile_m} {resident:.0f} resident", waves / np.ceil(waves)
            )
    for label, values in (("M", m), ("N", n), ("K", k)):
        columns.add(f"alignment {label}", alignment(values))
    columns.log("aspect", k / m)
    # a step of the reduction is 8 wide (16 in sliced kernels); the last step may be partly empty
    columns.log("steps", np.ceil(n / 8.0))
    columns.add("step efficiency", n / (8.0 * np.ceil(n / 8.0)))
    for tile_k, tile_m in ((128, 128), (64, 64)):
        blocks = b * np.ceil(k / tile_k) * np.ceil(m / tile_m)
        columns.log(
            f"time {tile_k}x{tile_m}", np.ceil(blocks / max(gpu.sms, 1)) * (np.ceil(n / 8.0) + 4.0)
        )


def _conv_columns(columns: Columns, name: str, d: Dims, gpu: GpuSpec) -> None:
    c = ConvShape.of(d)
    for label, values in (
        ("B", c.batch),
        ("in", c.in_channels),
        ("out", c.out_channels),
        ("size", c.height),
        ("window", c.window),
    ):
        columns.log(label, values)
    rows, depth, width, groups = implicit_product(name, d)
    columns.log("positions", rows)
    columns.log("depth", depth)
    for tile_m, tile_k in CONV_TILES:
        blocks = groups * np.ceil(rows / tile_m) * np.ceil(width / tile_k)
        wave_columns(
            columns,
            f"{tile_m}x{tile_k}",
            blocks,
            groups * rows * width / (blocks * tile_m * tile_k),
            gpu.sms,
        )
    # Winograd works on tiles of 4 x 4 (or 2 x 2) outputs: 36 (16) products of tiles x in x out channels
    for edge, products in ((4.0, 36.0), (2.0, 16.0)):
        tiles = c.batch * np.ceil(c.out_height / edge) * np.ceil(c.out_width / edge)
        columns.log(
            f"winograd {edge:.0f} flops", 2.0 * products * tiles * c.in_channels * c.out_channels
        )
        columns.log(f"winograd {edge:.0f} tiles", tiles)
        columns.add(
            f"edge {edge:.0f} efficiency", c.out_height / (edge * np.ceil(c.out_height / edge))
        )
    # products of the unfused variant; their grids have tiles along x, out channels along y, and 36 along z
    tiles = c.batch * np.ceil(c.out_height / 4.0) * np.ceil(c.out_width / 4.0)
    for tile_m, tile_k in ((128, 128), (64, 64), (32, 128)):
        blocks = 36.0 * np.ceil(tiles / tile_m) * np.ceil(c.out_channels / tile_k)
        useful = 36.0 * tiles * c.out_channels / (blocks * tile_m * tile_k)
        wave_columns(columns, f"unfused {tile_m}x{tile_k}", blocks, useful, gpu.sms)
    # the fused variant: `tileNHW` in its kernel name counts images and 2 x 2 outputs; a block has 32 out channels
    for images, high, wide in ((1.0, 4.0, 8.0), (4.0, 4.0, 2.0), (2.0, 4.0, 4.0)):
        tall, broad = np.ceil(c.out_height / (2.0 * high)), np.ceil(c.out_width / (2.0 * wide))
        blocks = np.ceil(c.batch / images) * np.ceil(c.out_channels / 32.0) * tall * broad
        useful = c.outputs / (blocks * images * high * wide * 4.0 * 32.0)
        label = f"fused {images:.0f}{high:.0f}{wide:.0f}"
        wave_columns(columns, label, blocks, useful, gpu.sms)
        columns.log(
            f"time {label}", np.ceil(blocks / max(gpu.sms, 1)) * np.ceil(c.in_channels / 8.0)
        )
    for label, values in (
        ("in", c.in_channels),
        ("out", c.out_channels),
        ("size", c.height),
        ("positions", rows),
    ):
        columns.add(f"alignment {label}", alignment(values))
    columns.log("fft size", np.exp2(np.ceil(np.log2(np.maximum(c.height + 2.0, 2.0)))))
    columns.log("inputs", c.inputs)
    columns.log("outputs", c.outputs)
    columns.log("weights", c.weights)


def _plain_columns(columns: Columns, name: str, d: Dims, gpu: GpuSpec) -> None:
    """Add dims of other families, and for rows x width families the mapping of rows to warps, blocks and vectors."""
    for dim in family(name).dims:
        if dim in d.table.columns and dim not in ("inputs", "outputs"):
            columns.log(dim, d(dim, 1.0))
    if {"B", "H"} <= set(family(name).required):
        rows, width, size = d("B", 1.0), d("H", 1.0), d.element_bytes()
        elements = rows * width
        columns.log("elements", elements)
        columns.add("alignment width", alignment(width))
        columns.add("alignment elements", alignment(elements))
        columns.log("padded width", np.exp2(np.ceil(np.log2(np.maximum(width, 1.0)))))
        columns.add("short rows", (width <= MAX_WARP_ROW).astype(np.float64))
        columns.log("l2 share", elements * size / max(gpu.l2_bytes, 1))
        for rows_per_block in (1.0, 4.0, 8.0):
            wave_columns(
                columns,
                f"{rows_per_block:.0f} rows",
                np.ceil(rows / rows_per_block),
                np.ones_like(rows),
                gpu.sms,
            )
        # layer norm and long softmax: one block per row, with 128 threads of four elements each
        per_step = 512.0
        steps = np.ceil(width / per_step)
        columns.log("row steps", steps)
        columns.add("row step efficiency", width / (per_step * steps))
        for resident in (8.0, 16.0):
            waves = rows / (max(gpu.sms, 1) * resident)
            columns.add(
                f"wave efficiency {resident:.0f} resident", waves / np.maximum(np.ceil(waves), 1.0)
            )
            columns.log(f"row time {resident:.0f} resident", np.ceil(waves) * steps)
        wave_columns(
            columns, "512 elements", np.ceil(elements / 512.0), np.ones_like(rows), gpu.sms
        )


WINDOW_DIMS = ("kernel_size", "stride", "padding", "groups", "dilation")
"""Dims of a convolution's window. Other windows use other algorithms, so the model does not interpolate between
windows."""

WINDOW_DEFAULTS = {"stride": 1.0, "padding": 0.0, "groups": 1.0, "dilation": 1.0}

STATED_TRAFFIC = ("inputs", "outputs")
"""Dims in which a call may state its bytes; without them, the bytes follow from its other dims."""

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
            if dim not in WINDOW_DEFAULTS and dim not in ("B", *STATED_TRAFFIC):
                covered &= np.isfinite(d(dim))
        if self.windows:
            sampled_windows = {tuple(window) for window in self.windows}
            square = _square(d)
            covered &= square & ~d.flag("volume")
            covered &= np.array(
                [tuple(row) in sampled_windows for row in windows(calls).tolist()], dtype=bool
            )
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
            self._folded(d, cache_bytes)
            if self.name in SIZE_ONLY_FAMILIES and {"B", "H"} <= set(self.ranges)
            else {}
        )
        for dim, (low, high) in self.ranges.items():
            missing = np.nan if dim in STATED_TRAFFIC else WINDOW_DEFAULTS.get(dim, low)
            values = folded[dim] if dim in folded else d(dim, missing)
            inside = np.clip(values, low, high)
            with np.errstate(divide="ignore", invalid="ignore"):
                distance = np.abs(np.log2(np.maximum(values, 0.5) / np.maximum(inside, 0.5)))
            octaves = np.maximum(octaves, np.nan_to_num(distance))
            clamped[dim] = inside
        # other columns would change the features; the model was fitted on these dims only
        keep = [
            column
            for column in ("family", "op", "phase", "dtype", "attributes")
            if column in calls.columns
        ]
        return calls[keep].assign(**clamped), octaves

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

    def to_json(self) -> dict[str, Any]:
        """The fields as plain lists, for JSON."""
        return {
            "ops": self.ops,
            "dtypes": self.dtypes,
            "phases": self.phases,
            "ranges": self.ranges,
            "windows": self.windows,
            "name": self.name,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Scope:
        """Rebuild from the values of `to_json`."""
        ranges = {
            str(key): (float(low), float(high)) for key, (low, high) in values["ranges"].items()
        }
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
