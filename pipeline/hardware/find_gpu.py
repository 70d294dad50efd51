"""Looks up GPUs: the shipped files under `config/gpu/` and the user's, the device of this machine, and GPUs with the same chip.

`gpu.dram_gb_per_s=2000` alters one figure of a GPU file. Figures that depend on it are scaled with it, so that the altered GPU
stays consistent: a measured peak is proportional to the figure of its datasheet, and throughputs to SMs and clock. A figure
that the user also states is not scaled.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import lru_cache
from math import inf, log, prod
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.architecture import architecture_row, nearest_capability, nvidia_names
from pipeline.hardware.spec import (
    DTYPES,
    MIB,
    PCIE_EFFICIENCY,
    PCIE_LANE_GB_PER_S,
    GpuSpec,
    check_plausible,
    read_figures,
)
from pipeline.paths import config_files, name_of_config, user_config_dir
from pipeline.yaml_text import read_mapping

LOCAL = "local"
"""Name of the device of this machine."""

NEAR_SMS = 1.25
"""Ratio of multiprocessors below which one GPU may stand for another of its architecture: cards of one chip differ so much."""
SLIP = 0.85
"""Likeness of two names (`difflib`) from which one is the other with a slip of typing."""

CPU_FLOP_PER_CLOCK = 32
"""fp32 operations per core and clock that are assumed for a CPU: one fused multiply-add on two 256-bit vectors."""
CPU_DRAM_GB_PER_S = 20.0
"""DRAM bandwidth in GB/s that is assumed for a CPU until `collect` measures it: about one DDR4-2666 channel."""
CPU_CLOCK_MHZ = 2500.0
"""Clock in MHz that is assumed for a CPU that does not state its clock."""


def load_gpu(name: str) -> GpuSpec:
    """The spec of a GPU by name, alias or path of a file; `local` is the device of this machine.

    Raises:
        UnknownNameError: no file has that name or alias; the message lists the names.
        ConfigError: a file is damaged or implausible.
    """
    return local_device() if name == LOCAL else load_gpu_file(name)


def load_gpu_file(name: str) -> GpuSpec:
    """The spec of a GPU by name or alias, ignoring case, from the GPU files (`paths.config_files`), or by path of a file.

    Raises:
        UnknownNameError: no file has that name or alias; the message names the nearest, and says how to add a GPU.
        ConfigError: a file is damaged or implausible.
    """
    name = name_of_config("gpu", name, _read_spec)
    specs, name_by_alias = _gpu_files()
    file_name = name_by_alias.get(_comparable_name(name))
    if file_name is None:
        near = nearest_name(name)
        nearest = f"did you mean {near!r}? " if near else ""
        raise UnknownNameError("GPU", name, [*specs, LOCAL], nearest, f"; {describe_gpu()}")
    return specs[file_name]


def describe_gpu() -> str:
    """How to name a GPU that has no file."""
    folder = user_config_dir()
    kept = f" or keep that file in {folder / 'gpu'}" if folder else ""
    return f"for another GPU give a file with its figures, gpu=FILE.yaml,{kept} (docs/extending.md)"


def is_known(name: str) -> bool:
    """Whether a GPU file has this name or alias."""
    return _comparable_name(name) in _gpu_files()[1]


def nearest_name(name: str) -> str:
    """The known GPU with the name or alias most like this one, best of its series (`RTX 40..`); empty where none is like it."""
    wanted, name_by_alias = _comparable_name(name), _gpu_files()[1]
    letters = len(wanted) - len(wanted.lstrip(ascii_lowercase))
    alike = get_close_matches(wanted, name_by_alias, n=20)
    alike = [a for n in (letters + 1, letters) for a in alike if a[:n] == wanted[:n]]
    alike += get_close_matches(wanted, name_by_alias, n=1, cutoff=SLIP)
    return name_by_alias[alike[0]] if alike else ""


def nearest_gpu(properties: Any, device: str) -> str | None:
    """The known GPU nearest to a device of a trace's `deviceProperties`: of its maker and compute capability, by multiprocessors
    and memory. Empty where none has about as many multiprocessors (`NEAR_SMS`); None where the figures are not stated.
    """
    listed = properties if isinstance(properties, list) else []
    stated = [each for each in listed if isinstance(each, dict)]
    own = min(stated, key=lambda each: str(each.get("name")) != device, default={})
    keys = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
    if not all(type(own.get(key)) is int and own[key] >= 0 for key in keys):
        return None
    major, minor, sms, memory = (own[key] for key in keys)
    warp, sms = own.get("warpSize"), max(sms, 1)
    alike = [
        spec
        for spec in list_gpus()
        if spec.compute_capability == float(f"{major}.{minor}")
        and (warp is None or spec.architecture.startswith("cdna") == (warp == 64))  # AMD has 64
        and 1 / NEAR_SMS < spec.sms / sms < NEAR_SMS
    ]

    def distance(spec: GpuSpec) -> float:
        return abs(log(spec.sms / sms)) + abs(log(spec.memory_bytes / max(memory, 1)))

    return min(alike, key=distance).name if alike else ""


def list_gpus() -> list[GpuSpec]:
    """Every GPU that has a file, by name."""
    return [spec for _, spec in sorted(_gpu_files()[0].items())]


def same_chip(a: GpuSpec, b: GpuSpec) -> bool:
    """Whether two GPUs have the same chip and number of SMs, so that the same kernels run in the same waves."""
    chips = [(gpu.architecture, gpu.compute_capability, gpu.sms) for gpu in (a, b)]
    return chips[0] == chips[1]


def same_chip_gpu(gpu: GpuSpec, measured: Iterable[str]) -> GpuSpec | None:
    """The measured GPU with the same chip and the nearest DRAM bandwidth, except the GPU itself; None without one.

    Example: the A100 with 40 GB for the A100 with 80 GB.
    """
    others = [spec for spec in map(load_gpu_file, measured) if spec.name != gpu.name]

    def distance(spec: GpuSpec) -> float:
        return abs(log(spec.dram_gb_per_s / gpu.dram_gb_per_s))

    return min((spec for spec in others if same_chip(spec, gpu)), key=distance, default=None)


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
    device_name = str(properties.name)
    read = f"read from the device {device_name}"
    try:
        listed = load_gpu_file(device_name)
    except UnknownNameError:
        return _unlisted_cuda_spec(properties, read)
    return replace(
        listed,
        name=LOCAL,
        aliases=(listed.name, device_name),
        memory_bytes=int(properties.total_memory),
        usable_memory_share=1.0,
        sources={**listed.sources, "memory_gib": read},
    )


def _unlisted_cuda_spec(properties: Any, read: str) -> GpuSpec:
    """Spec of a GPU without a file: SMs, clocks, bus and L2 from the driver; tensor-core rates from a similar GPU, scaled."""
    capability = nearest_capability(float(f"{properties.major}.{properties.minor}"))
    architecture = nvidia_names()[capability]
    row = architecture_row(architecture, capability)
    like = load_gpu_file(row.sibling)
    clock_khz = getattr(properties, "clock_rate", None)
    clock = clock_khz / 1e3 if clock_khz else like.boost_clock_mhz
    sms = int(properties.multi_processor_count)
    memory_khz, bus_bits = (
        getattr(properties, key, None) for key in ("memory_clock_rate", "memory_bus_width")
    )
    # memory transfers data twice per clock of the driver's memory clock, on the whole bus
    dram = 2 * memory_khz * bus_bits / 8 / 1e6 if memory_khz and bus_bits else like.dram_gb_per_s
    device = replace(
        like,
        name=LOCAL,
        aliases=(str(properties.name),),
        architecture=architecture,
        compute_capability=capability,
        sms=sms,
        l2_bytes=int(getattr(properties, "L2_cache_size", like.l2_bytes)),
        memory_bytes=int(properties.total_memory),
        usable_memory_share=1.0,
        boost_clock_mhz=clock,
        base_clock_mhz=clock,
        dram_gb_per_s=dram,
        fp32_gflop_per_s=2 * sms * row.fp32_lanes_per_sm * clock / 1e3,
        measured_fp32_gflop_per_s=None,
        measured_dram_gb_per_s=None,
        measured_l2_gb_per_s=None,
        sources=dict.fromkeys(("sms", "memory_gib", "boost_clock_mhz"), read)
        | {"fp16_tflop_per_s": f"scaled from {like.name} by SMs and clock"},
    )
    return with_proportional_figures(device, like)


def cpu_spec() -> GpuSpec:
    """The CPU as a device, with one "SM" per core and no separate memory, so that every stage runs without a GPU."""
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    cores = len(usable(0))
    cpu = Path("/sys/devices/system/cpu/cpu0")
    clock_khz = _number_in(cpu / "cpufreq/cpuinfo_max_freq")
    cache_kib = _number_in(cpu / "cache/index3/size")
    clock = clock_khz / 1e3 if clock_khz else CPU_CLOCK_MHZ
    flops = CPU_FLOP_PER_CLOCK * cores * clock / 1e3
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
        l2_bytes=int(cache_kib * 1024) if cache_kib else 8 * MIB,
        memory_bytes=_memory_bytes(),
        usable_memory_share=1.0,
        boost_clock_mhz=clock,
        base_clock_mhz=clock,
        dram_gb_per_s=CPU_DRAM_GB_PER_S,
        fp32_gflop_per_s=flops,
        tf32_gflop_per_s=None,
        fp16_gflop_per_s=flops,
        bf16_gflop_per_s=None,
        pcie_gb_per_s=PCIE_EFFICIENCY * PCIE_LANE_GB_PER_S[3] * 16,
        nvlink_gb_per_s=None,
        tdp_w=100.0,
        sources={
            "sms": "cores that this process may use",
            "boost_clock_mhz": "cpufreq" if clock_khz else "assumed",
            "dram_gb_per_s": "assumed",
            "fp32_tflop_per_s": "assumed",
        },
    )


def _number_in(path: Path) -> float | None:
    """The number in a file of the system, such as `33792K`; None where the system does not state it."""
    try:
        return float(path.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return None


def _memory_bytes() -> int:
    try:
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 8 << 30


def _gpu_files() -> tuple[dict[str, GpuSpec], dict[str, str]]:
    files = tuple(config_files("gpu").values())
    stamps = tuple(path.stat().st_mtime_ns for path in files if path.parent != files[0].parent)
    return _load_files(files, stamps)


@lru_cache(maxsize=4)
def _load_files(
    files: tuple[Path, ...], _stamps: tuple[int, ...]
) -> tuple[dict[str, GpuSpec], dict[str, str]]:
    """The specs of files by name, and these names by every name and alias (`_comparable_name`).

    Names count before aliases, and aliases of a user's files, which are last, before those of shipped ones. `_stamps`
    tell an edited file of the user from the file before.
    """
    specs = {path.stem: _read_spec(path) for path in files}
    name_by_alias = {_comparable_name(name): name for name in specs}
    for path in sorted(files, key=lambda path: path.parent == files[0].parent):
        spec = specs[path.stem]
        for alias in (spec.name, *spec.aliases):
            other = name_by_alias.setdefault(_comparable_name(alias), spec.name)
            if other != spec.name and path.with_stem(other) in files:
                remedy = "give every GPU its own name and aliases"
                raise ConfigError(f"{path}: {alias!r} is also a name of {other}; {remedy}")
    return specs, name_by_alias


def _read_spec(path: Path) -> GpuSpec:
    spec = GpuSpec.from_mapping(read_mapping(path, "figures"), str(path))
    if spec.name == LOCAL:
        raise ConfigError(
            f"{path}: {LOCAL} is the name of this machine's device; call the file and the GPU"
            " otherwise"
        )
    if spec.name != path.stem:
        raise ConfigError(
            f"{path}: name is {spec.name!r}, expected {path.stem!r}, the name of the file"
        )
    return spec


def _comparable_name(name: str) -> str:
    """Name to compare, without case, vendor prefix, blanks and dashes: `NVIDIA A100-PCIE-40GB` is `a100pcie40gb`."""
    folded = str(name).lower()
    for prefix in ("nvidia", "tesla", "geforce", "quadro"):
        folded = folded.replace(prefix, "")
    return "".join(character for character in folded if character.isalnum())


_CLOCKED = ("sms", "boost_clock_mhz")

PROPORTIONAL_TO = {
    "base_clock_mhz": ("boost_clock_mhz",),
    **{f"{dtype}_gflop_per_s": _CLOCKED for dtype in DTYPES},
    **{f"measured_{key}_per_s": (f"{key}_per_s",) for key in ("fp32_gflop", "dram_gb")},
    "measured_l2_gb_per_s": _CLOCKED,
}
"""Figures that are proportional to other figures, which are the values. A figure stands before those that depend on it."""

TIME_INDEPENDENT = (
    "name", "aliases", "sources", "memory_bytes", "usable_memory_share", "base_clock_mhz",
    "idle_w", "min_power_limit_w", "max_power_limit_w", "power_limit_w", "locked_clock_mhz",
)  # fmt: skip
"""Fields on which no kernel model depends: limits of power slow predicted times afterwards (`pipeline/hardware/power.py`)."""


def catalogue_spec(name: str) -> GpuSpec | None:
    """The GPU of that name as its file states it; None for this machine and for names without a file."""
    try:
        stated = None if name == LOCAL else load_gpu_file(name)
    except UnknownNameError:
        return None
    return stated if stated is not None and stated.name == name else None


def proportional_factor(key: str, gpu: GpuSpec, stated: GpuSpec) -> float:
    """Factor from `stated` to `gpu` on a figure, from the figures that it is proportional to; exactly 1 if those are equal."""
    names = PROPORTIONAL_TO.get(key, ())
    return float(prod(getattr(gpu, name) / getattr(stated, name) for name in names))


def with_proportional_figures(gpu: GpuSpec, stated: GpuSpec) -> GpuSpec:
    """`gpu` with dependent figures scaled: those that equal `stated` but depend on an altered figure."""
    for key in PROPORTIONAL_TO:
        value, ratio = getattr(gpu, key), proportional_factor(key, gpu, stated)
        if value is not None and value == getattr(stated, key) and ratio != 1.0:
            gpu = replace(gpu, **{key: value * ratio})
    return gpu


def differing_figures(gpu: GpuSpec, stated: GpuSpec) -> frozenset[str]:
    """Figures that differ between two specs and on which times depend."""
    names = {entry.name for entry in fields(GpuSpec)}.difference(TIME_INDEPENDENT)
    return frozenset(name for name in names if getattr(gpu, name) != getattr(stated, name))


def time_factor_bounds(gpu: GpuSpec, stated: GpuSpec) -> tuple[float, float]:
    """Smallest and largest factor by which a call's time may change from `stated` to `gpu`.

    If all altered figures increase, no call may become slower; if all decrease, no call may become faster. The bounds
    are needed because trained models are not monotone in cache sizes and numbers of SMs. They are monotone in
    bandwidths, clock, throughput and power.
    """
    names = differing_figures(gpu, stated)
    pairs = [(getattr(gpu, name), getattr(stated, name)) for name in names]
    if not all(isinstance(value, (int, float)) for pair in pairs for value in pair):
        return 0.0, inf
    more, less = all(new > old for new, old in pairs), all(new < old for new, old in pairs)
    return float(less), 1.0 if more else inf


def composed_gpu(values: Mapping[str, Any]) -> tuple[GpuSpec, GpuSpec | None]:
    """The GPU that the `gpu` node of a composed configuration describes, dependent figures scaled, and the one of its file.

    Raises:
        ConfigError: a key is missing or unknown, a figure is not a number or implausible.
    """
    gpu, stated = read_figures(values, "gpu"), catalogue_spec(str(values["name"]))
    if stated is not None:
        gpu = with_proportional_figures(gpu, stated)
    check_plausible(gpu, "gpu")
    return gpu, stated
