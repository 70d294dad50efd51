"""How many thread blocks an SM holds at once: the arithmetic of NVIDIA's occupancy calculator, vectorised.

Registers are allocated to warps, each within one partition of the SM. A block of two warps therefore takes the registers of
two warps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pipeline.arrays import Array
from pipeline.hardware.architecture import CPU, Architecture, architecture_row, nvidia_names

TYPICAL_REGISTERS = 32.0
"""Registers per thread that are assumed where a table does not state them; element-wise PyTorch kernels take 16 to 40.

Matrix kernels take more (those of 128 x 128 tiles over 100). Their resident blocks, and the blocks per wave, are
therefore overestimated, on origin and destination alike."""


def limits_of_device(properties: Mapping[str, int]) -> Architecture:
    """Limits of one SM of a device as PyTorch's profiler describes it.

    Args:
        properties: an entry of a trace's `deviceProperties`, counts as integers. Where `computeMajor` and
            `computeMinor` are absent or unknown, the limits on warps and blocks are those of a typical SM.
    """
    capability = properties.get("computeMajor", 0) + properties.get("computeMinor", 0) / 10
    return replace(
        architecture_row(nvidia_names().get(capability, CPU), capability),
        max_threads_per_sm=properties["maxThreadsPerMultiprocessor"],
        registers_per_sm=properties["regsPerMultiprocessor"],
        shared_memory_per_sm_bytes=properties["sharedMemPerMultiprocessor"],
    )


def resident_blocks(
    limits: Architecture,
    threads: Array,
    registers: Array | float = np.nan,
    shared_bytes: Array | float = np.nan,
) -> Array:
    """Blocks that one SM holds at once.

    Args:
        limits: limits of the SM.
        threads: threads per block, shape (rows,).
        registers: registers per thread; NaN where unknown.
        shared_bytes: static plus dynamic shared memory per block; NaN where unknown.

    Returns:
        Blocks per SM, shape (rows,). At least 1, because a block of a kernel that ran fits on an SM.
    """
    threads = np.maximum(np.asarray(threads, dtype=float), 1.0)
    stated = np.maximum(np.asarray(registers, dtype=float), 1.0)
    per_thread = np.where(np.isnan(stated), TYPICAL_REGISTERS, stated)
    shared = np.nan_to_num(np.asarray(shared_bytes, dtype=float))
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
