"""What a kernel family states, its feature columns, and the formulas of time that most families share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Array, Flags, Texts
from pipeline.families.chip import SMALLEST_KERNEL_US, Chip
from pipeline.families.dims import Dims, Work
from pipeline.hardware.spec import GpuSpec
from pipeline.palette import OTHER

MIN_LOG_ARGUMENT = 1e-9


class Columns:
    """Feature columns, in the order in which a family adds them."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def add(self, *columns: npt.ArrayLike) -> None:
        """Append columns."""
        self.arrays += [np.asarray(values, dtype=float) for values in columns]

    def log(self, *quantities: Array) -> None:
        """Append log2 of positive quantities."""
        self.add(*(np.log2(np.maximum(values, MIN_LOG_ARGUMENT)) for values in quantities))

    def stack(self) -> Array:
        """Matrix of shape (rows, columns), with each column in contiguous memory; NaN become 0, infinities 60 or -60."""
        matrix = np.stack(self.arrays)
        np.nan_to_num(matrix, copy=False, nan=0.0, posinf=60.0, neginf=-60.0)
        return matrix.T


def alignment(values: Array, largest: int = 5) -> Array:
    """log2 of the largest power of two, up to 2^largest, that divides each value."""
    whole = np.maximum(values, 1.0).astype(np.int64)
    lowest_bit = (whole & -whole).astype(float)
    return np.asarray(np.minimum(np.log2(lowest_bit), largest))


def wave_columns(columns: Columns, blocks: Array, useful: Array, sms: int) -> None:
    """Add waves at one block per SM, whole waves, mean occupancy of these, and the useful share of the tiles' area."""
    waves = blocks / sms
    whole = np.ceil(waves)
    columns.log(waves, whole)
    columns.add(waves / np.maximum(whole, 1.0), useful)


class Law(Enum):
    """The formula that estimates a family's times without samples."""

    COMPUTE = "compute"  # the larger of FLOPs over throughput and bytes over bandwidth
    MOVEMENT = "movement"  # bytes over the device-memory bandwidth curve
    LINK = "link"  # bytes over PCIe
    EMBEDDING = "embedding"  # cold traffic over DRAM, hits over L2
    COLLECTIVE = "collective"  # bytes over the ranks' bus
    SORT = "sort"  # several passes over the keys


Product = tuple[Array, Array, Array, Array]
"""Rows, reduction, columns and groups of matrix products, each of shape (rows,)."""


@dataclass(frozen=True)
class Calls:
    """Calls of one family on a chip, as the formulas of times read them; `start` is the time of a negligible size, us."""

    family: Family
    d: Dims
    work: Work
    chip: Chip
    start: float

    @property
    def dtype(self) -> Texts:
        """Dtype of each call."""
        return self.d.dtype

    @property
    def moving_us(self) -> Array:
        """Time of the traffic."""
        return self.chip.moving_us(self.family.passes * self.work.bytes)

    @property
    def strided(self) -> Flags:
        """Calls with strided or broadcast operands."""
        return self.d.flag("strided") | self.d.op_in(("transpose",))


Formula = Callable[[Calls], Array]

Limit = Callable[[Calls, Array, Flags, bool], tuple[Array, Array | float]]


def movement_us(c: Calls) -> Array:
    """Time of memory traffic, or of arithmetic outside tensor cores where that takes longer."""
    fp64, fp32 = (c.chip.gpu.peak_gflop_per_s(dtype) for dtype in ("fp64", "fp32"))
    arithmetic = c.work.flops / np.where(c.d.text("dtype") == "fp64", fp64, fp32) / 1e3
    return c.start + np.maximum(c.moving_us, arithmetic)


TILE = 64.0
"""Edge of a thread block's output tile in the physical model of matrix products, in elements: the smallest common edge
in the public kernel names. It suits small products, where waves matter."""

MIN_REDUCTION = 256.0
"""Minimum reduction length of one block when the library splits a long reduction over blocks (split-K)."""


