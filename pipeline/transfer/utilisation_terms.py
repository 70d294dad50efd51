"""What a call would take at full utilisation, and what it looks like: the inputs of a utilisation model.

Most families have one way to be computed. Convolutions (`convolution.py`) and batched products (`products.py`) have
several, each with terms of its own; softmax (`softmax.py`) has features of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import arithmetic_us, sustained_dram_gb_per_s
from pipeline.transfer.bmm_tiles import Tiled, batched_tiles, tiles_taken
from pipeline.transfer.conv_routes import ROUTES, Route, convolution_routes, routes_taken
from pipeline.transfer.gpu_features import ARITHMETIC, describe
from pipeline.transfer.softmax_features import softmax_features
from pipeline.transfer.tensor_core_tiles import FAMILY as TENSOR
from pipeline.transfer.tensor_core_tiles import TensorTile, tensor_tiles

Array = npt.NDArray[np.float64]

NOMINAL_STEP_CYCLES = 100.0
"""Cycles per element and resident thread that a thread step is quoted in; the network scales it."""

ISSUE_BOUND = ("softmax", "layer_norm")
"""Families whose steps are limited by the schedulers' issue rate rather than by resident threads. Softmax on the public
GPUs sustains 1.5 to 2.8 bytes per scheduler and clock beside its DRAM time, the P100 (two schedulers per SM, four on
the others) among them, but 4.7 to 12 per 2048 resident threads, with the P100 far below the others. Layer norm errs by
11.6 % so, by 12.0 with resident threads."""

NOMINAL_ISSUE_CYCLES = 10.0
"""Cycles per element and scheduler lane that an issue-bound step is quoted in; the network scales it."""

SOFTMAX_NORM = 2.0
"""Exponent of the norm over arithmetic and memory in softmax, whose exponentials wait for the loads of their own row. The
family's larger one is for what overlaps: L2, DRAM and the issue of instructions."""

SEEN_L2_PER_SM = 40 * 2**20 / 108
"""Most L2 for each SM among the GPUs of the samples, bytes: the A100's."""

L2_REUSE = 3.0
"""Power by which rereads fall beyond it, where the samples say nothing. Tiles that run at once read the same panels, and
with L2 to spare none drifts out of it. Set on the bf16 products of the L40S with the features of an earlier model; with
today's, which end where all fits, it hardly matters: 22.6 % (1), 21.2 (3), 21.1 (9)."""

LARGE_TILE = {"gemm": (128, 64)}
"""Output tile (rows, columns) of the family's large fp32 kernels from Volta on (kernel names of the public table)."""

PASCAL_PRODUCT_TILE = (32, 128)
"""Pascal's cuBLAS runs nearly all large fp32 products in `maxwell_sgemm` tiles of 32 x 128 or 64 x 64, which read as
much. Large products on a P100 reach just what its sustained bandwidth allows for them: 6.2 of 7.0 TFLOP/s."""


@dataclass(frozen=True)
class Terms:
    """Logarithms of a call's times in µs at full utilisation, each of shape (rows,), and its features (rows, features).

    `arithmetic` at sustained throughput, `dram` and `l2` for the traffic, `steps` of the resident threads;
    `tiles` is the DRAM time of a product's operands if no panel that one tile of outputs reads were found in L2 by
    another; `per_l2` is the logarithm of the traffic over the L2 size. `norm` is the exponent of the norm over
    arithmetic and memory where it is not the family's; `network` the prefix of the parameters that answer.
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

    Calls of empty tensors, which graphs hold, take no time: their logarithms are minus infinity. A way that is not open
    to a call has infinite arithmetic.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if family == "conv2d_forward":
            return {name: _route(route, gpu, name) for name, route in convolution_routes(calls, gpu).items()}
        if family == "bmm":
            return {name: _tiled(tiled, gpu) for name, tiled in batched_tiles(calls, gpu).items()}
        if family == TENSOR:
            return {name: _tensor(tile, gpu) for name, tile in tensor_tiles(calls, gpu).items()}
        return {"": _terms(family, calls, gpu)}


def ways_taken(family: str, samples: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Which of a family's `terms` each row's kernel name shows, -1 where it shows none; shape (rows,)."""
    if family == "conv2d_forward":
        return routes_taken(samples)
    return tiles_taken(samples) if family == "bmm" else np.full(len(samples), -1, dtype=np.int64)


