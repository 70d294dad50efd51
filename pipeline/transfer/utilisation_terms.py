"""Inputs of a utilisation model: times of a call at full utilisation, and its features.

Most families can be computed in one way. These families differ:
- Convolutions (`ways.py`) have one way per route of cuDNN, each with its own terms and network.
- Batched products and products on tensor cores (`ways.py`) have one way per tile, each with its own terms.
- Softmax has one way, with its own features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.families.dims import Dims
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import arithmetic_us, sustained_dram_gb_per_s
from pipeline.transfer.gpu_features import COMPUTE_FAMILIES, Way, call_features, softmax_features
from pipeline.transfer.ways import FAMILY as TENSOR
from pipeline.transfer.ways import (
    ROUTES,
    batched_tiles,
    convolution_routes,
    routes_taken,
    tensor_tiles,
    tiles_taken,
)

Array = npt.NDArray[np.float64]

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

LARGE_TILE = {"gemm": (128, 64)}
"""Output tile (rows, columns) of large fp32 kernels from Volta on, by family (kernel names of the public table)."""

PASCAL_PRODUCT_TILE = (32, 128)
"""Output tile (rows, columns) of large fp32 products on Pascal.

cuBLAS runs nearly all of them there in `maxwell_sgemm` tiles of 32 x 128 or 64 x 64. The two read a similar number of
bytes. Large products on a P100 reach the limit that its sustained bandwidth sets for this tile: 6.2 of 7.0
TFLOP/s."""


@dataclass(frozen=True)
class Terms:
    """Logarithms of times in µs at full utilisation, and features of calls. All but `x` have shape (rows,).

    Attributes:
        arithmetic: time of the arithmetic at the sustained throughput.
        dram: time of the traffic over DRAM.
        l2: time of the traffic over L2.
        steps: time of the steps of the resident threads.
        tiles: DRAM time of a product's operands if every output tile reads its panels from DRAM and none from L2.
        per_l2: logarithm of the traffic over the L2 size (no time).
        x: features, shape (rows, features).
        norm: exponent of the norm over arithmetic and memory; None for the exponent of the family.
        network: prefix of the parameters of the network that is used.
    """

    arithmetic: Array
    dram: Array
    l2: Array
    steps: Array
    tiles: Array
    per_l2: Array
    x: Array
    norm: float | None = None
    network: str = ""


def networks_of(family: str) -> tuple[str, ...]:
    """Prefixes of a family's networks: one for each route of convolutions, a single empty one otherwise."""
    return tuple(f"{name}." for name in ROUTES) if family == "conv2d_forward" else ("",)


def terms(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> dict[str, Terms]:
    """Times at full utilisation and features of calls of a covered family on a GPU, for each way to compute them.

    Graphs contain calls of empty tensors. They take no time, and their logarithms are minus infinity. Where a call
    cannot be computed in a way, the arithmetic of that way is infinite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if family == "conv2d_forward":
            return {
                name: _of_way(way, gpu, f"{name}.")
                for name, way in convolution_routes(calls, gpu).items()
            }
        if family in ("bmm", TENSOR):
            tiles = batched_tiles(calls, gpu) if family == "bmm" else tensor_tiles(calls, gpu)
            return {name: _of_way(way, gpu) for name, way in tiles.items()}
        return {"": _terms(family, calls, gpu)}


def ways_taken(family: str, samples: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Which of a family's `terms` each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if family == "conv2d_forward":
        return routes_taken(samples)
    return tiles_taken(samples) if family == "bmm" else np.full(len(samples), -1, dtype=np.int64)


def _of_way(way: Way, gpu: GpuSpec, network: str = "") -> Terms:
    """Terms of calls that are computed in one way."""
    able = np.isfinite(way.flops)
    us = (
        np.where(able, arithmetic_us(gpu, np.where(able, way.flops, 1.0)), np.inf)
        if way.us is None
        else way.us
    )
    nothing = np.full(len(way.bytes), -np.inf)
    tiles = (
        nothing
        if way.tile_bytes is None
        else _dram(way.tile_bytes, gpu) - _l2_reuse_log_factor(gpu)
    )
    steps = nothing if way.chain_us is None else np.log(way.chain_us)
    # for an empty image, the fullness of the last wave is NaN
    x, per_l2 = np.nan_to_num(way.x), np.log(way.bytes / gpu.l2_bytes)
    return Terms(np.log(us), *_traffic(way.bytes, gpu), steps, tiles, per_l2, x, way.norm, network)


def _dram(moved: Array, gpu: GpuSpec) -> Array:
    """Logarithm of the time of traffic over DRAM."""
    return np.asarray(np.log(moved / sustained_dram_gb_per_s(gpu) / 1e3))


def _traffic(moved: Array, gpu: GpuSpec) -> tuple[Array, Array]:
    """Logarithms of the time of traffic over DRAM and over L2."""
    return _dram(moved, gpu), np.log(moved / gpu.peak_l2_gb_per_s() / 1e3)


def _terms(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> Terms:
    described = call_features(family, calls, gpu)
    # memory-bound kernels issue few instructions, so the clock limits their rate, not the power budget of products
    flops = np.maximum(described.flops, 1.0)
    arithmetic = (
        arithmetic_us(gpu, flops)
        if family in COMPUTE_FAMILIES
        else flops / gpu.fp32_gflop_per_s / 1e3
    )
    x, norm = described.x, None
    if family == "softmax":
        x, norm = softmax_features(calls, gpu), SOFTMAX_NORM
    limits = gpu.limits
    if family in ISSUE_BOUND and limits is not None:
        cycles, threads = NOMINAL_ISSUE_CYCLES, limits.schedulers_per_sm * limits.warp_size
    else:
        cycles, threads = NOMINAL_STEP_CYCLES, gpu.max_threads_per_sm
    return Terms(
        np.log(arithmetic),
        *_traffic(described.bytes, gpu),
        np.log(
            cycles
            * described.bytes
            / 2.0
            / Dims(calls).element_bytes()
            / (gpu.sms * threads * gpu.boost_clock_mhz)
        ),
        _dram(flops / _tile_intensity(family, gpu), gpu) - _l2_reuse_log_factor(gpu),
        np.log(described.bytes / gpu.l2_bytes),
        x,
        norm,
    )


def _l2_reuse_log_factor(gpu: GpuSpec) -> float:
    """Log factor by which repeated reads of tiles fall on a GPU with more L2 per SM than GPUs with samples; else 0."""
    return L2_REUSE * max(0.0, float(np.log(gpu.l2_bytes / gpu.sms / MAX_SAMPLED_L2_PER_SM)))


def _tile_intensity(family: str, gpu: GpuSpec) -> float:
    """FLOP per byte that an h x w output tile of a large product reads of its operands: 2 h w / 4 (h + w)."""
    high, wide = LARGE_TILE.get(family, (128, 128))
    if family == "gemm" and gpu.architecture == "pascal":
        high, wide = PASCAL_PRODUCT_TILE
    return high * wide / 2.0 / (high + wide)
