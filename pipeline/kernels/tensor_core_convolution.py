"""Times of convolutions on tensor cores (fp16, bf16, TF32), from physics and three constants.

There are no public samples of such convolutions. The model has these parts:

- A convolution is the matrix product of `work.implicit_product`. Its channels are padded to the size that a tensor core
  loads at once. It runs in whole waves of output tiles.
- The time of a tile is the larger of two times: its arithmetic together with the operand loads of its warps, and the
  transfer of these operands through L2. The model uses the fastest of the tiles that the library has.
- GPUs with a small power budget throttle.
- DRAM traffic partly overlaps with the tiles' time.
- Reductions that are split over blocks (weight gradients) write their parts in fp32 and read them back.

Kernels for half precision exist only with channels innermost (NHWC). PyTorch's default layout is NCHW. Where a step
keeps its images in NCHW, cuDNN converts both images around each kernel (`nchwToNhwcKernel`, `nhwcToNchwKernel`). TF32
also has NCHW kernels (`sm80_xmma_fprop_..._nchwkcrs_nchw`), which gather their operands. The model uses them where they
cost less than the conversion.

The constants were fitted to whole steps of ResNet-50 that NVIDIA and Lambda Labs published. These are the steps of
V100, A100 PCIe and RTX 3090, and NVIDIA's own training rows. docs/notes/kernels.md lists them, and the steps that were
left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, peak_gflop_per_s, power_gflop_per_s, throttled_us
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.batch_norm_pooling import channels_last
from pipeline.kernels.work import Array, ConvShape, Dims, implicit_product, values_of

Flags = npt.NDArray[np.bool_]

ALIGNMENT = {"fp16": 8.0, "bf16": 8.0, "tf32": 4.0}
"""Multiple to which channels are padded, in elements, by dtype: 16 bytes."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Output tiles (rows, columns) in the names of cuDNN's tensor-core kernels."""

MIN_REDUCTION = 256.0
"""Minimum reduction length of one block when a long reduction is split over blocks; the same as in `physics`."""

SHARED_BYTES_PER_CLOCK, WARP_TILE = 128.0, 64.0
"""Bytes that the shared memory of an SM delivers per clock (CUDA C Programming Guide), and the edge of a warp's part of
the block's tile: 64 x 64 outputs (most `warpgroupsize1x1x1` and `_64x64` kernels)."""

SHARED_FLOP_BYTES = SHARED_BYTES_PER_CLOCK * WARP_TILE
"""Floating-point operations that the loads of one clock can feed, times the bytes of an element. In half precision
these are 4096 operations per clock and SM. An A100 computes 2048 per clock and SM, so the loads cost it a third of its
peak. An RTX 3090 computes 512."""

LAYOUT_CONVERSION_SHARE = 0.85
"""Bandwidth of the kernels that convert the layout of images, relative to element-wise kernels. It is lower, because
they write in another order than they read. The value comes from half-precision steps in NCHW compared with those in
NHWC; 0.95 fits equally well."""

NCHW_LOADS = 5.5
"""Ratio of the operand load times of TF32 kernels, NCHW to NHWC. From NCHW images they load element by element, instead
of 16 bytes at once by asynchronous copies. The value was fitted to TF32 steps; 4 or 7 changes their mean by 4 %."""

OVERLAP_NORM = 3.0
"""Exponent of the norm that combines arithmetic and traffic times. During its prologue and epilogue a block moves bytes
but does not compute, and other blocks fill this time only in part. An exponent of 2, which the transfer of fp32
convolutions uses, fits nearly as well."""

FLOP_PER_JOULE = {"fp16": 2.0, "bf16": 2.0, "tf32": 1.0}
"""Tensor-core operations per joule, relative to TF32, by dtype."""

ENERGY_RATIO = {"volta": 4.0, "turing": 4.0}
ENERGY_RATIO_SINCE_AMPERE = 8.0
"""TF32 tensor-core operations per joule, relative to fp32 operations outside tensor cores: by architecture (`ENERGY_RATIO`),
and from Ampere on. At the same power, Volta and Turing GPUs sustain eight times their fp32 rate in half precision, and
an A100 sixteen times."""


GROUPS, GROUP_WIDTH = 32.0, 4.0
"""Numbers of groups (multiples of this) and least width of a group for which cuDNN has grouped tensor-core kernels.

Their names end in `_g32`. Steps of ResNeXt on an RTX 3090 have 32 groups of 4 to 64 channels. In NHWC and with cuDNN
8.3, networks with other numbers of groups (RegNet) take up to 2.7 times as long as such kernels would."""


def evenly_grouped(d: Dims) -> Flags:
    """Rows with several groups for which cuDNN has kernels on tensor cores, shape (rows,)."""
    groups = np.maximum(d("groups", 1.0), 1.0)
    narrowest = np.minimum(d("in_channels"), d("out_channels")) / groups
    return np.asarray((groups > 1.0) & (np.mod(groups, GROUPS) == 0.0) & (narrowest >= GROUP_WIDTH))


