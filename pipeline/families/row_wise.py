"""Kernels over B rows of width H: element-wise operations, softmax, layer norm, dropout and reductions."""

from __future__ import annotations

from operator import methodcaller

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.families.chip import Chip
from pipeline.families.dims import Dims, Work
from pipeline.families.family import (
    IO,
    MAX_WARP_ROW,
    Calls,
    Family,
    Law,
    by_element_us,
    movement_us,
)
from pipeline.families.lookup_times import ROW_LATENCY_US
from pipeline.families.tensor_cores import HALF_DTYPES

ELEMENTWISE_OPS = (
    "add", "addu", "mul", "mulu", "div", "divu", "pow", "powu", "relu", "gelu", "tanh", "sigmoid",
    "sub", "sqrt", "exp", "log", "neg", "fill", "where", "cast", "addcmul", "addcdiv", "lerp",
    "maximum", "minimum", "silu", "other",
)  # fmt: skip

TWO_OPERAND_OPS = ("add", "mul", "div", "pow", "sub", "maximum", "minimum")
"""Element-wise ops that read two tensors of the output's size. `addu`, `mulu` and similar ops take a scalar instead."""

STRIDED_PER_CLOCK, LOADS_PER_US = 1.37, 970.0
"""Strided or broadcast operands: elements of 2-byte types per SM and clock (an H100 then reaches half of its bandwidth), and
larger ones that an SM with 2,048 threads loads in a microsecond for each operand (both measured on an H100). A thread has two
such loads in flight, of smaller types four."""

DROPOUT_PER_CLOCK = 1.8
"""Random numbers per SM and clock (measured on an H100)."""

NARROW_SOFTMAX_PER_CLOCK, WIDE_SOFTMAX_PER_CLOCK, SOFTMAX_ROW_CLOCKS = 2.0, 2.0, 5_000.0
"""Elements per SM and clock of rows of softmax in half precision that lie in a warp, and of wide ones that are not aligned. The
last figure is the least cycles of a wide row (3,137 columns in an H100 trace). The development half of our H100's samples reaches
2.03 in a warp, in L2 as in DRAM."""

RECENT_SOFTMAX_ROW_CLOCKS = 2_300.0
"""The least cycles of such a row in PyTorch 2.11 (2,603 columns take 2,700, measured on an H100)."""

NORM_ROW_CLOCKS = (330.0, 1_400.0)
"""Cycles of an SM for a row of layer norm beside its bytes, and for one in two kernels, where the width is no multiple of four
(measured on an H100)."""

WIDE_NORM_ROW, WIDE_NORM_PER_CLOCK = 4096.0, (2.0, 0.95, 0.45)
"""Width from which the one block of a row of layer norm is slower than its bytes, and its elements per SM and clock: forward,
forward where the width is no multiple of four, gradient. Measured on an H100; without it, times are half of that."""

ONE_BLOCK_ELEMENTS = 8192.0
"""Elements from which several blocks reduce a tensor to a single value: 16 for each thread of a block (PyTorch's
`Reduce.cuh`)."""

WHOLE_REDUCTION_CLOCKS = ((8_000.0, 12_500.0), (4_200.0, 9_000.0))
"""Clock cycles of the start of such a reduction in one block, and in several, which wait for each other: V100 and A100 traces,
and sums and means since Ada, as measured on an H100."""

ROW_SUM_START = (7.0, 5.4)
"""Start of a reduction over rows, whose blocks wait for each other (since Ada from public traces)."""


def by_width(d: Dims, reads: Array | float, writes: Array | float, flops: float) -> Work:
    """`reads` and `writes` bytes per element of B x H, `flops` for each. Dims `inputs` and `outputs` (bytes) take precedence."""
    elements = d("B", 1.0) * d("H")
    return Work(flops * elements, d("inputs", elements * reads), d("outputs", elements * writes))


