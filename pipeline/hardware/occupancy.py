"""Limits of the SMs of each GPU architecture, and how many thread blocks an SM holds at once.

Sources of the limits, by compute capability:
- NVIDIA: CUDA C Programming Guide, "Technical Specifications per Compute Capability" and "Arithmetic Instructions".
- Allocation units and partitions: the occupancy calculator of the CUDA toolkit (cuda_occupancy.h).
- CDNA2 and CDNA3: AMD "CDNA 2" and "CDNA 3" whitepapers and the ISA guides of MI200 and MI300.

A GPU file may override any of the first five limits. The arithmetic of resident blocks is that of NVIDIA's occupancy
calculator, vectorised. Registers are allocated to warps, each within one partition of the SM. A block of two warps
therefore takes the registers of two warps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

TYPICAL_REGISTERS = 32.0
"""Registers per thread that are assumed where a table does not state them; element-wise PyTorch kernels take 16 to 40.

Matrix kernels take more (those of 128 x 128 tiles over 100). Their resident blocks, and the blocks per wave, are
therefore overestimated, on origin and destination alike."""


@dataclass(frozen=True)
class Architecture:
    """Limits of one streaming multiprocessor (or compute unit).

    Attributes:
        max_threads_per_sm: resident threads.
        max_warps_per_sm: resident warps of `warp_size` threads.
        max_blocks_per_sm: resident thread blocks.
        registers_per_sm: 32-bit registers.
        shared_memory_per_sm_bytes: largest shared-memory carve-out, bytes.
        fp32_lanes_per_sm: fp32 fused multiply-adds per clock.
        fp64_share: fp64 fused multiply-adds per clock, as a share of those in fp32.
        schedulers_per_sm: warp instructions issued per clock (one per scheduler).
        warp_size: threads per warp.
        register_unit: registers are allocated per warp in multiples of this number.
        partitions: partitions of the SM with separate registers; a warp takes its registers from one of them.
        shared_unit_bytes: shared memory is allocated in multiples of this number of bytes.
        shared_reserved_bytes: shared memory per block that the system reserves, bytes.
    """

    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    registers_per_sm: int
    shared_memory_per_sm_bytes: int
    fp32_lanes_per_sm: int
    fp64_share: float = 1 / 64
    schedulers_per_sm: int = 4
    warp_size: int = 32
    register_unit: int = 256
    partitions: int = 4
    shared_unit_bytes: int = 256
    shared_reserved_bytes: int = 0


def _nvidia(
    threads: int, blocks: int, shared_kib: int, lanes: int, fp64: int, **units: int
) -> Architecture:
    return Architecture(
        threads, threads // 32, blocks, 65536, shared_kib * 1024, lanes, fp64 / lanes, **units
    )


_AMPERE_UNITS = {"shared_unit_bytes": 128, "shared_reserved_bytes": 1024}

ARCHITECTURES: dict[tuple[str, float], Architecture] = {
    ("pascal", 6.0): _nvidia(2048, 32, 64, 64, 32, schedulers_per_sm=2, partitions=2),
    ("pascal", 6.1): _nvidia(2048, 32, 96, 128, 4),
    ("volta", 7.0): _nvidia(2048, 32, 96, 64, 32),
    ("turing", 7.5): _nvidia(1024, 16, 64, 64, 2),
    ("ampere", 8.0): _nvidia(2048, 32, 164, 64, 32, **_AMPERE_UNITS),
    ("ampere", 8.6): _nvidia(1536, 16, 100, 128, 2, **_AMPERE_UNITS),
    ("ada", 8.9): _nvidia(1536, 24, 100, 128, 2, **_AMPERE_UNITS),
    ("hopper", 9.0): _nvidia(2048, 32, 228, 128, 64, **_AMPERE_UNITS),
    ("blackwell", 10.0): _nvidia(2048, 32, 228, 128, 64, **_AMPERE_UNITS),
    ("blackwell", 10.3): _nvidia(2048, 32, 228, 128, 2, **_AMPERE_UNITS),
    ("blackwell", 12.0): _nvidia(1536, 24, 100, 128, 2, **_AMPERE_UNITS),
    # gfx90a: 4 SIMDs of 8 wavefronts of 64 threads, 512 KiB of vector registers and 64 KiB of local data share
    ("cdna2", 9.0): Architecture(
        2048, 32, 32, 131072, 65536, 64, 1.0, warp_size=64, register_unit=512
    ),
    # gfx942: as gfx90a, with two fp32 multiply-adds per lane and clock
    ("cdna3", 9.4): Architecture(
        2048, 32, 32, 131072, 65536, 128, 0.5, warp_size=64, register_unit=512
    ),
}
"""Limits by (architecture, compute capability)."""

ARCHITECTURE_NAMES = {
    capability: name for name, capability in ARCHITECTURES if not name.startswith("cdna")
}
"""NVIDIA architecture name by compute capability, for detected devices without a file."""

DEFAULT_LIMITS = Architecture(2048, 64, 32, 65536, 98304, 64)
"""Limits of a typical SM, for an architecture that is not in the table."""


def limits_of_device(properties: Mapping[str, int]) -> Architecture:
    """Limits of one SM of a device as PyTorch's profiler describes it.

    Args:
        properties: an entry of a trace's `deviceProperties`, counts as integers. Where `computeMajor` and
            `computeMinor` are absent or unknown, the limits on warps and blocks are those of a typical SM.
    """
    capability = properties.get("computeMajor", 0) + properties.get("computeMinor", 0) / 10
    return replace(
        ARCHITECTURES.get((ARCHITECTURE_NAMES.get(capability, ""), capability), DEFAULT_LIMITS),
        max_threads_per_sm=properties["maxThreadsPerMultiprocessor"],
        registers_per_sm=properties["regsPerMultiprocessor"],
        shared_memory_per_sm_bytes=properties["sharedMemPerMultiprocessor"],
    )


def resident_blocks(
    limits: Architecture,
    threads: Array,
    registers: Array | None = None,
    shared_bytes: Array | None = None,
) -> Array:
    """Blocks that one SM holds at once.

    Args:
        limits: limits of the SM.
        threads: threads per block, shape (rows,).
        registers: registers per thread; NaN or None where unknown.
        shared_bytes: static plus dynamic shared memory per block; NaN or None where unknown.

    Returns:
        Blocks per SM, shape (rows,). At least 1, because a block of a kernel that ran fits on an SM.
    """
    threads = np.maximum(np.asarray(threads, dtype=np.float64), 1.0)
    stated = (
        np.full(threads.shape, np.nan)
        if registers is None
        else np.asarray(registers, dtype=np.float64)
    )
    per_thread = np.where(np.isnan(stated), TYPICAL_REGISTERS, np.maximum(stated, 1.0))
    shared = (
        np.zeros(threads.shape)
        if shared_bytes is None
        else np.nan_to_num(np.asarray(shared_bytes, np.float64))
    )
    warps = np.ceil(threads / limits.warp_size)
    by_threads = np.floor(limits.max_threads_per_sm / (warps * limits.warp_size))
    by_warps = np.floor(limits.max_warps_per_sm / warps)
    per_warp = np.ceil(per_thread * limits.warp_size / limits.register_unit) * limits.register_unit
    warps_with_registers = (
        np.floor(limits.registers_per_sm / limits.partitions / per_warp) * limits.partitions
    )
    by_registers = np.floor(warps_with_registers / warps)
    taken = (
        np.ceil((shared + limits.shared_reserved_bytes) / limits.shared_unit_bytes)
        * limits.shared_unit_bytes
    )
    by_shared = np.where(
        taken > 0, np.floor(limits.shared_memory_per_sm_bytes / np.maximum(taken, 1.0)), np.inf
    )
    least = np.minimum.reduce([by_threads, by_warps, by_registers, by_shared])
    return np.asarray(np.clip(least, 1.0, limits.max_blocks_per_sm))
