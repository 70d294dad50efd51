"""The families that move bytes: copies, concatenation, fills, host copies, indexing, sorts, and traffic between GPUs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.families.dims import Dims, Work
from pipeline.families.family import IO, Calls, Family, Law, by_element_us
from pipeline.families.row_wise import strided_us

CONCAT_PER_CLOCK = (1.06, 0.82)
"""Elements per SM and clock of concatenation of 2-byte types, which moves them one by one, and of strided ones (H100 traces)."""

WIDE_PART = 64.0
"""Elements of a row from which the parts of a concatenation move as fast as their bytes: development half of our H100's samples."""

PAGEABLE_GB_PER_S = 11.1
"""Largest rate of a pageable copy, whatever the link: the CPU copies it to a pinned buffer first. From batches of images
in traces of a V100 (11.1 GB/s, PCIe 3) and an A100 (11.2, PCIe 4). Memory that is read for the first time gives 3.5 to 6.5."""

STAGED_BYTES = 2.0**20
"""Bytes that the driver stages before a pageable copy starts (measured on an H100 with CUDA 13; an A100 trace shows none)."""

COLLECTIVE_START_US = 20.0
"""Latency of a small NCCL collective, microseconds. The V100 and A100 DLRM traces show 17 us and more."""

SORT_PASSES = 16.0
"""Read-and-write passes of a radix sort of 64-bit keys, 8 bits a pass (CUB's onesweep); each also moves the keys' positions."""

WHOLE_SORTS = ("sort", "unique", "topk", "")
"""Ops that include all passes of a sort. The other ops of the family (histogram, scan, one pass) are single kernels."""

BLOCK_SORTS = ("radix_sort_single_tile",)
"""Sorts that run in a single thread block."""

HOST_COPIES = ("pinned", "pageable")


def moved_bytes(d: Dims) -> Work:
    """Copies, concat, transposes: `bytes` are read, and the same number is written."""
    size = d("bytes", d("outputs", d("B", 1.0) * d("H") * d.element_bytes()))
    return Work(np.zeros(d.rows), d("inputs", size), d("outputs", size))


def written_bytes(d: Dims) -> Work:
    """Memset: `bytes` are written, and none are read."""
    return Work(np.zeros(d.rows), np.zeros(d.rows), d("bytes", d("outputs")))


def given_work(d: Dims) -> Work:
    """Families without a formula: columns `flops`, `bytes_read` and `bytes_written`, else dims that hold bytes."""
    size = d("bytes", d("B", 1.0) * d("H") * d.element_bytes())
    read, written = d("bytes_read", d("inputs", size)), d("bytes_written", d("outputs", size))
    return Work(d("flops", 0.0), read, written)


def concat_us(c: Calls) -> Array:
    """Time of concatenation."""
    plain, strided = CONCAT_PER_CLOCK
    rate = np.where(c.d.element_bytes() < 4.0, np.where(c.strided, strided, plain), np.inf)
    return by_element_us(c, rate, strided_us=0.0)


def concat_limit(
    c: Calls, kernel_us: Array, _inside: Flags, _transferred: bool
) -> tuple[Array, Array | float]:
    """Factor on a model's times so that wide parts take no longer than their bytes.

    A model knows no widths, and its large samples of several tensors have narrow rows, which are up to five times as slow.
    """
    wide = c.d("H") >= WIDE_PART * c.d("tensors", 2.0)
    return np.where(wide, np.fmin(1.0, concat_us(c) / kernel_us), 1.0), 1.0


def link_us(c: Calls) -> Array:
    """Time of copies between host and device: each byte crosses the link once."""
    crossing = np.maximum(c.work.read, c.work.written)
    copied = np.maximum(crossing - STAGED_BYTES * c.chip.is_recent, 0.0)
    staged_us = c.d.op_in(("pageable",)) * copied / (1e3 * PAGEABLE_GB_PER_S)
    return c.start + np.maximum(c.chip.link.moving_us(crossing), staged_us)


