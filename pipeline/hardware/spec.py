"""GPU specifications: one YAML file per GPU under `config/gpu/`, converted to one set of units on load.

A file holds datasheet figures and measured peaks, each with its source (`sources`, by key). The keys name the units. On
load, tera becomes giga, MiB becomes bytes, and a PCIe generation becomes an effective bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.errors import ConfigError
from pipeline.hardware.architecture import Architecture, architecture_row, stated_row

MIB, GIB = 1 << 20, 1 << 30

PCIE_LANE_GB_PER_S = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""Raw bandwidth in GB/s of one PCIe lane and direction by generation, after line coding (PCI-SIG base specs)."""

PCIE_EFFICIENCY = 0.78
"""Share of the raw PCIe bandwidth that large pinned copies reach, after packet headers and flow control.

It gives about 12.3 GB/s on generation 3 x16, where `bandwidthTest` shows 12 to 13 GB/s."""

# Ratios of measured to datasheet peaks: medians over the GPU files that hold both (tests/hardware checks that).
FP32_DERATE = 0.89
"""Measured over datasheet fp32 throughput, median of the five GPUs of Lin et al."""
DRAM_DERATE = 0.80
"""Measured over datasheet DRAM bandwidth, median of the same five GPUs."""
L2_BYTES_PER_SM_CLOCK = 21.8
"""Measured L2 bandwidth over SMs x boost clock, in bytes per SM and clock, median of the same five GPUs.

It is used for GPUs without a measurement, because no datasheet states L2 bandwidth."""

USABLE_SHARE = 0.987
"""Share of a GPU's memory that PyTorch can use: median of what out-of-memory messages call the capacity of V100, A30, A100 (40
and 80 GB), H100, RTX 2080 Ti, 3090 and 5090 (0.976 to 0.992). Files of GPUs that store check bits in the same memory state
theirs."""
TIGHT_SHARE = 0.9
"""Share of the usable memory above which a step fits only tightly. Where memory is scarce, the segments of PyTorch's allocator
take 0 to 7 % more than the tensors in ten of twelve simulated steps, and 16 and 19 % in two; cuDNN's workspaces come on top."""

LEAST_LIMIT = 0.4
"""The least power limit over the design power, of a board whose file does not state it: between 0.2 and 0.86 where files do."""
LEAST_CLOCK = 0.12
"""The lowest clock of a GPU over its boost clock: 135 to 210 MHz are listed for data-centre cards."""


@dataclass(frozen=True)
class OperatingPoint:
    """How a GPU is run: the clock of its SMs in MHz, and the power in W that its board may take."""

    clock_mhz: float
    power_limit_w: float


