"""Starts of kernels, and their limits where neither bandwidth nor peak arithmetic is the limit: waits, single elements, blocks.

Constants *measured on an H100* come from half of the shapes in `measurements/H100`, chosen by a hash; docs/accuracy.md has the
errors of the other half. They are clock cycles of an SM, or shares, so that they hold on other GPUs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.embedding_lookups import ROW_LATENCY_US
from pipeline.kernels.estimate import SMALLEST_KERNEL_US
from pipeline.kernels.work import LIKELIHOODS, Array, Dims, Work

START_US = {
    "gemm": (5.0, 4.5), "bmm": (5.0, 3.0), "conv2d_forward": (7.0, 4.2),
    "conv2d_backward_data": (7.0, 5.0), "conv2d_backward_weight": (7.0, 7.0),
    "embedding_forward": (6.0, 2.4), "embedding_backward": (12.0, 9.7), "concat": (3.5, 1.7),
    "layer_norm": (6.0, 2.8), "softmax": (4.0, 2.3), "batch_norm": (5.0, 3.4),
    "reduction": (7.0, 2.0), "loss": (4.0, 1.7), "pooling": (4.0, 2.0),
    "tril_index_forward": (8.0, 4.1), "tril_index_backward": (8.0, 2.4), "index": (5.0, 2.1),
    "sort": (15.0, 12.0), "memset": (1.5, 1.0), "memcpy_d2d": (1.5, 1.2), "attention": (6.0, 5.0),
    "rnn": (6.0, 4.8), "optimizer": (3.0, 2.5), "row sum": (7.0, 5.4), "memcpy_h2d": (1.5, 0.75),
    "memcpy_d2h": (1.5, 2.5),
}  # fmt: skip
"""Duration of each family's kernels at negligible sizes, microseconds: dependent loads, the last step of a reduction, the
prologue of a tile. First up to Ampere, from the smallest calls of the V100 and A100 DLRM traces, which have whole microseconds;
then since Ada, from H100s (docs/kernels.md). `row sum`: a reduction over rows, whose blocks wait for each other. Row sums and
copies to the host since Ada are from public traces, as `OTHER_START_US`."""

OTHER_START_US = 1.6
"""The same of other families since Ada, from public traces of an H100: kernels on a few elements take 1.5 to 1.8 us there, and
1.0 to 1.4 on the H100 of `measurements/`, which has models of its own."""

START_CLOCK_MHZ = (1600.0, 1980.0)
"""Clocks up to which the starts hold, MHz; a faster clock shortens them."""


def is_recent(gpu: GpuSpec) -> bool:
    """Whether kernels start as on an H100: Ada, Hopper, Blackwell."""
    return gpu.generation.recent_start


def start_us(name: str, gpu: GpuSpec, other_us: float) -> float:
    """Duration of a family's kernel at negligible size, us; `other_us` for families that the table lacks, up to Ampere."""
    recent = is_recent(gpu)
    start = START_US.get(name, (other_us, OTHER_START_US))[recent]
    return start * min(START_CLOCK_MHZ[recent] / gpu.clock_mhz, 1.0)


ONE_BLOCK_ELEMENTS = 8192.0
"""Elements from which several blocks reduce a tensor to a single value: 16 for each thread of a block (PyTorch's
`Reduce.cuh`)."""

WHOLE_REDUCTION_CLOCKS = ((8_000.0, 12_500.0), (4_200.0, 9_000.0))
"""Clock cycles of the start of such a reduction in one block, and in several, which wait for each other: V100 and A100 traces,
and sums and means since Ada, as measured on an H100."""

ELEMENTS_PER_CLOCK = {
    "elementwise": 1.37, "copy": 1.37, "concat": 1.06, "strided concat": 0.82, "scattered": 0.48,
    "narrow softmax": 2.0, "gelu": 2.4, "wide softmax": 2.0, "sorted scatter": 0.0175,
    "atomic": 0.62, "dropout": 1.8,
}  # fmt: skip
"""Elements per SM and clock of kernels that move one element at a time, whatever its bytes. With strided or broadcast
operands of 2-byte types, an H100 then reaches half of its bandwidth. `scattered`: neighbouring threads read from different
sectors. The error function of gelu has such a limit too. From H100 traces (docs/kernels.md). The last four were measured on an
H100: a `sorted scatter` has a warp for each position, `atomic` adds to rows, `dropout` draws numbers."""

