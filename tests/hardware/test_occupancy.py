"""Resident blocks per SM against values calculated by hand with NVIDIA's rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.hardware.occupancy import limits_of_device, resident_blocks


def blocks_per_sm(gpu: str, *resources: int) -> float:
    """Blocks of one kernel on an SM: threads, registers and shared bytes per block."""
    return float(
        resident_blocks(
            load_gpu(gpu).sm_limits, *(np.array([value], float) for value in resources)
        )[0]
    )


@pytest.mark.parametrize(
    ("gpu", "threads", "registers", "shared", "blocks"),
    [
        ("V100", 256, 32, 0, 8),  # 2048 threads / 256.
        (
            "V100",
            128,
            122,
            0,
            4,
        ),  # 128 registers x 32 lanes = 4096 per warp, 16384 per block; 65536 / 16384.
        (
            "V100",
            64,
            128,
            0,
            8,
        ),  # 4096 registers per warp: 4 warps in each of 4 partitions; 16 / 2.
        (
            "V100",
            32,
            168,
            0,
            12,
        ),  # 5376 registers per warp: 3 warps in a partition of 16384, 12 in total.
        ("V100", 256, 32, 40 * 1024, 2),  # 96 KiB / 40 KiB.
        ("A100", 32, 16, 0, 32),  # The limit of blocks per SM.
        ("A100", 128, 32, 48 * 1024, 3),  # 164 KiB / (48 KiB + 1 KiB reserved by the system).
        ("RTX3090", 256, 32, 0, 6),  # 1536 threads / 256.
    ],
)
def test_the_tightest_limit_decides(
    gpu: str, threads: int, registers: int, shared: int, blocks: int
) -> None:
    assert blocks_per_sm(gpu, threads, registers, shared) == blocks


@given(
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    shared=st.integers(0, 48 * 1024),
    gpu=st.sampled_from([spec.name for spec in list_gpus()]),
)
def test_more_resources_per_block_never_raise_occupancy(
    threads: int, registers: int, shared: int, gpu: str
) -> None:
    base = blocks_per_sm(gpu, threads, registers, shared)
    assert 1 <= base <= load_gpu(gpu).max_blocks_per_sm
    for larger in (
        (threads + 32, registers, shared),
        (threads, registers + 8, shared),
        (threads, registers, shared + 1024),
    ):
        assert blocks_per_sm(gpu, *larger) <= base


def test_a_device_of_a_trace_has_the_limits_of_its_architecture() -> None:
    properties = {
        "computeMajor": 7,
        "computeMinor": 0,
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 98304,
        "numSms": 80,
    }
    assert limits_of_device(properties) == load_gpu("V100").sm_limits
    unknown = {key: value for key, value in properties.items() if "compute" not in key}
    limits = limits_of_device(unknown | {"maxThreadsPerMultiprocessor": 1024})
    assert resident_blocks(limits, np.array([256.0]), np.array([32.0]), np.array([0.0]))[0] == 4