@dataclass(frozen=True)
class GpuSpec:
    """One GPU: datasheet figures, per-SM limits, and measured peaks where available.

    Bandwidths are GB/s (1e9 bytes), throughputs GFLOP/s, sizes bytes, clocks MHz, power watts. Throughputs of tensor
    cores are dense (no sparsity) with fp32 accumulation. `pcie_gb_per_s` and `nvlink_gb_per_s` count one direction;
    PCIe is effective, NVLink raw. Measured peaks are None where there is no measurement. `idle_w` is the board's power with the
    clocks up and next to no work. `power_limit_w` and `locked_clock_mhz` are how the card is run where that differs from its file.
    `in_step`: kernels follow each other, so that a small power limit binds in short ones, too (`sustained.throttled_us`).
    """

    name: str
    architecture: str
    compute_capability: float
    sms: int
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_memory_per_sm_bytes: int
    l2_bytes: int
    memory_bytes: int
    boost_clock_mhz: float
    base_clock_mhz: float
    dram_gb_per_s: float
    fp32_gflop_per_s: float
    tf32_gflop_per_s: float | None
    fp16_gflop_per_s: float
    bf16_gflop_per_s: float | None
    pcie_gb_per_s: float
    nvlink_gb_per_s: float | None
    tdp_w: float
    idle_w: float | None = None
    min_power_limit_w: float | None = None
    max_power_limit_w: float | None = None
    power_limit_w: float | None = None
    locked_clock_mhz: float | None = None
    in_step: bool = False
    aliases: tuple[str, ...] = ()
    usable_memory_share: float = USABLE_SHARE
    fp64_gflop_per_s: float | None = None
    fp64_tensor_gflop_per_s: float | None = None
    measured_fp32_gflop_per_s: float | None = None
    measured_dram_gb_per_s: float | None = None
    measured_l2_gb_per_s: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    @property
    def operating_point(self) -> OperatingPoint:
        """How the GPU is run: at its boost clock, within its design power. All times come from this, not from the file."""
        return OperatingPoint(self.boost_clock_mhz, self.tdp_w)

    @property
    def clock_mhz(self) -> float:
        """The clock of the operating point, MHz."""
        return self.operating_point.clock_mhz

    @property
    def run_at(self) -> str:
        """Which option says how the card is run, if it is not as its file states; else an empty text."""
        asked = zip(RUN_AT, (self.power_limit_w, self.locked_clock_mhz), strict=True)
        return next((name for name, value in asked if value is not None), "")

    @property
    def unlimited(self) -> GpuSpec:
        """The card under its own limit and with no clock locked, for which kernels are modelled."""
        return replace(self, power_limit_w=None, locked_clock_mhz=None) if self.run_at else self

    @property
    def power_limits_w(self) -> tuple[float, float]:
        """The least and the largest power limit in W that the board takes; `LEAST_LIMIT` of its design power where not stated."""
        least = self.min_power_limit_w or LEAST_LIMIT * self.tdp_w
        return least, self.max_power_limit_w or self.tdp_w

    @property
    def generation(self) -> Architecture:
        """What depends on the GPU's generation; a CPU and unlisted architectures have a row that stands for them."""
        return architecture_row(self.architecture, self.compute_capability)

    @property
    def limits(self) -> Architecture | None:
        """Allocation units and lanes of the architecture; None for an architecture without a table row (a CPU)."""
        return stated_row(self.architecture, self.compute_capability)

    @property
    def sm_limits(self) -> Architecture:
        """Limits of one SM: those of the architecture, replaced by those that the GPU file states."""
        return replace(self.generation, **{key: getattr(self, key) for key in _PER_SM})

    @property
    def usable_memory_bytes(self) -> int:
        """Memory that is left for PyTorch by the driver and by check bits (ECC)."""
        return int(self.usable_memory_share * self.memory_bytes)

    @property
    def tight_memory_bytes(self) -> int:
        """The memory need above which a step fits only tightly."""
        return int(TIGHT_SHARE * self.usable_memory_bytes)

    @property
    def fp64_share(self) -> float:
        """The rate of fp64 over that of fp32 by architecture, for a GPU whose file does not state it; 1/2 for a CPU."""
        return self.limits.fp64_share if self.limits else 0.5

    @property
    def notes(self) -> tuple[str, ...]:
        """What an answer about this GPU must say: a user's file may lack sources."""
        return (
            ()
            if self.sources
            else (f"the figures of {self.name} have no source: its file has no `sources`",)
        )

    def peak_gflop_per_s(self, dtype: str = "fp32") -> float:
        """Attainable matrix throughput of a dtype, GFLOP/s: measured, else the datasheet's times `FP32_DERATE`.

        A dtype without hardware of its own runs at the fp32 rate. `fp64_tensor` is the rate of matrix products in fp64.
        """
        if dtype in ("fp64", "fp64_tensor"):
            tensor = self.fp64_tensor_gflop_per_s if dtype == "fp64_tensor" else None
            return FP32_DERATE * (
                tensor or self.fp64_gflop_per_s or self.fp64_share * self.fp32_gflop_per_s
            )
        if dtype in ("fp16", "bf16", "tf32"):
            datasheet = getattr(self, f"{dtype}_gflop_per_s")
            return self.peak_gflop_per_s() if datasheet is None else FP32_DERATE * float(datasheet)
        return self.measured_fp32_gflop_per_s or FP32_DERATE * self.fp32_gflop_per_s

    def datasheet_gflop_per_s(self, dtype: str) -> float:
        """The datasheet's throughput of products in a dtype, GFLOP/s; that of fp32 for one without hardware of its own."""
        if dtype == "fp64":
            return (
                self.fp64_tensor_gflop_per_s
                or self.fp64_gflop_per_s
                or self.fp64_share * self.fp32_gflop_per_s
            )
        return getattr(self, f"{dtype}_gflop_per_s", None) or self.fp32_gflop_per_s

    def peak_dram_gb_per_s(self) -> float:
        """Attainable DRAM bandwidth, GB/s: measured, else the datasheet's times `DRAM_DERATE`."""
        return self.measured_dram_gb_per_s or DRAM_DERATE * self.dram_gb_per_s

    def peak_l2_gb_per_s(self) -> float:
        """Attainable L2 bandwidth, GB/s: measured, else from SMs and clock."""
        return self.measured_l2_gb_per_s or L2_BYTES_PER_SM_CLOCK * self.sms * self.clock_mhz / 1e3

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str = "GPU specification") -> GpuSpec:
        """Build a spec from the keys of a GPU file.

        Args:
            values: figures by key.
            where: origin of the figures, for error messages.

        Raises:
            ConfigError: a key is missing or unknown, a figure is not a number or implausible.
        """
        spec = read_figures(values, where)
        check_plausible(spec, where)
        return spec