CLOCKS = {
    "softmax row": 5_000.0, "frame": 1_750.0, "max pixel": 2.95, "former max pixel": 5.3,
    "average pixel": 4.1, "average window": 0.39, "tap": 0.4, "norm row": 330.0,
    "uneven norm row": 1_400.0, "small block": 350.0, "attention tile": 8_900.0,
}  # fmt: skip
"""Clock cycles of an SM, measured on an H100 where nothing else is said:

- `softmax row`: least time of a wide row that is not aligned (3,137 columns in an H100 trace).
- `frame`: from one frame of PyTorch's CTC loss to the next: 0.90 and 1.73 us on two GPUs, from published times of 512 and 1,024
  frames (pull requests 2723 and 3265 of flagos-ai/FlagGems).
- Pooling in NCHW: a pixel of the larger image in the gradient, which checks every window over it (`former`: V100 trace, before
  Ampere); each window over it; a pixel of a window forward.
- `norm row`: a row of layer norm beside its bytes; `uneven`: in two kernels, for widths that are no multiple of four.
- `small block`: a block of a small fp32 product beside its arithmetic.
- `attention tile`: 64 queries and 64 keys of a head of 64 elements in fp32 (memory-efficient kernel).
"""

LOADS_PER_US = 970.0
"""Elements of 4 bytes or more that an SM with 2,048 threads loads in a microsecond for each operand of strided copies and
element-wise kernels (measured on an H100). A thread has two such loads in flight, of smaller types four."""

BAG_ELEMENTS_PER_US = (2970.0, 990.0)
"""The same in PyTorch's bags: of rows, and of sums that are written. A thread loads an index, then its row."""

STRIDED_START_US = 2.8
"""`START_US` of strided and broadcasting element-wise kernels, which compute addresses (H100 traces)."""

BATCH_NORM_SHARE = 0.86
"""Bandwidth of batch norm over that of element-wise kernels, from the V100 trace. A block sums a channel, waits, and reads
it again. A channel in registers is read once, but then loads and stores do not overlap: it takes as long."""

CHANNEL_ELEMENTS_PER_US = (1640.0, 690.0)
"""Elements that the block of a channel normalises in a microsecond, forward and backward: few channels leave SMs idle (cuDNN's
`bn_fw_tr_1C11`, measured on an H100). Memory latency sets it, not the clock. Training on an RTX 3090 shows no such limit."""

IMAGE_FAMILIES = ("batch_norm", "pooling")

PLAIN_REFERENCES = (
    *IMAGE_FAMILIES, "reduction", "layer_norm", "elementwise", "dropout", "optimizer",
    "tril_index_backward",
)  # fmt: skip
"""Families whose saved models correct bytes over bandwidth, without the waits and limits of this module."""


def reduction_us(d: Dims, work: Work, gpu: GpuSpec) -> Array:
    """Start of a reduction to a single value, or over rows, less the family's, us, shape (rows,); 0 for others and on a CPU."""
    op, family_us = pd.Series(d.text("op")), start_us("reduction", gpu, 0.0)
    whole, rows = (op.str.endswith(end).to_numpy(dtype=bool) for end in ("_all", "_rows"))
    quick = op.str.startswith(("sum", "mean")).to_numpy(dtype=bool) & is_recent(gpu)
    one_block = work.read / d.element_bytes() < ONE_BLOCK_ELEMENTS
    former, recent = (np.where(one_block, *clocks) for clocks in WHOLE_REDUCTION_CLOCKS)
    clocks = np.where(quick, recent, former)
    clocks_us = clocks / gpu.clock_mhz
    start = np.select([whole, rows], [clocks_us, start_us("row sum", gpu, 0.0)], family_us)
    return np.where(gpu.limits is not None, start - family_us, 0.0)


