"""What-ifs on a GPU's figures: which figures change with an altered one, and which differ from the catalogue's GPU.

`gpu.dram_gb_per_s=2000` alters one figure of a GPU file. Figures that depend on it are scaled with it, so that the
altered GPU stays consistent. A measured peak is proportional to the figure of its datasheet, and throughputs to SMs and clock.
A figure that the user also states is not scaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from pipeline.errors import UnknownNameError
from pipeline.hardware.find_gpu import LOCAL, load_gpu_file
from pipeline.hardware.spec import GpuSpec, check_plausible, read_figures

_CLOCKED = ("sms", "boost_clock_mhz")

PROPORTIONAL_TO = {
    "base_clock_mhz": ("boost_clock_mhz",),
    "fp32_gflop_per_s": _CLOCKED,
    "tf32_gflop_per_s": _CLOCKED,
    "fp16_gflop_per_s": _CLOCKED,
    "bf16_gflop_per_s": _CLOCKED,
    "fp64_gflop_per_s": _CLOCKED,
    "fp64_tensor_gflop_per_s": _CLOCKED,
    "measured_fp32_gflop_per_s": ("fp32_gflop_per_s",),
    "measured_dram_gb_per_s": ("dram_gb_per_s",),
    "measured_l2_gb_per_s": _CLOCKED,
}
"""Figures that are proportional to other figures, which are the values. A figure stands before those that depend on it."""

TIME_INDEPENDENT = ("name", "aliases", "sources", "memory_bytes", "usable_memory_share", "base_clock_mhz")
"""Fields on which no time depends. Memory determines only what fits, and no formula uses the base clock."""


def catalogue_spec(name: str) -> GpuSpec | None:
    """The GPU of that name as its file states it; None for this machine and for names without a file."""
    try:
        stated = None if name == LOCAL else load_gpu_file(name)
    except UnknownNameError:
        return None
    return stated if stated is not None and stated.name == name else None


def proportional_factor(key: str, gpu: GpuSpec, stated: GpuSpec) -> float:
    """Factor from `stated` to `gpu` on a figure, from the figures that it is proportional to; exactly 1 if those are equal."""
    return float(np.prod([getattr(gpu, name) / getattr(stated, name) for name in PROPORTIONAL_TO.get(key, ())]))


def with_proportional_figures(gpu: GpuSpec, stated: GpuSpec) -> GpuSpec:
    """`gpu` with dependent figures scaled: those that equal `stated` but depend on an altered figure."""
    for key in PROPORTIONAL_TO:
        value, ratio = getattr(gpu, key), proportional_factor(key, gpu, stated)
        if value is not None and value == getattr(stated, key) and ratio != 1.0:
            gpu = replace(gpu, **{key: value * ratio})
    return gpu


def differing_figures(gpu: GpuSpec, stated: GpuSpec) -> frozenset[str]:
    """Figures that differ between two specs and on which times depend."""
    names = [entry.name for entry in fields(GpuSpec) if entry.name not in TIME_INDEPENDENT]
    return frozenset(name for name in names if getattr(gpu, name) != getattr(stated, name))


def time_factor_bounds(gpu: GpuSpec, stated: GpuSpec) -> tuple[float, float]:
    """Smallest and largest factor by which a call's time may change from `stated` to `gpu`.

    If all altered figures increase, no call may become slower; if all decrease, no call may become faster. The bounds
    are needed because trained models are not monotone in cache sizes and numbers of SMs. They are monotone in
    bandwidths, clock, throughput and power.
    """
    pairs = [(getattr(gpu, name), getattr(stated, name)) for name in differing_figures(gpu, stated)]
    if not all(isinstance(value, (int, float)) for pair in pairs for value in pair):
        return 0.0, np.inf
    more, less = (all(new > old for new, old in pairs), all(new < old for new, old in pairs))
    return (1.0 if less else 0.0), (1.0 if more else np.inf)


def composed_gpu(values: Mapping[str, Any]) -> tuple[GpuSpec, GpuSpec | None]:
    """The GPU that the `gpu` node of a composed configuration describes, and the catalogue's GPU of that name.

    Figures that depend on altered ones are already scaled.

    Raises:
        ConfigError: a key is missing or unknown, a figure is not a number or implausible.
    """
    gpu, stated = read_figures(values, "gpu"), catalogue_spec(str(values["name"]))
    if stated is not None:
        gpu = with_proportional_figures(gpu, stated)
    check_plausible(gpu, "gpu")
    return gpu, stated
