"""Convolutions on tensor cores (fp16, bf16, TF32), of which there are no public samples: physics, and three constants.

A convolution is the implicit product of `heuristics.implicit_product`, with channels padded to what a tensor core loads at
once, in whole waves of output tiles. A tile takes as long as its arithmetic with the operands that warps load for it, or as
those operands take through L2; of the tiles that the library has, it takes the quickest. Cards with a small power budget
throttle. Traffic over DRAM overlaps with that in part. Reductions that are split over blocks (weight gradients) write
their parts in fp32 and read them back.

Kernels for halves exist with channels innermost (NHWC) alone. Where a step keeps its images in NCHW, PyTorch's default,
cuDNN turns both images around each kernel (`nchwToNhwcKernel`, `nhwcToNchwKernel`). TF32 has NCHW kernels of its own
(`sm80_xmma_fprop_..._nchwkcrs_nchw`), which gather their operands; they are taken where that costs less than turning.

The constants were set on whole steps of ResNet-50 as NVIDIA and Lambda Labs published them for V100, A100 PCIe and
RTX 3090 and for NVIDIA's own training rows; docs/notes/kernels.md has these, and others that were left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import power_gflop_per_s, throttled
from pipeline.hardware.tensor_cores import DTYPES, peak_gflop_per_s
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.batch_norm_pooling import channels_last
from pipeline.kernels.work import Array, ConvShape, Dims, implicit_product, values_of

Flags = npt.NDArray[np.bool_]

ALIGNMENT = {"fp16": 8.0, "bf16": 8.0, "tf32": 4.0}
"""Channels are padded to multiples of 16 bytes."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Output tiles (rows, columns) in the names of cuDNN's tensor-core kernels."""

SHORTEST_REDUCTION = 256.0
"""Reduction length that one block keeps when a long reduction is split, as `heuristics` has it."""

SHARED_BYTES_PER_CLOCK, WARP_TILE = 128.0, 64.0
"""Shared memory of an SM delivers 128 bytes a clock (CUDA C Programming Guide), and a warp makes 64 x 64 outputs of its
block's tile (most `warpgroupsize1x1x1` and `_64x64` kernels), ..."""

SHARED_FLOP_BYTES = SHARED_BYTES_PER_CLOCK * WARP_TILE
"""... so that one clock's loads serve this over an element's bytes floating-point operations: 4096 in halves. An A100 does
2048 a clock and SM, and loses a third of its peak by it; an RTX 3090 does 512."""

TURNING_SHARE = 0.85
"""Bandwidth of the kernels that turn images, over that of element-wise ones: they write in another order than they read.
Half-precision steps in NCHW against those in NHWC; 0.95 does as well."""

NCHW_LOADS = 5.5
"""How much longer a TF32 kernel loads its operands from NCHW images: element by element, and not 16 bytes at once by
asynchronous copies. TF32 steps; 4 or 7 move their mean by 4 %."""

OVERLAP = 3.0
"""Exponent of the norm over arithmetic and traffic: a block's prologue and epilogue move bytes while it computes nothing,
which other blocks fill in part (`transfer.convolution` has 2 for fp32). 2 does nearly as well."""

FLOP_PER_JOULE = {"fp16": 2.0, "bf16": 2.0, "tf32": 1.0}
"""Operations of a tensor core in units of TF32's, for the same energy, ..."""

ENERGY = {"volta": 4.0, "turing": 4.0}
ENERGY_SINCE_AMPERE = 8.0
"""... and those units over fp32 operations outside tensor cores: boards of Volta and Turing feed eight times their fp32 rate
in halves from the same power, an A100 sixteen times."""


def on_tensor_cores(d: Dims, gpu: GpuSpec) -> Flags:
    """Rows whose dtype the GPU's tensor cores take, shape (rows,)."""
    able = {dtype: 1.0 for dtype in DTYPES if peak_gflop_per_s(gpu, dtype) is not None}
    return np.asarray(values_of(d.text("dtype", "fp32"), able, 0.0) > 0)


