"""Inputs of a utilisation model: times of a call at full utilisation, and its features.

Most families have one algorithm. These families have several, and each has its own times and features:
- Convolutions: the routes of cuDNN (`convolution_routes.py`), each with its own network.
- Batched products and products on tensor cores: output tiles (`output_tiles.py`), which share a network.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Ints
from pipeline.families import work_of
from pipeline.families.dims import Dims
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import arithmetic_us, sustained_dram_gb_per_s
from pipeline.transfer.convolution_routes import ROUTES, convolution_routes, routes_of_kernels
from pipeline.transfer.gpu_features import (
    COMPUTE_FAMILIES,
    Algorithm,
    call_features,
    softmax_features,
)
from pipeline.transfer.output_tiles import FAMILY as TENSOR
from pipeline.transfer.output_tiles import batched_tiles, tensor_tiles, tiles_of_kernels

NOMINAL_STEP_CYCLES = 100.0
"""Nominal cycles per element and resident thread: the unit of a thread step. The network scales it."""

ISSUE_BOUND = ("softmax", "layer_norm")
"""Families whose steps are limited by the schedulers' issue rate rather than by resident threads.

- Softmax on the public GPUs sustains 1.5 to 2.8 bytes per scheduler and clock beside its DRAM time. This range includes
  the P100, which has two schedulers per SM where the other GPUs have four.
- Per 2048 resident threads, softmax sustains 4.7 to 12 bytes per clock, and the P100 is far below the other GPUs.
- The error of layer norm is 11.6 % with the issue rate and 12.0 % with resident threads."""

NOMINAL_ISSUE_CYCLES = 10.0
"""Nominal cycles per element and scheduler lane: the unit of an issue-bound step. The network scales it."""

SOFTMAX_NORM = 2.0
"""Exponent of the norm over the arithmetic and memory times of softmax.

It is low because these times hardly overlap: the exponentials wait for the loads of their row. The family's larger
exponent applies to times that overlap: L2, DRAM and the issue of instructions."""

MAX_SAMPLED_L2_PER_SM = 40 * 2**20 / 108
"""Largest L2 size per SM among the GPUs with samples, in bytes: that of the A100."""

L2_REUSE = 3.0
"""Exponent with which repeated reads fall on GPUs with more L2 per SM than `MAX_SAMPLED_L2_PER_SM`.

The samples do not cover such GPUs. Tiles that run at the same time read the same panels, and a larger L2 keeps these
panels. The value was set on the bf16 products of the L40S with the features of an earlier model. Today's features stop
changing where everything fits in L2, so the value hardly matters. The errors are 22.6 % (1), 21.2 % (3) and 21.1 %
(9)."""

LARGE_TILE = 128, 128
"""Output tile (rows, columns) of large fp32 kernels besides `gemm` (kernel names of the public table)."""


@dataclass(frozen=True)
class Terms:
    """Logarithms of times in µs at full utilisation, and features of calls, for the algorithms that share a network.

    All but `x` and `norm` have shape (algorithms, rows). They are NumPy arrays, or tensors in training.

    Attributes:
        arithmetic: time of the arithmetic at the sustained throughput; infinite where the algorithm cannot compute a call.
        dram: time of the traffic over DRAM.
        l2: time of the traffic over L2.
        steps: time of the steps of the resident threads.
        tiles: DRAM time of a product's operands if every output tile reads its panels from DRAM and none from L2.
        per_l2: logarithm of the traffic over the L2 size (no time).
        x: features, shape (algorithms, rows, features).
        norm: exponent of the norm over arithmetic and memory; None for the exponent of the family.
    """

    arithmetic: Any
    dram: Any
    l2: Any
    steps: Any
    tiles: Any
    per_l2: Any
    x: Any
    norm: float | None = None


def networks_of(family: str) -> tuple[str, ...]:
    """Prefixes of a family's networks: one for each route of convolutions, a single empty one otherwise."""
    return tuple(f"{name}." for name in ROUTES) if family == "conv2d_forward" else ("",)


