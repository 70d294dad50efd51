"""Power of a traced step: what its kernels do, as far as a trace shows it, and their times at the clock of a power limit.

A trace is assumed to be of a card under its own limit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from pipeline.answers.step_power import StepPower
from pipeline.arrays import Array
from pipeline.hardware.spec import GpuSpec, check_plausible
from pipeline.hardware.sustained import sustained_dram_gb_per_s
from pipeline.prediction_parts import Z90

OTHERS_SHARE, PRODUCTS_SHARE = 0.75, 0.7
"""Share of the bandwidth that kernels without known sizes use, and share of the peak of products: about what predicted steps of
five networks on V100 and A100 have (0.47 to 0.93, and 0.66 to 1.0 but for small products)."""

SLOWED_SD = 0.05
"""Width of the error of a slow-down, in log time: that of a card that was left out of the fit (docs/energy.md)."""

FAMILY_OF = {"link": "memcpy_h2d", "collective": "collective", "copy": "memcpy_d2d"}
"""Kinds of traced calls with families of like power; other kernels are products or move data."""


def run_at(gpu: GpuSpec, power_limit_w: float | None, clock_mhz: float | None) -> GpuSpec:
    """A card under a power limit or at a locked clock.

    Raises:
        ConfigError: the card does not take it.
    """
    limited = replace(gpu, power_limit_w=power_limit_w, locked_clock_mhz=clock_mhz)
    check_plausible(limited, "gpu")
    return limited


def traced_power(
    calls: pd.DataFrame, moved: pd.DataFrame, gpu: GpuSpec, idle_us: float
) -> StepPower:
    """The power of a traced step on a GPU.

    Args:
        calls: of `trace_calls`.
        moved: their times on the GPU under its own limit, of `transferred`.
        gpu: with the limit and the clock that were asked for.
        idle_us: time of the step in which no kernel runs.
    """
    us = moved["predicted_us"].to_numpy(float)
    kind, intensity = calls["kind"].astype(str), calls["intensity"].to_numpy(float)
    product = (intensity > 0) & (kind == "kernel").to_numpy()
    families = kind.map(FAMILY_OF).fillna("elementwise").to_numpy(object)
    # the FLOPs of an operator are those of its longest kernel
    longest = calls.groupby("op_event")["latency_us"].transform("max") == calls["latency_us"]
    flops = np.where(longest, calls["flops"].to_numpy(float), 0.0)
    peaks = {str(dtype): gpu.datasheet_gflop_per_s(str(dtype)) for dtype in set(calls["dtype"])}
    usual = PRODUCTS_SHARE * 1e3 * us * calls["dtype"].map(peaks).to_numpy(float)
    flops = np.where(product, np.where(np.isnan(flops), usual, flops), 0.0)
    moving = OTHERS_SHARE * 1e3 * us * sustained_dram_gb_per_s(gpu)
    size = np.where(product, flops / np.where(product, intensity, 1.0), moving)
    frame = pd.DataFrame(
        {
            "family": np.where(product, "gemm", families),
            "dtype": calls["dtype"].to_numpy(object),
            "flops": flops,
            "bytes_read": size / 2,
            "bytes_written": size / 2,
        }
    )
    return StepPower.of(gpu, frame, us, np.ones(len(us)), idle_us)


def slowed(moved: pd.DataFrame, factor: Array) -> pd.DataFrame:
    """Times of traced calls with a slow-down, whose error widens their intervals."""
    ends = {"predicted_us": 0.0, "p10_us": -Z90, "p90_us": Z90}
    return moved.assign(
        **{name: moved[name] * factor * np.exp(end * SLOWED_SD) for name, end in ends.items()}
    )
