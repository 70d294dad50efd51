"""What depends on a GPU's generation: limits of its SMs, sustained shares of its peaks, and the kernels that libraries run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.yaml_text import load_yaml

TABLE = Path(__file__).with_name("architecture.yaml")
"""All figures by architecture and compute capability, with their meaning and sources."""

OTHER, CPU = "other", "cpu"
"""The row of a typical GPU, and the architecture of a CPU, which has it too."""


@dataclass(frozen=True)
class Architecture:
    """A row of `architecture.yaml`, which says what each field means."""

    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_memory_per_sm_bytes: int
    fp32_lanes_per_sm: int
    fp64_share: float
    schedulers_per_sm: int
    warp_size: int
    register_unit: int
    partitions: int
    shared_unit_bytes: int
    shared_reserved_bytes: int
    fp32_share: float
    watts_per_tflop: float
    pj_per_flop: float
    pj_per_byte: float
    dram_share: float
    tensor_share: float
    tensor_power: float
    tensor_cores: bool
    tf32: bool
    bf16: str
    energy_ratio: float
    fused_attention: str | None
    cublas_workspace_bytes: int
    recent_start: bool
    newer_convolutions: bool
    half_gathers: bool
    pascal_kernels: bool
    max_pooling: str
    tiles: tuple[str, ...]
    boxes: tuple[tuple[int, int, int], ...]
    product_tile: tuple[int, int]
    partial_sectors: bool
    sibling: str


@cache
def _rows() -> dict[str, Architecture]:
    rows: dict[str, dict[str, Any]] = load_yaml(TABLE.read_text(encoding="utf-8"))
    return {
        name: Architecture(**{key: _tuples(value) for key, value in {**rows[OTHER], **row}.items()})
        for name, row in rows.items()
    }


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@cache
def nvidia_names() -> dict[float, str]:
    """Name of NVIDIA's architecture by compute capability, ascending."""
    pairs = [name.split() for name in _rows() if name != OTHER]
    return {float(number): name for name, number in pairs if not name.startswith("cdna")}


def nearest_capability(capability: float) -> float:
    """The newest compute capability of the table up to this one, else the oldest."""
    known = [number for number in nvidia_names() if number <= capability]
    return max(known, default=min(nvidia_names()))


def stated_row(architecture: str, capability: float) -> Architecture | None:
    """The row of an architecture; None for one without (a CPU)."""
    if architecture == CPU:  # its figures are read without the table
        return None
    return _rows().get(f"{architecture} {capability:.1f}")


@cache
def architecture_row(architecture: str, capability: float) -> Architecture:
    """The row that counts for an architecture: its own, else that of the generation before it; `OTHER` for a CPU."""
    row = stated_row(architecture, capability)
    if row is not None or architecture == CPU:
        return row or _rows()[OTHER]
    nearest = nearest_capability(capability)
    return _rows()[f"{nvidia_names()[nearest]} {nearest:.1f}"]