def by_element_us(name: str, d: Dims, work: Work, gpu: GpuSpec, start: float) -> Array:
    """Least time of kernels that move single elements, us, shape (rows,); 0 for all others.

    A thread moves one element at a time where operands are strided or broadcast. Concatenation moves 2-byte elements
    one by one.
    """
    scattered, size, mhz, per_clock = (
        d.flag("scattered"),
        d.element_bytes(),
        gpu.clock_mhz,
        ELEMENTS_PER_CLOCK,
    )
    strided, adds = (
        d.flag("strided") | d.op_in(("transpose",)),
        d.op_in(("index_add", "scatter_add")),
    )
    elements, rate = np.where(adds, d("B") * d("H"), work.written / size), np.full(d.rows, np.inf)
    if name in ("elementwise", "copy"):
        operands = np.clip(np.rint(work.read / np.maximum(work.written, 1.0)), 1.0, 2.0)
        loads = LOADS_PER_US * gpu.max_threads_per_sm / 2048.0 / mhz * operands
        wide = loads if is_recent(gpu) else np.inf  # traces of V100 to A100 show no such limit
        rate = np.where(strided, np.where(size >= 4.0, wide, per_clock[name]), np.inf)
    if name == "concat":
        rate = np.where(
            size < 4.0, np.where(strided, per_clock["strided concat"], per_clock["concat"]), np.inf
        )
    if name == "dropout":
        rate = np.where(d.backward(), np.inf, per_clock["dropout"])
    if name == "tril_index_backward":
        rate, elements = (
            np.full(d.rows, per_clock["sorted scatter"]),
            d("B") * d("F") * (d("F") - 1.0) / 2.0,
        )
    for rows, limit in ((adds, "atomic"), (d.op_in(("gelu",)), "gelu"), (scattered, "scattered")):
        rate = np.where(rows, np.minimum(rate, per_clock[limit]), rate)
    later = np.where(strided & (name != "concat"), STRIDED_START_US - SMALLEST_KERNEL_US, 0.0)
    elements_us = np.nan_to_num(elements) / rate / (max(gpu.sms, 1) * mhz)
    return np.where(np.isfinite(rate) & (gpu.limits is not None), start + later + elements_us, 0.0)


def loss_waits_us(d: Dims, gpu: GpuSpec) -> Array:
    """Time of what follows each other in a loss, us, shape (rows,): frames of CTC, samples of the likelihood (`nll`).

    One block adds the likelihoods of a batch, about a sixteenth of the samples at a time (`nll_loss_threads` in PyTorch's
    `Loss.cu`). Each step loads a label, and forward then the value at that label.
    """
    samples = np.where(d.op_in(LIKELIHOODS[:1]), d("B", 1.0), 0.0)
    threads = np.clip(np.exp2(np.rint(np.log2(np.maximum(samples / 16.0, 1.0)))), 32.0, 1024.0)
    loads_us = ROW_LATENCY_US * np.where(d.backward(), 1.0, 2.0) * np.ceil(samples / threads)
    return np.asarray(CLOCKS["frame"] / gpu.clock_mhz * d("T", 0.0) + loads_us)


def image_us(name: str, d: Dims, moving_us: Array, gpu: GpuSpec) -> Array:
    """Time of batch norm and pooling without the start, us, shape (rows,); `moving_us` is the time of the bytes."""
    mhz, planar, back = gpu.clock_mhz, ~d.channels_last(), d.backward()
    if name == "batch_norm":  # with known statistics it is an element-wise kernel
        rate = np.where(back, *reversed(CHANNEL_ELEMENTS_PER_US))
        channel_us = is_recent(gpu) * planar * np.nan_to_num(d("B", 1.0) * d("HW", 1.0)) / rate
        trained = np.maximum(moving_us / BATCH_NORM_SHARE, channel_us)
        return np.where(d.op_in(("batch_norm_inference",)), moving_us, trained)
    op = pd.Series(d.text("op"))
    greatest, average = (op.str.startswith(start).to_numpy(dtype=bool) for start in ("max", "av"))
    pixels, taps = np.nan_to_num(d("B", 1.0) * d("C") * d("HW", 1.0)), d("kernel_size", 2.0) ** 2
    windows = taps / d("stride", 2.0) ** 2
    outputs = d("outputs", np.nan) / (d.element_bytes() + np.where(greatest, 8.0, 0.0))
    forward = CLOCKS["tap"] * np.where(np.isnan(outputs), pixels * windows, outputs * taps)
    greatest_clocks = CLOCKS[gpu.generation.max_pooling]
    gradient = np.where(
        greatest, greatest_clocks, CLOCKS["average pixel"] + CLOCKS["average window"] * windows
    )
    clocks_us = np.where(back, gradient * pixels, forward) / (max(gpu.sms, 1) * mhz)
    return np.where((greatest | average) & planar, np.maximum(moving_us, clocks_us), moving_us)