def _route(route: Route, gpu: GpuSpec, name: str) -> Terms:
    nothing = np.full(len(route.flops), -np.inf)
    per_l2 = np.log(route.bytes / gpu.l2_bytes)
    # an empty image has no last wave to be full
    x = np.nan_to_num(route.x)
    work, traffic = _arithmetic(route.flops, gpu), _traffic(route.bytes, gpu)
    return Terms(work, *traffic, nothing, nothing, per_l2, x, route.norm, f"{name}.")


def _tiled(tiled: Tiled, gpu: GpuSpec) -> Terms:
    nothing = np.full(len(tiled.flops), -np.inf)
    work, traffic = _arithmetic(tiled.flops, gpu), _traffic(tiled.bytes, gpu)
    tiles = np.log(tiled.tile_bytes / sustained_dram_gb_per_s(gpu) / 1e3) - _kept(gpu)
    return Terms(work, *traffic, nothing, tiles, np.log(tiled.bytes / gpu.l2_bytes), np.nan_to_num(tiled.x))


def _tensor(tile: TensorTile, gpu: GpuSpec) -> Terms:
    nothing, per_l2 = np.full(len(tile.us), -np.inf), np.log(tile.bytes / gpu.l2_bytes)
    return Terms(np.log(tile.us), *_traffic(tile.bytes, gpu), np.log(tile.chain_us), nothing, per_l2, tile.x)


def _arithmetic(flops: Array, gpu: GpuSpec) -> Array:
    """Logarithm of the sustained time of arithmetic; infinite where there is an infinity of it."""
    able = np.isfinite(flops)
    return np.where(able, np.log(arithmetic_us(gpu, np.where(able, flops, 1.0))), np.inf)


def _traffic(moved: Array, gpu: GpuSpec) -> tuple[Array, Array]:
    """Logarithms of the time of traffic over DRAM and over L2."""
    return np.log(moved / sustained_dram_gb_per_s(gpu) / 1e3), np.log(moved / gpu.peak_l2_gb_per_s() / 1e3)


def _terms(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> Terms:
    seen = describe(family, calls, gpu)
    # memory-bound kernels issue few instructions: their rate is the clock's, not the power-limited product rate
    flops = np.maximum(seen.flops, 1.0)
    arithmetic = arithmetic_us(gpu, flops) if family in ARITHMETIC else flops / gpu.fp32_gflop_per_s / 1e3
    x, norm = seen.x, None
    if family == "softmax":
        x, norm = softmax_features(calls, gpu), SOFTMAX_NORM
    limits = gpu.limits
    if family in ISSUE_BOUND and limits is not None:
        cycles, threads = NOMINAL_ISSUE_CYCLES, limits.schedulers_per_sm * limits.warp_size
    else:
        cycles, threads = NOMINAL_STEP_CYCLES, gpu.max_threads_per_sm
    return Terms(
        np.log(arithmetic),
        *_traffic(seen.bytes, gpu),
        np.log(cycles * seen.bytes / 8.0 / (gpu.sms * threads * gpu.boost_clock_mhz)),
        np.log(flops / _tile_intensity(family, gpu) / sustained_dram_gb_per_s(gpu) / 1e3) - _kept(gpu),
        np.log(seen.bytes / gpu.l2_bytes),
        x,
        norm,
    )


def _kept(gpu: GpuSpec) -> float:
    """Logarithm by which tiles reread less on a GPU with more L2 for each SM than those of the samples; 0 up to them."""
    return L2_REUSE * max(0.0, float(np.log(gpu.l2_bytes / gpu.sms / SEEN_L2_PER_SM)))


def _tile_intensity(family: str, gpu: GpuSpec) -> float:
    """FLOP per byte of the operands that one tile of a large product's outputs reads: 2 h w / 4 (h + w)."""
    high, wide = LARGE_TILE.get(family, (128, 128))
    if family == "gemm" and gpu.architecture == "pascal":
        high, wide = PASCAL_PRODUCT_TILE
    return high * wide / 2.0 / (high + wide)
