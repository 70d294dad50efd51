"""Per-SM limits of each GPU architecture, by compute capability.

Sources:
- NVIDIA: CUDA C Programming Guide, "Technical Specifications per Compute Capability" and "Arithmetic Instructions".
- Allocation units and partitions: the occupancy calculator of the CUDA toolkit (cuda_occupancy.h).
- CDNA2: AMD "CDNA 2" whitepaper and the MI200 ISA guide.

A GPU file may override any of the first five limits.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    schedulers_per_sm: int = 4
    warp_size: int = 32
    register_unit: int = 256
    partitions: int = 4
    shared_unit_bytes: int = 256
    shared_reserved_bytes: int = 0


def _nvidia(threads: int, blocks: int, shared_kib: int, lanes: int, **units: int) -> Architecture:
    return Architecture(threads, threads // 32, blocks, 65536, shared_kib * 1024, lanes, **units)


_AMPERE_UNITS = {"shared_unit_bytes": 128, "shared_reserved_bytes": 1024}

ARCHITECTURES: dict[tuple[str, float], Architecture] = {
    ("pascal", 6.0): _nvidia(2048, 32, 64, 64, schedulers_per_sm=2, partitions=2),
    ("pascal", 6.1): _nvidia(2048, 32, 96, 128),
    ("volta", 7.0): _nvidia(2048, 32, 96, 64),
    ("turing", 7.5): _nvidia(1024, 16, 64, 64),
    ("ampere", 8.0): _nvidia(2048, 32, 164, 64, **_AMPERE_UNITS),
    ("ampere", 8.6): _nvidia(1536, 16, 100, 128, **_AMPERE_UNITS),
    ("ada", 8.9): _nvidia(1536, 24, 100, 128, **_AMPERE_UNITS),
    ("hopper", 9.0): _nvidia(2048, 32, 228, 128, **_AMPERE_UNITS),
    ("blackwell", 10.0): _nvidia(2048, 32, 228, 128, **_AMPERE_UNITS),
    ("blackwell", 10.3): _nvidia(2048, 32, 228, 128, **_AMPERE_UNITS),
    ("blackwell", 12.0): _nvidia(1536, 24, 100, 128, **_AMPERE_UNITS),
    # gfx90a: 4 SIMDs of 8 wavefronts of 64 threads, 512 KiB of vector registers and 64 KiB of local data share
    ("cdna2", 9.0): Architecture(2048, 32, 32, 131072, 65536, 64, warp_size=64, register_unit=512),
}
"""Limits by (architecture, compute capability)."""

ARCHITECTURE_NAMES = {capability: name for name, capability in ARCHITECTURES if name != "cdna2"}
"""NVIDIA architecture name by compute capability, for detected devices without a file."""