def tensor_us(name: str, d: Dims, gpu: GpuSpec, memory: BandwidthCurve, l2_gb_per_s: float) -> Array:
    """Time of convolutions on tensor cores beyond a kernel's start, us, shape (rows,); NaN without dims.

    Args:
        name: conv2d_forward, conv2d_backward_data or conv2d_backward_weight.
        d: dims of the calls, all of them rows that `on_tensor_cores` names.
        gpu: its tensor peaks, clock, SMs and power.
        memory: bandwidth of DRAM.
        l2_gb_per_s: bandwidth of L2.
    """
    dtype, size, shape = d.text("dtype", "fp32"), d.element_bytes(), ConvShape.of(d)
    groups, align = shape.groups, values_of(dtype, ALIGNMENT, 4.0)
    padded = Dims(d.table.assign(
        in_channels=groups * _up(shape.in_channels / groups, align),
        out_channels=groups * _up(shape.out_channels / groups, align),
    ))  # fmt: skip
    peak = values_of(dtype, {key: 1e3 * (peak_gflop_per_s(gpu, key) or np.nan) for key in DTYPES}, np.nan)
    images = size * (shape.inputs + shape.outputs)
    dram = memory.moving_us(images + size * shape.weights)
    loading = SHARED_FLOP_BYTES * max(gpu.sms, 1) * max(gpu.boost_clock_mhz, 1.0)
    power, product = _power_limit(dtype, gpu), implicit_product(name, padded)

    def kernel(loads: float) -> Array:
        # arithmetic, and the operands that warps load for it from shared memory while tensor cores wait
        rate = 1.0 / (1.0 / peak + loads * size / loading)
        found = []
        for tile in TILES:
            arithmetic, joined = _tiled(product, tile, size, rate, power, gpu, 1e3 * l2_gb_per_s)
            found.append((arithmetic**OVERLAP + dram**OVERLAP) ** (1.0 / OVERLAP) + memory.moving_us(joined))
        return np.min(found, axis=0)  # type: ignore[no-any-return]

    innermost = kernel(1.0)
    turned = innermost + memory.moving_us(2.0 * images) / TURNING_SHARE
    tf32 = dtype == "tf32"
    stored = np.where(tf32, np.minimum(kernel(NCHW_LOADS), turned), turned) if tf32.any() else turned
    found = np.where(channels_last(d), innermost, stored)
    # few channels a group would fill tensor cores too badly: the library computes such convolutions without them
    plain = np.hypot(shape.flops / (1e3 * gpu.peak_gflop_per_s()), dram)
    return np.asarray(np.where(groups > 1.0, np.minimum(found, plain), found))


def _tiled(
    product: tuple[Array, Array, Array, Array],
    tile: tuple[int, int],
    size: Array,
    rate: Array,
    power: Array,
    gpu: GpuSpec,
    l2: float,
) -> tuple[Array, Array]:
    """(time of the waves of one tile, us; bytes that joining a split reduction moves), each of shape (rows,).

    Args:
        product: rows, reduction, columns and groups.
        tile: rows and columns of outputs.
        size: bytes of an element.
        rate: FLOP per us that tensor cores do when they are fed from L2.
        power: FLOP per us that the power budget sustains.
        gpu: its SMs.
        l2: bytes per us.
    """
    rows, depth, columns, groups = product
    (high, wide), sms = tile, float(max(gpu.sms, 1))
    tiles = groups * np.ceil(rows / high) * np.ceil(columns / wide)
    split = np.clip(np.floor(sms / np.maximum(tiles, 1.0)), 1.0, np.maximum(depth / SHORTEST_REDUCTION, 1.0))
    places = sms * np.ceil(tiles * split / sms)
    full = places * depth / split * np.maximum(2.0 * high * wide / rate, (high + wide) * size / l2)
    powered = 2.0 * rows * depth * columns * groups / power
    joined = np.where(split > 1.0, 2.0 * 4.0 * split * rows * columns * groups, 0.0)
    return throttled(full, powered), joined


def _power_limit(dtype: npt.NDArray[np.object_], gpu: GpuSpec) -> Array:
    """FLOP per us that the power budget sustains, shape (rows,)."""
    energy = ENERGY.get(gpu.architecture, ENERGY_SINCE_AMPERE)
    return 1e3 * power_gflop_per_s(gpu) * energy * values_of(dtype, FLOP_PER_JOULE, 1.0)


def _up(value: Array, step: Array) -> Array:
    return np.asarray(np.ceil(value / step) * step)