def elementwise_work(d: Dims) -> Work:
    """Read one or two operands, write one. A backward reads the gradient and the tensor that the forward saved."""
    two, size = d.op_in(TWO_OPERAND_OPS) | d.backward(), d.element_bytes()
    return by_width(d, np.where(two, 2.0, 1.0) * size, size, 1.0)


def normalised_work(d: Dims) -> Work:
    """Softmax and layer norm: read a tensor, write a tensor. A backward reads the gradient and the saved tensor."""
    size = d.element_bytes()
    return by_width(d, np.where(d.backward(), 2.0, 1.0) * size, size, 8.0)


def dropout_work(d: Dims) -> Work:
    """Read a tensor, write a tensor and a mask of one byte per element. A backward reads gradient and mask."""
    size, back = d.element_bytes(), d.backward()
    return by_width(d, size + back, size + ~back, 2.0)


def reduction_work(d: Dims) -> Work:
    """Read B x H, write B."""
    size = d.element_bytes()
    return by_width(d, size, size / d("H"), 1.0)


def strided_us(c: Calls) -> Array:
    """Time of element-wise kernels and copies, whose strided operands move element by element."""
    operands = np.clip(np.rint(c.work.read / np.maximum(c.work.written, 1.0)), 1.0, 2.0)
    loads = LOADS_PER_US * c.chip.gpu.max_threads_per_sm / 2048.0 / c.chip.mhz * operands
    wide = loads if c.chip.is_recent else np.inf  # traces of V100 to A100 show no such limit
    rate = np.where(c.d.element_bytes() >= 4.0, wide, STRIDED_PER_CLOCK)
    return by_element_us(c, np.where(c.strided, rate, np.inf))


def dropout_us(c: Calls) -> Array:
    """Time of dropout, which draws random numbers forward."""
    return by_element_us(c, np.where(c.d.backward(), np.inf, DROPOUT_PER_CLOCK))


def layer_norm_us(c: Calls) -> Array:
    """Time of layer norm. A block has one row. The gradient is two kernels; that of the weights adds 128 rows in a memory latency
    (measured on an H100).
    """
    rows, uneven, op = c.d("B", 1.0), np.mod(c.d("H"), 4.0) > 0.0, pd.Series(c.d.op)
    weights, inputs = (op.str.contains(part).to_numpy(bool) for part in ("weight", "input"))
    again = uneven * (c.start + c.moving_us / 2.0)
    forward = rows * np.where(uneven, *NORM_ROW_CLOCKS[::-1]) / c.chip.clocks_per_us() + again
    even_rate, uneven_rate, gradient_rate = WIDE_NORM_PER_CLOCK
    rate = np.where(c.d.backward(), gradient_rate, np.where(uneven, uneven_rate, even_rate))
    wide = (c.d("H") >= WIDE_NORM_ROW) & ~weights & ~inputs & c.chip.is_recent
    row_us = np.where(wide, rows * c.d("H") / rate / c.chip.clocks_per_us(), 0.0)
    adding = ROW_LATENCY_US * rows / 128.0
    both = c.start + np.maximum(adding, c.moving_us / 1.5)
    rest = np.maximum(adding - c.moving_us, 0.0)
    gradient = np.select([weights, inputs], [rest, 0.0], both)
    by_bytes = movement_us(c) + np.where(c.d.backward() | weights, gradient, forward)
    return np.maximum(by_bytes, c.start + np.nan_to_num(row_us))


def reduction_us(c: Calls) -> Array:
    """Time of a reduction: one pass of dependent additions, no faster from L2, and longer starts to a single value or over rows."""
    op = pd.Series(c.d.op)
    whole, rows = (op.str.endswith(end).to_numpy(bool) for end in ("_all", "_rows"))
    quick = op.str.startswith(("sum", "mean")).to_numpy(bool) & c.chip.is_recent
    one_block = c.work.read / c.d.element_bytes() < ONE_BLOCK_ELEMENTS
    former, recent = (np.where(one_block, *clocks) for clocks in WHOLE_REDUCTION_CLOCKS)
    rows_us = np.where(rows, c.chip.started_us(ROW_SUM_START), c.start)
    start = np.where(whole, np.where(quick, recent, former) / c.chip.mhz, rows_us)
    return start + c.chip.memory.moving_us(c.work.bytes)