def product_us(
    c: Calls, flop_per_us: Array | None = None, shortest: float = MIN_REDUCTION
) -> Array:
    """Roofline time whose compute part counts whole waves of tiles, or FLOPs over peak without tile counts.

    A long reduction is split over idle SMs, but no part is shorter than `shortest`. `flop_per_us` is the throughput of each
    row, by default that of its dtype.
    """
    sms, peak = c.chip.sms, c.chip.flop_per_us(c.dtype) if flop_per_us is None else flop_per_us
    compute = c.work.flops / peak
    if c.family.product is not None:
        rows, depth, columns, groups = c.family.product(c.d)
        tiles = groups * np.ceil(rows / TILE) * np.ceil(columns / TILE)
        split = split_over(sms, tiles, depth, shortest)
        waves = np.ceil(tiles * split / sms)
        tiled = waves * 2.0 * TILE * TILE * depth / split / (peak / sms)
        compute = np.where(np.isfinite(tiled), np.maximum(tiled, compute), compute)
    return c.start + np.maximum(compute, c.chip.memory.moving_us(c.work.bytes))


def split_over(sms: int, blocks: Array, depth: Array, shortest: float) -> Array:
    """Parts of a reduction of length `depth`, none below `shortest`, which fill idle SMs; shape (rows,)."""
    parts = np.floor(sms / np.maximum(blocks, 1.0))
    return np.clip(parts, 1.0, np.maximum(depth / shortest, 1.0))


ELEMENTS_PER_CLOCK = {"gelu": 2.4, "scattered": 0.48, "atomic": 0.62}
"""Elements per SM and clock of kernels that move one element at a time, whatever its bytes (H100 traces, docs/kernels.md).
`scattered`: neighbouring threads read from different sectors. `atomic` adds to rows (measured on an H100)."""

STRIDED_START_US = 2.8
"""Start of strided and broadcasting element-wise kernels, which compute addresses (H100 traces)."""


def by_element_us(
    c: Calls,
    rate: Array | float = np.inf,
    elements: Array | None = None,
    strided_us: float = STRIDED_START_US - SMALLEST_KERNEL_US,
) -> Array:
    """Time of kernels that move data, which may be limited by single elements: `rate` per SM and clock.

    A thread moves one element at a time where operands are strided or broadcast, which takes `strided_us` more to start.
    """
    moved = movement_us(c)
    if c.chip.is_cpu:
        return moved
    elements = c.work.written / c.d.element_bytes() if elements is None else elements
    adds = c.d.op_in(("index_add", "scatter_add"))
    limits = {"atomic": adds, "gelu": c.d.op_in(("gelu",)), "scattered": c.d.flag("scattered")}
    for limit, rows in limits.items():
        rate = np.where(rows, np.minimum(rate, ELEMENTS_PER_CLOCK[limit]), rate)
    elements = np.nan_to_num(np.where(adds, c.d("B") * c.d("H"), elements))
    single = c.start + np.where(c.strided, strided_us, 0.0)
    single = single + elements / rate / c.chip.clocks_per_us()
    return np.maximum(moved, np.where(np.isfinite(rate), single, 0.0))


def plain_columns(columns: Columns, c: Calls) -> None:
    """Add dims, and for rows x width families the mapping of rows to warps, blocks and vectors."""
    d, sms = c.d, c.chip.sms
    columns.log(*(d(dim, 1.0) for dim in c.family.dims if dim in d.table.columns and dim not in IO))
    if not {"B", "H"} <= set(c.family.required):
        return
    rows, width = d("B", 1.0), d("H", 1.0)
    elements, one = rows * width, np.ones(d.rows)
    columns.log(elements)
    columns.add(alignment(width), alignment(elements))
    columns.log(np.exp2(np.ceil(np.log2(np.maximum(width, 1.0)))))
    columns.add(width <= MAX_WARP_ROW)
    columns.log(elements * d.element_bytes() / max(c.chip.gpu.l2_bytes, 1))
    for per_block in (1.0, 4.0, 8.0):
        wave_columns(columns, np.ceil(rows / per_block), one, sms)
    # layer norm and long softmax: one block per row, with 128 threads of four elements each
    steps = np.ceil(width / 512.0)
    columns.log(steps)
    columns.add(width / (512.0 * steps))
    for resident in (8.0, 16.0):
        waves = rows / (sms * resident)
        whole = np.ceil(waves)
        columns.add(waves / np.maximum(whole, 1.0))
        columns.log(whole * steps)
    wave_columns(columns, np.ceil(elements / 512.0), one, sms)


MAX_WARP_ROW = 1024
"""Longest row, in elements, that a warp of PyTorch's softmax holds in registers (`softmax_warp_forward`)."""

IO = ("inputs", "outputs")
"""Dims in which a call may state its bytes; without them, the bytes follow from its other dims."""


