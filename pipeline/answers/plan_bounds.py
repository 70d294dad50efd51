"""Lower bounds of step times from FLOPs and bytes, which rule out points of a plan without predicting them.

Every kernel needs at least the time of its FLOPs at the peak rate, and of its bytes at the bandwidth of the memory or, if
they fit there, of the L2 cache. Kernels of one stream run one after another, so a step takes at least the sum.

A model that was fitted to measurements may predict less than such a time. A plan therefore compares each bound with the
prediction where both are known, and lowers all bounds by the largest excess (`pipeline.answers.plan`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec

Floats = npt.NDArray[np.float64]

WINOGRAD = 4.0
"""Largest factor by which algorithms of a convolution save FLOPs: cuDNN's F(4x4, 3x3) makes 36 products instead of 144."""

PRODUCTS = ("gemm", "bmm", "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight")
"""Kernel families whose FLOPs limit them. The others move bytes."""


def roofline_us(calls: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Lower bound of each kernel's time in µs, shape (calls,).

    Args:
        calls: device calls, `calls` schema. Copies from the host are bounded by the link.
        gpu: the GPU with its peak rates.
    """
    moved = calls["bytes_read"].fillna(0.0).to_numpy(float), calls["bytes_written"].fillna(0.0).to_numpy(float)
    family = calls["family"].astype(str).to_numpy(object)
    per_s = np.where(moved[0] + moved[1] <= gpu.l2_bytes, gpu.peak_l2_gb_per_s(), gpu.peak_dram_gb_per_s())
    memory = (moved[0] + moved[1]) / np.maximum(per_s, gpu.peak_dram_gb_per_s()) / 1e3
    link = np.array([name.startswith("memcpy_") and name != "memcpy_d2d" for name in family], dtype=bool)
    memory = np.where(link, moved[1] / max(gpu.pcie_gb_per_s, 1.0) / 1e3, memory)
    rates = {dtype: gpu.peak_gflop_per_s(dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")}
    peak = calls["dtype"].astype(object).map(rates).fillna(max(rates.values())).to_numpy(float)
    saved = np.array([WINOGRAD if name.startswith("conv2d") else 1.0 for name in family])
    flops = np.where(np.isin(family, PRODUCTS), calls["flops"].fillna(0.0).to_numpy(float), 0.0)
    return np.asarray(np.maximum(memory, flops / (peak * saved) / 1e3))


def step_bound_us(calls: pd.DataFrame, gpu: GpuSpec) -> tuple[float, float]:
    """Lower bounds in µs of a step, and of one that accumulates gradients without an update."""
    times = roofline_us(calls, gpu)
    update = (calls["phase"] == "optimizer").to_numpy(bool)
    return float(times.sum()), float(times[~update].sum())
