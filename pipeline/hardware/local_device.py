"""The device of this machine as a `GpuSpec` named `local`: its CUDA GPU, or the CPU where there is none."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import UnknownNameError
from pipeline.hardware.architectures import ARCHITECTURE_NAMES, ARCHITECTURES
from pipeline.hardware.spec import MIB, PCIE_EFFICIENCY, PCIE_LANE_GB_PER_S, GpuSpec, load_gpu_file

LOCAL = "local"

CPU_FLOP_PER_CLOCK = 32
"""fp32 operations per core and clock that are assumed for a CPU: one fused multiply-add on two 256-bit vectors."""
CPU_DRAM_GB_PER_S = 20.0
"""DRAM bandwidth in GB/s that is assumed for a CPU until `collect` measures it: about one DDR4-2666 channel."""
CPU_CLOCK_MHZ = 2500.0
"""Clock in MHz that is assumed for a CPU that does not state its clock."""


@lru_cache(maxsize=1)
def local_device() -> GpuSpec:
    """Describe the first CUDA device, or the CPU where there is none.

    A CUDA device is described from its GPU file if its name is known, otherwise from its properties. `sources` states
    which figures are read from the device and which are assumed. `collect` measures the peaks.
    """
    try:
        import torch
    except ImportError:
        return cpu_spec()
    if not torch.cuda.is_available():
        return cpu_spec()
    return cuda_spec(torch.cuda.get_device_properties(0))


def cuda_spec(properties: Any) -> GpuSpec:
    """Spec of a CUDA device from `torch.cuda.get_device_properties`."""
    memory = int(properties.total_memory)
    read = f"read from the device {properties.name}"
    try:
        known = load_gpu_file(str(properties.name))
    except UnknownNameError:
        return _unlisted_cuda_spec(properties, memory, read)
    return replace(
        known,
        name=LOCAL,
        aliases=(known.name, str(properties.name)),
        memory_bytes=memory,
        sources={**known.sources, "memory_gib": read},
    )


def _unlisted_cuda_spec(properties: Any, memory: int, read: str) -> GpuSpec:
    """Spec of a GPU without a file: SMs, clocks, bus and L2 from the driver; tensor-core rates from a similar GPU, scaled."""
    capability = float(f"{properties.major}.{properties.minor}")
    listed = max((c for c in ARCHITECTURE_NAMES if c <= capability), default=min(ARCHITECTURE_NAMES))
    limits = ARCHITECTURES[ARCHITECTURE_NAMES[listed], listed]
    sibling = {6.0: "P100", 6.1: "P4", 7.0: "V100", 7.5: "T4", 8.0: "A100", 8.6: "A10", 8.9: "L4", 9.0: "H100"}
    like = load_gpu_file(sibling.get(listed, "B200"))
    clock_khz = getattr(properties, "clock_rate", None)
    clock = clock_khz / 1e3 if clock_khz else like.boost_clock_mhz
    sms = int(properties.multi_processor_count)
    memory_khz, bus_bits = (getattr(properties, key, None) for key in ("memory_clock_rate", "memory_bus_width"))
    # memory transfers data twice per clock of the driver's memory clock, on the whole bus
    dram = 2 * memory_khz * bus_bits / 8 / 1e6 if memory_khz and bus_bits else like.dram_gb_per_s
    scale = sms * clock / (like.sms * like.boost_clock_mhz)
    guess = f"scaled from {like.name} by SMs and clock"
    return replace(
        like,
        name=LOCAL,
        aliases=(str(properties.name),),
        architecture=ARCHITECTURE_NAMES[listed],
        compute_capability=listed,
        sms=sms,
        l2_bytes=int(getattr(properties, "L2_cache_size", like.l2_bytes)),
        memory_bytes=memory,
        boost_clock_mhz=clock,
        base_clock_mhz=clock,
        dram_gb_per_s=dram,
        fp32_gflop_per_s=2 * sms * limits.fp32_lanes_per_sm * clock / 1e3,
        tf32_gflop_per_s=None if like.tf32_gflop_per_s is None else scale * like.tf32_gflop_per_s,
        fp16_gflop_per_s=scale * like.fp16_gflop_per_s,
        bf16_gflop_per_s=None if like.bf16_gflop_per_s is None else scale * like.bf16_gflop_per_s,
        measured_fp32_gflop_per_s=None,
        measured_dram_gb_per_s=None,
        measured_l2_gb_per_s=None,
        sources={"sms": read, "memory_gib": read, "boost_clock_mhz": read, "fp16_tflop_per_s": guess},
    )


def cpu_spec() -> GpuSpec:
    """The CPU as a device, with one "SM" per core and no separate memory, so that every stage runs without a GPU."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    clock, clock_source = _cpu_clock_mhz()
    flops = CPU_FLOP_PER_CLOCK * cores * clock / 1e3
    link = PCIE_EFFICIENCY * PCIE_LANE_GB_PER_S[3] * 16
    assumed = "assumed"
    return GpuSpec(
        name=LOCAL,
        aliases=("cpu", platform.processor() or platform.machine()),
        architecture="cpu",
        compute_capability=0.0,
        sms=cores,
        max_threads_per_sm=1,
        max_warps_per_sm=1,
        max_blocks_per_sm=1,
        registers_per_sm=32,
        shared_memory_per_sm_bytes=32 * 1024,
        l2_bytes=_cpu_cache_bytes(),
        memory_bytes=_memory_bytes(),
        boost_clock_mhz=clock,
        base_clock_mhz=clock,
        dram_gb_per_s=CPU_DRAM_GB_PER_S,
        fp32_gflop_per_s=flops,
        tf32_gflop_per_s=None,
        fp16_gflop_per_s=flops,
        bf16_gflop_per_s=None,
        pcie_gb_per_s=link,
        nvlink_gb_per_s=None,
        tdp_w=100.0,
        sources={
            "sms": "cores that this process may use",
            "boost_clock_mhz": clock_source,
            "dram_gb_per_s": assumed,
            "fp32_tflop_per_s": assumed,
        },
    )


def _cpu_clock_mhz() -> tuple[float, str]:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    try:
        return float(path.read_text()) / 1e3, "cpufreq"
    except (OSError, ValueError):
        return CPU_CLOCK_MHZ, "assumed"


def _cpu_cache_bytes() -> int:
    """Size in bytes of the last-level cache, the CPU's counterpart of L2; 8 MiB where the system does not state it."""
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 8 * MIB


def _memory_bytes() -> int:
    try:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 8 << 30