@dataclass(frozen=True)
class Family:
    """Kernels that one model predicts: all that the project states about them.

    Attributes:
        name: the family.
        required: a row is predicted from dims only if it has all of these; other rows use the table's own `flops` and
            `bytes_*`.
        law: the kind of its formula.
        work: FLOPs and traffic from dims.
        ops: known ops (tables of calls may have others).
        optional: further dims that it understands.
        passes: number of times that the traffic of `work` crosses memory (multi-pass algorithms).
        start: duration of its kernels at negligible size, us: dependent loads, the last step of a reduction, the prologue of a
            tile. First up to Ampere, from the smallest calls of the V100 and A100 DLRM traces, which have whole microseconds;
            then since Ada, from H100s (docs/kernels.md). None: as most kernels.
        time: times by physics, with the start.
        reference: times that its learned models correct, without what public traces show about short kernels; also those of
            a CPU. None: `time`. Saved models depend on them: a change needs a new `features.VERSION`.
        product: the matrix products that it computes.
        columns: adds its feature columns.
        spread: factors between a formula's time and the ends of its p10-p90 interval; None: that of the law.
        added: time of calls at the chip's rates, us: sizes beyond the samples' range add no more than large calls do for it.
        limit: bounds of a model's times: from calls, their times, whether sizes are inside the samples' range, and whether the
            model is of other GPUs, to a factor on the times and one on the ends of their intervals.
        outside_spread: independent error (log half-width of p10 to p90) of a call one octave or more outside the samples'
            range: 80 % of such rows of the second session of V100 and P4 differ by less from the median error of the rows
            inside the range. Families without such rows have a value between those.
        marks: flags in `attributes` of which other kernels run: models answer for those that their samples have.
        unlike: calls that run other kernels on a GPU than a campaign measures there.
        runs: what a benchmark runs on a tensor of B rows of width H, by op; its gradient too, unless `any_phase`. Families
            that need other tensors have a builder in `pipeline/collect/cases/`.
        colour: in all pictures, of the hues of Okabe and Ito (`palette.py`); related families share a hue and differ in lightness.
        any_phase: its kernels are the same in every phase.
        flat: its time depends only on the number of elements B x H: (458752, 14) takes as long as (16384, 392).
    """

    name: str
    required: tuple[str, ...]
    law: Law
    work: Callable[[Dims], Work]
    ops: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    passes: float = 1.0
    start: tuple[float, float] | None = None
    time: Formula = by_element_us
    reference: Formula | None = None
    product: Callable[[Dims], Product] | None = None
    columns: Callable[[Columns, Calls], None] = plain_columns
    spread: Callable[[Calls, float], Array | float] | None = None
    added: Formula | None = None
    limit: Limit | None = None
    outside_spread: float = 0.25
    marks: tuple[str, ...] = ()
    unlike: Callable[[Dims, GpuSpec], Flags] | None = None
    runs: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    colour: str = OTHER
    any_phase: bool = False
    flat: bool = False

    @property
    def dims(self) -> tuple[str, ...]:
        """All dims that the family understands."""
        return self.required + self.optional

    @property
    def phase(self) -> str:
        """The default pass of the family's kernels, where a table does not give one."""
        return "backward" if "backward" in self.name else "forward"

    def on(self, chip: Chip, d: Dims) -> Calls:
        """Calls of the family on a chip.

        Their work is the table's own `flops`, `bytes_read` and `bytes_written`, from real operand shapes, where it has them.
        """
        return Calls(self, d, stated_work(d, self.work(d)), chip, chip.started_us(self.start))

    def reference_us(self, c: Calls) -> Array:
        """Times that learned models correct."""
        return (self.reference or self.time)(c)

    def time_us(self, c: Calls) -> Array:
        """Times by physics; NaN where neither dims nor bytes are known."""
        return self.reference_us(c) if c.chip.is_cpu else self.time(c)


def stated_work(d: Dims, formula: Work) -> Work:
    """FLOPs and bytes that a table states; those of the formula where they are missing."""
    if "bytes_read" not in d.table.columns:
        return formula
    flops, read, written = (d(name) for name in ("flops", "bytes_read", "bytes_written"))
    known = (read + written) > 0
    return Work(
        np.where(flops > 0, flops, formula.flops),
        np.where(known, read, formula.read),
        np.where(known, written, formula.written),
    )