def terms(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Terms]:
    """Times at full utilisation and features of calls of a covered family on a GPU, by prefix of the network.

    Graphs contain calls of empty tensors. They take no time, and their logarithms are minus infinity.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if family == "conv2d_forward":
            routes = convolution_routes(calls, gpu)
            return {f"{name}.": _terms([route], gpu) for name, route in routes.items()}
        if family == "bmm":
            return {"": _terms([*batched_tiles(calls, gpu).values()], gpu)}
        if family == TENSOR:
            return {"": _terms([*tensor_tiles(calls, gpu).values()], gpu)}
        return {"": _terms([_only_algorithm(family, calls, gpu)], gpu)}


def algorithms_of_kernels(family: str, samples: pd.DataFrame) -> Ints:
    """Index of the algorithm that each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if family == "conv2d_forward":
        return routes_of_kernels(samples)
    if family == "bmm":
        return tiles_of_kernels(samples)
    return np.full(len(samples), -1, dtype=np.int64)


def _terms(algorithms: list[Algorithm], gpu: GpuSpec) -> Terms:
    def log_us(algorithm: Algorithm) -> Array:
        able = np.isfinite(algorithm.flops)
        us = algorithm.us
        if us is None:
            us = np.where(able, arithmetic_us(gpu, np.where(able, algorithm.flops, 1.0)), np.inf)
        return np.log(us)

    dram_bytes_per_us = 1e3 * sustained_dram_gb_per_s(gpu)
    parts = [np.broadcast_arrays(each.bytes, each.tile_bytes, each.chain_us) for each in algorithms]
    moved, tile_bytes, chains = np.stack(parts, axis=1)
    x = np.stack([each.x for each in algorithms])
    return Terms(
        np.stack([log_us(each) for each in algorithms]),
        np.log(moved / dram_bytes_per_us),
        np.log(moved / (1e3 * gpu.peak_l2_gb_per_s())),
        np.log(chains),
        np.log(tile_bytes / dram_bytes_per_us) - _l2_reuse_log_factor(gpu),
        np.log(moved / gpu.l2_bytes),
        # for an empty image, the fullness of the last wave is NaN
        np.nan_to_num(x, posinf=np.inf, neginf=-np.inf),
        algorithms[0].norm,
    )


def _only_algorithm(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> Algorithm:
    """Work and features of calls of a family with one algorithm."""
    work = work_of(family, calls, own_columns=False)
    flops = np.maximum(work.flops, 1.0)
    # memory-bound kernels issue few instructions, so the clock limits their rate, not the power budget of products
    us = None if family in COMPUTE_FAMILIES else flops / gpu.fp32_gflop_per_s / 1e3
    softmax, limits = family == "softmax", gpu.limits
    x = (
        softmax_features(calls, gpu)
        if softmax
        else np.column_stack([*call_features(family, calls, gpu).values()])
    )
    cycles, threads = NOMINAL_STEP_CYCLES, gpu.max_threads_per_sm
    if family in ISSUE_BOUND and limits is not None:
        cycles, threads = NOMINAL_ISSUE_CYCLES, limits.schedulers_per_sm * limits.warp_size
    elements = work.bytes / 2.0 / Dims(calls).element_bytes()
    return Algorithm(
        flops,
        work.bytes,
        x,
        us,
        tile_bytes=flops / _tile_intensity(family, gpu),
        chain_us=cycles * elements / (gpu.sms * threads * gpu.clock_mhz),
        norm=SOFTMAX_NORM if softmax else None,
    )


def _l2_reuse_log_factor(gpu: GpuSpec) -> float:
    """Log factor by which repeated reads of tiles fall on a GPU with more L2 per SM than GPUs with samples; else 0."""
    return L2_REUSE * max(0.0, float(np.log(gpu.l2_bytes / gpu.sms / MAX_SAMPLED_L2_PER_SM)))


def _tile_intensity(family: str, gpu: GpuSpec) -> float:
    """FLOP per byte that an h x w output tile of a large product reads of its operands: 2 h w / 4 (h + w)."""
    high, wide = gpu.generation.product_tile if family == "gemm" else LARGE_TILE
    return high * wide / 2.0 / (high + wide)
