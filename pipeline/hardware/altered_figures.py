"""What-ifs on a GPU's figures: which figures follow an altered one, and which differ from the catalogue's card.

`gpu.dram_gb_per_s=2000` alters one figure of a file that states others beside it. Those that hang on it move along, so
that the altered card is as consistent as the real one: a measured peak with its datasheet's figure, throughputs with SMs
and clock. A figure that is stated itself stays as stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from pipeline.errors import UnknownNameError
from pipeline.hardware.local_device import LOCAL
from pipeline.hardware.spec import GpuSpec, check_plausible, load_gpu_file, read_figures

_CLOCKED = ("sms", "boost_clock_mhz")

FOLLOWS = {
    "base_clock_mhz": ("boost_clock_mhz",),
    "fp32_gflop_per_s": _CLOCKED,
    "tf32_gflop_per_s": _CLOCKED,
    "fp16_gflop_per_s": _CLOCKED,
    "bf16_gflop_per_s": _CLOCKED,
    "measured_fp32_gflop_per_s": ("fp32_gflop_per_s",),
    "measured_dram_gb_per_s": ("dram_gb_per_s",),
    "measured_l2_gb_per_s": _CLOCKED,
}
"""Figures that are proportional to others, and to which; one that is followed itself stands above its follower."""

TIMELESS = ("name", "aliases", "sources", "memory_bytes", "base_clock_mhz")
"""Fields that no time depends on: memory decides what fits, and no formula reads the base clock."""


def catalogue(name: str) -> GpuSpec | None:
    """The GPU of that name as its file states it; None for this machine and for names without a file."""
    try:
        card = None if name == LOCAL else load_gpu_file(name)
    except UnknownNameError:
        return None
    return card if card is not None and card.name == name else None


def following_ratio(key: str, gpu: GpuSpec, card: GpuSpec) -> float:
    """By what a figure grows from `card` to `gpu` with those that it follows; exactly 1 where they are the same."""
    return float(np.prod([getattr(gpu, name) / getattr(card, name) for name in FOLLOWS.get(key, ())]))


def following(gpu: GpuSpec, card: GpuSpec) -> GpuSpec:
    """`gpu` with figures that are still those of `card` moved along with altered ones that they follow."""
    for key in FOLLOWS:
        value, ratio = getattr(gpu, key), following_ratio(key, gpu, card)
        if value is not None and value == getattr(card, key) and ratio != 1.0:
            gpu = replace(gpu, **{key: value * ratio})
    return gpu


def differing(gpu: GpuSpec, card: GpuSpec) -> frozenset[str]:
    """Figures that times depend on and that differ between two specs."""
    names = [entry.name for entry in fields(GpuSpec) if entry.name not in TIMELESS]
    return frozenset(name for name in names if getattr(gpu, name) != getattr(card, name))


def bounds(gpu: GpuSpec, card: GpuSpec) -> tuple[float, float]:
    """Least and most that a call's time may change by: a card with more of every altered figure slows no call.

    Trained models are monotone in bandwidths, clock, throughput and power, but not in sizes of caches and numbers of SMs.
    """
    pairs = [(getattr(gpu, name), getattr(card, name)) for name in differing(gpu, card)]
    if not all(isinstance(value, (int, float)) for pair in pairs for value in pair):
        return 0.0, np.inf
    more, less = (all(new > old for new, old in pairs), all(new < old for new, old in pairs))
    return (1.0 if less else 0.0), (1.0 if more else np.inf)


def composed_gpu(values: Mapping[str, Any]) -> tuple[GpuSpec, GpuSpec | None]:
    """The GPU that the `gpu` node of a composed configuration describes, and the catalogue's card of that name.

    Figures that hang on altered ones have followed.

    Raises:
        ConfigError: a key is missing or unknown, a figure is no number or implausible.
    """
    gpu, card = read_figures(values, "gpu"), catalogue(str(values["name"]))
    if card is not None:
        gpu = following(gpu, card)
    check_plausible(gpu, "gpu")
    return gpu, card


def is_altered(values: Mapping[str, Any]) -> bool:
    """Whether the `gpu` node of a composed configuration is a what-if that times depend on.

    Raises:
        ConfigError: a figure is implausible.
    """
    if catalogue(str(values["name"])) is None:
        return False
    gpu, card = composed_gpu(values)
    return card is not None and bool(differing(gpu, card))