def on_tensor_cores(d: Dims, gpu: GpuSpec) -> Flags:
    """Whether the GPU's tensor cores support the dtype of each row, shape (rows,)."""
    able = {dtype: 1.0 for dtype in DTYPES if peak_gflop_per_s(gpu, dtype) is not None}
    return np.asarray(values_of(d.text("dtype", "fp32"), able, 0.0) > 0)


def tensor_us(name: str, d: Dims, gpu: GpuSpec, memory: BandwidthCurve, l2_gb_per_s: float) -> Array:
    """Time of convolutions on tensor cores without the kernel's start, us, shape (rows,); NaN where dims are missing.

    Args:
        name: conv2d_forward, conv2d_backward_data or conv2d_backward_weight.
        d: dims of the calls; `on_tensor_cores` is true for all of them.
        gpu: the GPU, for its tensor-core peaks, clock, SMs and power.
        memory: bandwidth of DRAM.
        l2_gb_per_s: bandwidth of L2.
    """
    dtype, size, shape = d.text("dtype", "fp32"), d.element_bytes(), ConvShape.of(d)
    groups, align = shape.groups, values_of(dtype, ALIGNMENT, 4.0)
    padded = Dims(d.table.assign(
        in_channels=groups * _round_up(shape.in_channels / groups, align),
        out_channels=groups * _round_up(shape.out_channels / groups, align),
    ))  # fmt: skip
    peak = values_of(dtype, {key: 1e3 * (peak_gflop_per_s(gpu, key) or np.nan) for key in DTYPES}, np.nan)
    images = size * (shape.inputs + shape.outputs)
    dram = memory.moving_us(images + size * shape.weights)
    loading = SHARED_FLOP_BYTES * max(gpu.sms, 1) * max(gpu.boost_clock_mhz, 1.0)
    power, product = _power_limit(dtype, gpu), implicit_product(name, padded)

    def kernel(loads: float) -> Array:
        # arithmetic plus operand loads: tensor cores wait while warps load operands from shared memory
        rate = 1.0 / (1.0 / peak + loads * size / loading)
        found = []
        for tile in TILES:
            arithmetic, joined = _tiled_us(product, tile, size, rate, power, gpu, 1e3 * l2_gb_per_s)
            found.append(
                (arithmetic**OVERLAP_NORM + dram**OVERLAP_NORM) ** (1.0 / OVERLAP_NORM) + memory.moving_us(joined)
            )
        return np.min(found, axis=0)  # type: ignore[no-any-return]

    innermost = kernel(1.0)
    turned = innermost + memory.moving_us(2.0 * images) / LAYOUT_CONVERSION_SHARE
    tf32 = dtype == "tf32"
    stored = np.where(tf32, np.minimum(kernel(NCHW_LOADS), turned), turned) if tf32.any() else turned
    found = np.where(channels_last(d), innermost, stored)
    # few channels per group use tensor cores poorly: the library computes such convolutions without tensor cores
    plain = np.hypot(shape.flops / (1e3 * gpu.peak_gflop_per_s()), dram)
    return np.where(evenly_grouped(d), np.minimum(found, plain), found)


def _tiled_us(
    product: tuple[Array, Array, Array, Array],
    tile: tuple[int, int],
    size: Array,
    rate: Array,
    power: Array,
    gpu: GpuSpec,
    l2: float,
) -> tuple[Array, Array]:
    """(time of all waves of tiles of one size, us; bytes moved to join a split reduction), each of shape (rows,).

    Args:
        product: rows, reduction, columns and groups.
        tile: rows and columns of outputs.
        size: bytes of an element.
        rate: FLOP per us of the tensor cores, including operand loads from shared memory.
        power: FLOP per us that the power budget sustains.
        gpu: the GPU, for its number of SMs.
        l2: bandwidth of L2, bytes per us.
    """
    rows, depth, columns, groups = product
    (high, wide), sms = tile, float(max(gpu.sms, 1))
    tiles = groups * np.ceil(rows / high) * np.ceil(columns / wide)
    split = np.clip(np.floor(sms / np.maximum(tiles, 1.0)), 1.0, np.maximum(depth / MIN_REDUCTION, 1.0))
    places = sms * np.ceil(tiles * split / sms)
    full = places * depth / split * np.maximum(2.0 * high * wide / rate, (high + wide) * size / l2)
    powered = 2.0 * rows * depth * columns * groups / power
    joined = np.where(split > 1.0, 2.0 * 4.0 * split * rows * columns * groups, 0.0)
    return throttled_us(full, powered), joined


def _power_limit(dtype: npt.NDArray[np.object_], gpu: GpuSpec) -> Array:
    """FLOP per us that the power budget sustains, shape (rows,)."""
    energy = ENERGY_RATIO.get(gpu.architecture, ENERGY_RATIO_SINCE_AMPERE)
    return 1e3 * power_gflop_per_s(gpu) * energy * values_of(dtype, FLOP_PER_JOULE, 1.0)


def _round_up(value: Array, step: Array) -> Array:
    return np.asarray(np.ceil(value / step) * step)
