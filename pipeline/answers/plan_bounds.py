"""Lower bounds of step times from FLOPs and bytes, which rule out points of a plan without predicting them.

Every kernel needs at least the time of its FLOPs at the peak rate, and of its bytes at the bandwidth of the memory or, if
they fit there, of the L2 cache. Kernels of one stream run one after another, so a step takes at least the sum.

A model that was fitted to measurements may predict less than such a time. A plan therefore compares each bound with the
prediction where both are known, and lowers all bounds by the largest excess (`pipeline.answers.plan`).

FLOPs and bytes lie nearly on a line over the batch size. A space with many batch sizes is therefore bounded from the calls at
three of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec

Floats = npt.NDArray[np.float64]

WINOGRAD = 4.0
"""Largest factor by which algorithms of a convolution save FLOPs: cuDNN's F(4x4, 3x3) makes 36 products instead of 144."""

PRODUCTS = ("gemm", "bmm", "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight")
"""Kernel families whose FLOPs limit them. The others move bytes."""


ALIKE = 0.01
"""Largest share by which a bound between two batch sizes may exceed that of the operators' own sizes."""


@dataclass(frozen=True)
class CallSizes:
    """What bounds depend on. FLOPs and bytes have the shape (..., calls), the rest (calls,)."""

    family: npt.NDArray[np.object_]
    dtype: npt.NDArray[np.object_]
    update: npt.NDArray[np.bool_]
    """Whether the call belongs to the update of the weights."""
    flops: Floats
    read: Floats
    written: Floats

    @classmethod
    def of(cls, calls: pd.DataFrame) -> CallSizes:
        """From device calls, `calls` schema."""
        flops, read, written = (
            calls[name].fillna(0.0).to_numpy(float) for name in ("flops", "bytes_read", "bytes_written")
        )
        family, dtype = (calls[name].astype(str).to_numpy(object) for name in ("family", "dtype"))
        return cls(family, dtype, (calls["phase"] == "optimizer").to_numpy(bool), flops, read, written)

    def same_kernels(self, other: CallSizes) -> bool:
        """Whether both have the same calls, of whatever sizes."""
        pairs = [(self.family, other.family), (self.dtype, other.dtype), (self.update, other.update)]
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def towards(self, other: CallSizes, shares: Floats) -> CallSizes:
        """Sizes that go in straight lines to those of `other`: a row for each share of the way, shape (shares,)."""
        way = shares[:, None]
        pairs = ((self.flops, other.flops), (self.read, other.read), (self.written, other.written))
        flops, read, written = (mine + (theirs - mine) * way for mine, theirs in pairs)
        return CallSizes(self.family, self.dtype, self.update, flops, read, written)


def roofline_us(calls: CallSizes, gpu: GpuSpec) -> Floats:
    """Lower bound of each kernel's time in µs, with the shape of its FLOPs.

    Args:
        calls: device calls. Copies from the host are bounded by the link.
        gpu: the GPU with its peak rates.
    """
    moved, family = calls.read + calls.written, calls.family
    per_s = np.where(moved <= gpu.l2_bytes, gpu.peak_l2_gb_per_s(), gpu.peak_dram_gb_per_s())
    memory = moved / np.maximum(per_s, gpu.peak_dram_gb_per_s()) / 1e3
    link = np.array([name.startswith("memcpy_") and name != "memcpy_d2d" for name in family], dtype=bool)
    memory = np.where(link, calls.written / max(gpu.pcie_gb_per_s, 1.0) / 1e3, memory)
    rates = {dtype: gpu.peak_gflop_per_s(dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")}
    peak = np.array([rates.get(dtype, max(rates.values())) for dtype in calls.dtype], dtype=float)
    saved = np.array([WINOGRAD if name.startswith("conv2d") else 1.0 for name in family])
    flops = np.where(np.isin(family, PRODUCTS), calls.flops, 0.0)
    return np.asarray(np.maximum(memory, flops / (peak * saved) / 1e3))


def step_bounds_us(calls: CallSizes, gpu: GpuSpec) -> Floats:
    """Lower bounds in µs of a step, and of one that accumulates gradients without an update, shape (..., 2)."""
    times = roofline_us(calls, gpu)
    return np.stack([times.sum(axis=-1), times[..., ~calls.update].sum(axis=-1)], axis=-1)


def sizes_between(
    batch_sizes: Sequence[int], at: Callable[[int], CallSizes], gpu: GpuSpec
) -> Mapping[int, CallSizes] | None:
    """Calls of a step at each of several batch sizes, from the calls at the least, the middle and the largest of them.

    Args:
        batch_sizes: in ascending order.
        at: calls at a batch size.
        gpu: a GPU whose bounds are compared at the middle.

    Returns:
        None if the step launches other kernels at the middle, or its bound is lower there than on the line.
    """
    low, middle, high = (batch_sizes[place] for place in (0, len(batch_sizes) // 2, -1))
    first, inside, last = (at(size) for size in (low, middle, high))
    if not (first.same_kernels(last) and first.same_kernels(inside)):
        return None
    shares = (np.array(batch_sizes, dtype=float) - low) / (high - low)
    line = {size: first.towards(last, shares[[row]]) for row, size in enumerate(batch_sizes)}
    guessed, exact = step_bounds_us(line[middle], gpu)[0], step_bounds_us(inside, gpu)
    return line if (guessed <= exact * (1 + ALIKE)).all() else None