def unaligned_rows_us(d: Dims, chip: Chip, row_clocks: float = SOFTMAX_ROW_CLOCKS) -> Array:
    """Time of softmax forward in half precision over rows that lie in no warp and are not aligned, us; 0 for all others.

    Such a row takes at least `row_clocks`.
    """
    width = d("H")
    unaligned = (width > MAX_WARP_ROW) & (np.mod(width, 8.0) > 0.0) & ~d.backward()
    clocks = np.maximum(width / WIDE_SOFTMAX_PER_CLOCK, row_clocks)
    us = d("B", 1.0) * clocks / chip.clocks_per_us()
    return np.where(unaligned & d.dtype_in(HALF_DTYPES), us, 0.0)


def narrow_rows_us(d: Dims, chip: Chip) -> Array:
    """Time of softmax forward in half precision over rows that lie in a warp, us: element by element; 0 for wider rows."""
    us = np.nan_to_num(d("B", 1.0) * d("H")) / NARROW_SOFTMAX_PER_CLOCK / chip.clocks_per_us()
    return np.where(d("H") <= MAX_WARP_ROW, us, 0.0)


def softmax_limit(
    c: Calls, kernel_us: Array, _inside: Flags, _transferred: bool
) -> tuple[Array, Array | float]:
    """Factor on a model's times, and on the ends of its interval, for rows in a warp and for unaligned ones.

    No row takes less than the least that was measured, where a model has no samples, and whatever the memory of another card.
    PyTorch 2.11 and older ones differ much on unaligned rows: the middle, and both in the interval.
    """
    if c.chip.is_cpu:
        return np.ones(c.d.rows), 1.0
    narrow = c.d.dtype_in(HALF_DTYPES) & ~c.d.backward() & (c.d.op == "softmax")
    measured = np.maximum(kernel_us, np.where(narrow, narrow_rows_us(c.d, c.chip), 0.0))
    former = unaligned_rows_us(c.d, c.chip)
    recent = np.maximum(unaligned_rows_us(c.d, c.chip, RECENT_SOFTMAX_ROW_CLOCKS), measured)
    half_way = np.sqrt(np.maximum(former / recent, 1.0))
    return half_way * recent / kernel_us, half_way


FAMILIES = (
    Family(
        "elementwise", ("B", "H"), Law.MOVEMENT, elementwise_work, ELEMENTWISE_OPS, IO,
        time=strided_us, reference=movement_us, outside_spread=0.005, colour="#F3E65A", flat=True,
    ),
    Family(
        "softmax", ("B", "H"), Law.MOVEMENT, normalised_work, ("softmax", "log_softmax"), IO,
        start=(4.0, 2.3), limit=softmax_limit, outside_spread=0.45, colour="#A8578A",
        runs={"softmax": methodcaller("softmax", 1), "log_softmax": methodcaller("log_softmax", 1)},
    ),
    Family(
        "layer_norm", ("B", "H"), Law.MOVEMENT, normalised_work, ("ln", "ln_weight_gradient"), IO,
        start=(6.0, 2.8), time=layer_norm_us, reference=movement_us, outside_spread=0.1,
        colour="#EDBFD8",
    ),
    Family(
        "dropout", ("B", "H"), Law.MOVEMENT, dropout_work, ("dropout",), IO,
        time=dropout_us, reference=movement_us, colour="#B9A91C",
    ),
    Family(
        "reduction", ("B", "H"), Law.MOVEMENT, reduction_work, ("sum", "mean", "max", "norm"), IO,
        start=(7.0, 2.0), time=reduction_us, reference=movement_us, colour="#7B3565",
    ),
)  # fmt: skip