def norm_waits_us(d: Dims, gpu: GpuSpec, moving_us: Array, start: float) -> Array:
    """Time of layer norm beside its start and bytes, us, shape (rows,); `moving_us` is the time of the bytes.

    A block has one row. The gradient is two kernels; that of the weights adds 128 rows in a memory latency (measured on an H100).
    """
    rows, op, uneven = d("B", 1.0), pd.Series(d.text("op")), np.mod(d("H"), 4.0) > 0.0
    weights, inputs = (op.str.contains(part).to_numpy(dtype=bool) for part in ("weight", "input"))
    clocks = rows * np.where(uneven, CLOCKS["uneven norm row"], CLOCKS["norm row"])
    forward = clocks / max(gpu.sms, 1) / gpu.clock_mhz + uneven * (start + moving_us / 2.0)
    adding = ROW_LATENCY_US * rows / 128.0
    both = start + np.maximum(adding, moving_us / 1.5)
    gradient = np.select([weights, inputs], [np.maximum(adding - moving_us, 0.0), 0.0], both)
    return np.where(d.backward() | weights, gradient, forward)


def gathered_us(rows: Array, gpu: GpuSpec) -> Array:
    """Least time of gathering rows, us, shape (rows,): a block for each, which waits for five loads (0.6 ns per row on an H100)."""
    resident = min(32, gpu.max_blocks_per_sm) * max(gpu.sms, 1)
    return np.asarray(5.0 * ROW_LATENCY_US * np.nan_to_num(rows) / resident)


def bags_us(d: Dims, looked_up: Array, gpu: GpuSpec) -> Array:
    """Least time of PyTorch's bags that add `looked_up` elements, us, shape (rows,)."""
    waits = (
        looked_up / BAG_ELEMENTS_PER_US[0] + d("B") * d("T", 1.0) * d("D") / BAG_ELEMENTS_PER_US[1]
    )
    return np.asarray(np.nan_to_num(waits) / (max(gpu.sms, 1) * gpu.max_threads_per_sm / 2048.0))


def chunk_us(d: Dims, gpu: GpuSpec, moved: Array) -> Array:
    """Least time of updating a list of tensors, us, shape (rows,); `moved` is the traffic of all of them.

    A block has 65,536 elements of a tensor (`MultiTensorApply.cuh`), and moves 20 bytes in a clock cycle (measured on an H100).
    """
    elements = np.maximum(d("bytes", d("outputs", 0.0)) / d.element_bytes(), 1.0)
    chunk = np.minimum(65_536.0, elements / np.maximum(d("tensors", 1.0), 1.0))
    return np.asarray(moved / elements * chunk / 20.0 / gpu.clock_mhz)


def thin_products_us(d: Dims, gpu: GpuSpec, peak_flop_per_us: Array) -> Array:
    """Time of many small fp32 products without the start, us, shape (rows,): in tiles of 32 x 32, sums in multiples of eight.

    Such tiles reach 0.6 of the peak (measured on an H100).
    """
    sms = max(gpu.sms, 1)
    waves = np.ceil(d("B", 1.0) * np.ceil(d("M") / 32.0) * np.ceil(d("K") / 32.0) / sms)
    tile_us = 2.0 * 32.0**2 * np.ceil(d("N") / 8.0) * 8.0 / (0.6 * peak_flop_per_us / sms)
    return np.asarray(waves * (tile_us + CLOCKS["small block"] / gpu.clock_mhz))


def fp32_attention_us(d: Dims, gpu: GpuSpec) -> Array:
    """Time of fused attention in fp32 without the start, us, shape (rows,): tiles one after another, blocks side by side.

    A block takes 64 queries and loops over keys; backward it takes 64 keys, loops over queries, and takes three times as long each.
    A tile of a block that is alone on its SM takes 1.6 times as long (measured on an H100).
    """
    queries, keys = np.ceil(d("M") / 64.0), np.ceil(d("N") / 64.0)
    back, seen = d.backward(), np.where(d.flag("causal"), 0.5, 1.0)
    blocks, steps = d("B") * np.where(back, keys, queries), np.where(back, queries, keys) * seen
    tile_us = (
        CLOCKS["attention tile"] / gpu.clock_mhz * np.ceil(d("K") / 64.0) * np.where(back, 3.0, 1.0)
    )
    return np.asarray(steps * tile_us * np.maximum(blocks / max(gpu.sms, 1), 1.6))