_REQUIRED = (
    "name", "architecture", "compute_capability", "sms", "l2_mib", "memory_gib", "boost_clock_mhz",
    "dram_gb_per_s", "fp32_tflop_per_s", "fp16_tflop_per_s", "pcie_generation", "tdp_w",
)  # fmt: skip
_PER_SM = (
    "max_threads_per_sm", "max_warps_per_sm", "max_blocks_per_sm", "registers_per_sm",
    "shared_memory_per_sm_bytes",
)  # fmt: skip
RUN_AT = ("power_limit_w", "clock_mhz")
"""Keys of how a card is run: options of every GPU, whether or not its file states them."""
_TEXTS = ("name", "architecture", "aliases", "sources")
"""Keys whose values are no numbers."""
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp64", "fp64_tensor")
"""Rates of arithmetic that a file may state."""
_UNCHANGED = (
    "boost_clock_mhz", "dram_gb_per_s", "tdp_w", "idle_w", "min_power_limit_w", "max_power_limit_w",
    "power_limit_w", "measured_fp32_gflop_per_s", "measured_dram_gb_per_s", "measured_l2_gb_per_s",
)  # fmt: skip
"""Keys that are fields of `GpuSpec`, in its units."""
_CONVERTED = {
    **{key: (key, 1.0) for key in _UNCHANGED},
    "clock_mhz": ("locked_clock_mhz", 1.0),
    **{f"{dtype}_tflop_per_s": (f"{dtype}_gflop_per_s", 1e3) for dtype in DTYPES},
    "nvlink_bidirectional_gb_per_s": ("nvlink_gb_per_s", 0.5),
}
"""Keys of a file with the field of `GpuSpec` and the factor to its unit; a key without a value is None."""
_KNOWN = {
    *_REQUIRED, *_TEXTS, *_PER_SM, *_CONVERTED, "base_clock_mhz", "usable_memory_share",
    "pcie_lanes",
}  # fmt: skip


def is_known_key(key: str) -> bool:
    """Whether a GPU file may hold this key."""
    return key in _KNOWN


def read_figures(values: Mapping[str, Any], where: str) -> GpuSpec:
    """Convert the figures of a GPU file to this project's units, without a check of plausibility.

    Raises:
        ConfigError: a key is missing or unknown, or a figure is not a number.
    """
    try:
        return _read_figures(values, where)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{where}: {error}") from None


def _read_figures(values: Mapping[str, Any], where: str) -> GpuSpec:
    if missing := [key for key in _REQUIRED if values.get(key) is None]:
        raise ConfigError(f"{where}: {', '.join(missing)} is missing")
    if unknown := [str(key) for key in values if not is_known_key(key)]:
        raise ConfigError(f"{where}: unknown key {', '.join(map(repr, unknown))}")
    numbers: dict[str, float] = {}
    for key in (key for key, value in values.items() if key not in _TEXTS and value is not None):
        try:
            numbers[key] = float(values[key])
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: {key}={values[key]!r} is no number") from None
    architecture, capability = str(values["architecture"]), numbers["compute_capability"]
    limits = stated_row(architecture, capability)
    per_sm: dict[str, Any] = {key: numbers.get(key, getattr(limits, key, None)) for key in _PER_SM}
    if without := [key for key, value in per_sm.items() if value is None]:
        raise ConfigError(
            f"{where}: unknown architecture {architecture} {capability}: state"
            f" {', '.join(without)}, or add a row to pipeline/hardware/architecture.yaml"
        )
    generation, generations = numbers["pcie_generation"], sorted(PCIE_LANE_GB_PER_S)
    if generation not in generations:
        raise ConfigError(
            f"{where}: pcie_generation {generation:g} is unknown: choose one of {generations}"
        )
    aliases, sources = values.get("aliases") or [], values.get("sources") or {}
    if not isinstance(aliases, (list, tuple)):
        raise ConfigError(f"{where}: aliases must be a list of names")
    if not isinstance(sources, Mapping):
        raise ConfigError(f"{where}: sources must map figures to texts")
    figures: dict[str, Any] = {
        field_name: factor * numbers[key] if key in numbers else None
        for key, (field_name, factor) in _CONVERTED.items()
    }
    figures |= {key: int(value) for key, value in per_sm.items()}
    lanes = int(numbers.get("pcie_lanes", 16))
    return GpuSpec(
        name=str(values["name"]),
        aliases=tuple(map(str, aliases)),
        architecture=architecture,
        compute_capability=capability,
        sms=int(numbers["sms"]),
        l2_bytes=int(numbers["l2_mib"] * MIB),
        memory_bytes=int(numbers["memory_gib"] * GIB),
        usable_memory_share=numbers.get("usable_memory_share", USABLE_SHARE),
        base_clock_mhz=numbers.get("base_clock_mhz", numbers["boost_clock_mhz"]),
        pcie_gb_per_s=PCIE_EFFICIENCY * PCIE_LANE_GB_PER_S[int(generation)] * lanes,
        **figures,
        sources={str(key): str(text) for key, text in sources.items()},
    )