def sort_us(c: Calls) -> Array:
    """Time of all passes of a sort, or of one."""
    whole = c.d.op_in(WHOLE_SORTS)
    start = np.where(whole | c.d.op_in(BLOCK_SORTS), c.start, c.chip.started_us(None))
    return start + c.chip.memory.moving_us(np.where(whole, SORT_PASSES, 1.0) * c.work.bytes)


def collective_us(c: Calls) -> Array:
    """Times of collectives: start plus size x bus factor / bandwidth of NVLink, or of PCIe without NVLink."""
    ranks, factor = bus_factor(c.d)
    bus = c.chip.gpu.nvlink_gb_per_s or c.chip.gpu.pcie_gb_per_s
    size = np.maximum(c.work.read, c.work.written)
    time = COLLECTIVE_START_US + size * factor / (1e3 * max(bus, 1.0))
    # with one rank, the library copies within the device or does nothing
    return np.where(ranks <= 1.0, c.chip.memory.time_us(2.0 * size), time)


def bus_factor(d: Dims) -> tuple[Array, Array]:
    """(ranks, bytes on a rank's bus per byte of its buffer) of collectives, each of shape (rows,).

    With n ranks the factor is 2 (n - 1) / n for all-reduce, 1 for broadcast, reduce and send/receive, and (n - 1) / n
    for all others.
    """
    ranks = np.maximum(d("ranks", 1.0), 1.0)
    op = pd.Series(d.op).str.lower()
    share = (ranks - 1.0) / ranks
    factor = np.where(op.str.contains("all_reduce|allreduce"), 2.0 * share, share)
    return ranks, np.where(op.isin(["broadcast", "reduce", "send_recv"]), 1.0, factor)


FAMILIES = (
    Family(
        "concat", ("bytes",), Law.MOVEMENT, moved_bytes, ("cat", "stack"), ("tensors", *IO),
        start=(3.5, 1.7), time=concat_us, limit=concat_limit, colour="#6D7B87",
    ),
    Family(
        "copy", ("bytes",), Law.MOVEMENT, moved_bytes, ("copy", "transpose", "cast"), IO,
        time=strided_us, colour="#B3B3B3",
    ),
    Family(
        "memcpy_d2d", ("bytes",), Law.MOVEMENT, moved_bytes, ("memcpy",), start=(1.5, 1.2),
        colour="#5F5F5F",
    ),
    Family(
        "memset", ("bytes",), Law.MOVEMENT, written_bytes, ("memset",), start=(1.5, 1.0),
        colour="#C9C9C9",
    ),
    Family(
        "memcpy_h2d", ("bytes",), Law.LINK, written_bytes, HOST_COPIES, start=(1.5, 0.75),
        time=link_us, colour="#9A9A9A",
    ),
    Family(
        "memcpy_d2h", ("bytes",), Law.LINK, written_bytes, HOST_COPIES, start=(1.5, 2.5),
        time=link_us, colour="#7C7C7C",
    ),
    Family(
        "sort", ("bytes",), Law.SORT, moved_bytes, ("sort", "unique", "topk"), start=(15.0, 12.0),
        time=sort_us, colour="#27313A",
    ),
    Family(
        "index", ("bytes",), Law.MOVEMENT, moved_bytes,
        ("gather", "scatter", "index", "index_put"), IO, start=(5.0, 2.1), colour="#A9B7C2",
    ),
    Family(
        "collective", ("bytes",), Law.COLLECTIVE, moved_bytes,
        (
            "all_reduce", "all_to_all", "all_gather", "reduce_scatter", "broadcast", "reduce",
            "send_recv",
        ),
        ("ranks", "nodes", "node_groups"), time=collective_us, colour="#1C1C1C",
    ),
    Family("other", (), Law.MOVEMENT, given_work, (), ("bytes", "B", "H", *IO)),
)  # fmt: skip