def check_plausible(spec: GpuSpec, where: str) -> None:
    """Refuse figures that contradict each other or that no GPU has. A wrong unit causes such figures.

    Raises:
        ConfigError: a figure is implausible; the message names the figure and its plausible range.
    """
    plain, dram, boost = spec.fp32_gflop_per_s / 1e3, spec.dram_gb_per_s, spec.boost_clock_mhz
    fields = {key: (getattr(spec, name), factor) for key, (name, factor) in _CONVERTED.items()}
    stated = {key: value / factor for key, (value, factor) in fields.items() if value is not None}
    stated |= {
        "sms": spec.sms,
        "l2_mib": spec.l2_bytes / MIB,
        "memory_gib": spec.memory_bytes / GIB,
        "usable_memory_share": spec.usable_memory_share,
        "base_clock_mhz": spec.base_clock_mhz,
    }
    ranges: dict[str, tuple[float, float]] = {
        "sms": (1, 512),
        "l2_mib": (0.25, 512),
        "memory_gib": (1, 1024),
        "usable_memory_share": (0.5, 1),
        "boost_clock_mhz": (300, 4000),
        "base_clock_mhz": (100, boost),
        "dram_gb_per_s": (20, 30000),
        "tdp_w": (15, 3000),
    }
    if spec.limits is not None:
        clocked = 2 * spec.sms * spec.limits.fp32_lanes_per_sm * boost / 1e6
        ranges["fp32_tflop_per_s"] = (0.85 * clocked, 1.15 * clocked)
    ranges |= {
        # boards of one name differ in boost clock by up to about 10 %, so a measured peak may exceed the datasheet a little
        "measured_fp32_gflop_per_s": (400 * plain, 1150 * plain),
        "measured_dram_gb_per_s": (0.4 * dram, 1.15 * dram),
        "nvlink_bidirectional_gb_per_s": (25, 10_000),
        "measured_l2_gb_per_s": (0.5 * dram, 20 * dram),
        "idle_w": (0.05 * spec.tdp_w, 0.6 * spec.tdp_w),
        "min_power_limit_w": (0.1 * spec.tdp_w, spec.tdp_w),
        "max_power_limit_w": (spec.tdp_w, 2 * spec.tdp_w),
        "power_limit_w": spec.power_limits_w,
        "clock_mhz": (LEAST_CLOCK * boost, boost),
        **dict.fromkeys(
            ("fp16_tflop_per_s", "bf16_tflop_per_s", "tf32_tflop_per_s"), (0.5 * plain, 64 * plain)
        ),
        "fp64_tflop_per_s": (plain / 128, 1.15 * plain),
        "fp64_tensor_tflop_per_s": (plain / 128, 2.3 * plain),
    }
    for key, (low, high) in ranges.items():
        value = stated.get(key)
        if value is None or low <= value <= high:
            continue
        if key in RUN_AT:
            raise ConfigError(f"{where}.{key}={value:g}: {spec.name} takes {low:g} to {high:g}")
        raise ConfigError(
            f"{where}: {key} = {value:g} is implausible, expected {low:g} to {high:g}"
        )


def has_tf32(gpu: GpuSpec) -> bool:
    """Whether products may run in TF32 on this GPU; otherwise they run in fp32."""
    return gpu.generation.tf32


def has_bf16(gpu: GpuSpec) -> bool:
    """Whether this GPU computes in bf16; a CPU counts as one, because it takes other paths than CUDA.

    On other GPUs tensors hold 2 bytes and arithmetic is fp32 (`torch.cuda.is_bf16_supported(including_emulation=True)`).
    cuDNN is not used for convolutions and recurrent layers there (ATen/cuda/detail/CUDAHooks.cpp).
    """
    return gpu.generation.bf16 == "native"


def refuses_bf16(gpu: GpuSpec) -> bool:
    """Whether PyTorch raises an error for matrix products in bf16 on this GPU."""
    return gpu.generation.bf16 == "refused"
