"""Matrix products and convolutions on tensor cores (fp16, bf16, TF32): which calls run there, and convolution times.

There are no public samples of such convolutions. Their model has these parts:

- A convolution is the matrix product of `work.implicit_product`. Its channels are padded to the size that a tensor core
  loads at once. It runs in whole waves of output tiles.
- The time of a tile is the larger of two times: its arithmetic together with the operand loads of its warps, and the
  transfer of these operands through L2. The model uses the fastest of the tiles that the library has.
- GPUs with a small power budget throttle.
- DRAM traffic partly overlaps with the tiles' time.
- Reductions that are split over blocks (weight gradients) write their parts in fp32 and read them back.

Kernels for half precision exist only with channels innermost (NHWC), except on some GPUs. Where a step keeps its images in
NCHW, PyTorch's default, cuDNN converts both images around each kernel (`nchwToNhwcKernel`, `nhwcToNchwKernel`). TF32 also has
NCHW kernels (`sm80_xmma_fprop_..._nchwkcrs_nchw`), which gather their operands. The model uses them where they cost less than
the conversion.

The constants were fitted to published steps of ResNet-50 on V100, A100 PCIe and RTX 3090 (docs/notes/kernels.md).
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array, Flags, Texts
from pipeline.families.chip import BandwidthCurve
from pipeline.families.conv_shape import ConvShape, implicit_product
from pipeline.families.dims import ELEMENT_BYTES, Dims, values_of
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, peak_gflop_per_s, power_gflop_per_s, throttled_us

BYTES = {name: float(ELEMENT_BYTES[name]) for name in DTYPES}
"""Bytes of an element, by dtype."""

HALF_DTYPES = ("bf16", "fp16")
"""Dtypes of two bytes. Tensor cores compute both at the same rate, so samples of one are used for both."""

LAUNCH_CYCLES = 5000.0
"""Clock cycles that a product among other kernels takes beyond one in a loop of equal products, as all samples of bf16
products are: its instructions are not cached, and no neighbour hides its first loads. H100 traces: 1.4 to 3.3 us."""

PATCH_TAPS, PATCH_STEP, PATCH_TILE, PATCH_STEP_CYCLES = 49.0, 32.0, (256.0, 64.0), 750.0
"""Convolutions with more taps and fewer channels than the first two figures (patches of vision transformers) take one step
of 32 channels for each tap, because cuDNN has no kernel for few channels there. Tile of outputs, and cycles of a step
(H100 traces: 744 and 758)."""

CONVERSION_CHANNELS = 32.0
"""The kernels that convert the layout of images work on tiles of this many channels, also where there are only three."""

CHANNEL_MULTIPLE = {"fp16": 8.0, "bf16": 8.0, "tf32": 4.0}
"""Multiple to which channels are padded, in elements, by dtype: 16 bytes."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Output tiles (rows, columns) in the names of cuDNN's tensor-core kernels."""

MIN_REDUCTION = 256.0
"""Minimum reduction length of one block when a long reduction is split over blocks (split-K)."""

SHARED_BYTES_PER_CLOCK, WARP_TILE = 128.0, 64.0
"""Bytes that the shared memory of an SM delivers per clock (CUDA C Programming Guide), and the edge of a warp's part of
the block's tile: 64 x 64 outputs (most `warpgroupsize1x1x1` and `_64x64` kernels)."""

SHARED_FLOP_BYTES = SHARED_BYTES_PER_CLOCK * WARP_TILE
"""Floating-point operations that the loads of one clock can feed, times the bytes of an element. In half precision
these are 4096 operations per clock and SM. An A100 computes 2048, so the loads cost it a third of its peak."""

LAYOUT_CONVERSION_SHARE = 0.85
"""Bandwidth of the kernels that convert the layout of images, relative to element-wise kernels. It is lower, because
they write in another order than they read; from half-precision steps in NCHW and NHWC."""

NCHW_LOADS = 5.5
"""Ratio of the operand load times of kernels that gather, NCHW to NHWC: from NCHW images they load element by element. Fitted to
TF32 steps; 4 or 7 changes their mean by 4 %."""

OVERLAP_NORM = 3.0
"""Exponent of the norm that combines arithmetic and traffic times. During its prologue and epilogue a block moves bytes
but does not compute, and other blocks fill this time only in part."""

FLOP_PER_JOULE = {"fp16": 2.0, "bf16": 2.0, "tf32": 1.0}
"""Tensor-core operations per joule, relative to TF32, by dtype."""

GROUPS, GROUP_WIDTH = 32.0, 4.0
"""Numbers of groups (multiples of this) and least width of a group for which cuDNN has grouped tensor-core kernels, whose
names end in `_g32`. From steps of ResNeXt; networks with other numbers of groups (RegNet) take up to 2.7 times as long."""


def on_tensor_cores(d: Dims, gpu: GpuSpec) -> Flags:
    """Whether the GPU's tensor cores support the dtype of each row, shape (rows,)."""
    supported = {dtype: 1.0 for dtype in DTYPES if peak_gflop_per_s(gpu, dtype) is not None}
    return values_of(d.dtype, supported, 0.0) > 0


def evenly_grouped(d: Dims) -> Flags:
    """Rows with several groups for which cuDNN has kernels on tensor cores, shape (rows,)."""
    groups = np.maximum(d("groups", 1.0), 1.0)
    narrowest = np.minimum(d("in_channels"), d("out_channels")) / groups
    return np.asarray((groups > 1.0) & (np.mod(groups, GROUPS) == 0.0) & (narrowest >= GROUP_WIDTH))


def tensor_us(
    name: str, d: Dims, gpu: GpuSpec, memory: BandwidthCurve, l2_gb_per_s: float
) -> Array:
    """Time of convolutions on tensor cores without the kernel's start, us, shape (rows,); NaN where dims are missing.

    Args:
        name: conv2d_forward, conv2d_backward_data or conv2d_backward_weight.
        d: dims of the calls; `on_tensor_cores` is true for all of them.
        gpu: the GPU, for its tensor-core peaks, clock, SMs and power.
        memory: bandwidth of DRAM.
        l2_gb_per_s: bandwidth of L2.
    """
    dtype, size, shape = d.dtype, d.element_bytes(), ConvShape.of(d)
    groups, multiple = shape.groups, values_of(dtype, CHANNEL_MULTIPLE, 4.0)
    padded = Dims(
        d.table.assign(
            in_channels=groups * np.ceil(shape.in_channels / groups / multiple) * multiple,
            out_channels=groups * np.ceil(shape.out_channels / groups / multiple) * multiple,
        )
    )
    peak = values_of(
        dtype, {key: 1e3 * (peak_gflop_per_s(gpu, key) or np.nan) for key in DTYPES}, np.nan
    )
    image_bytes = size * (shape.inputs + shape.outputs)
    dram_us = memory.moving_us(image_bytes + size * shape.weights)
    loading = SHARED_FLOP_BYTES * max(gpu.sms, 1) * gpu.clock_mhz
    power, product = _power_limit(dtype, gpu), implicit_product(name, padded)

    def kernel_us(loads: float) -> Array:
        # arithmetic plus operand loads: tensor cores wait while warps load operands from shared memory
        rate = 1.0 / (1.0 / peak + loads * size / loading)
        times = []
        for tile in TILES:
            arithmetic, joined = _tiled_us(product, tile, size, rate, power, gpu, 1e3 * l2_gb_per_s)
            overlapped = (arithmetic**OVERLAP_NORM + dram_us**OVERLAP_NORM) ** (1.0 / OVERLAP_NORM)
            times.append(overlapped + memory.moving_us(joined))
        return np.min(times, axis=0)  # type: ignore[no-any-return]

    patches_us = _patch_us(name, dtype, shape, product, gpu)
    nhwc = np.maximum(kernel_us(1.0), patches_us)
    filled_us = memory.moving_us(size * _padded_elements(shape, multiple)) / LAYOUT_CONVERSION_SHARE
    whole = CONVERSION_CHANNELS * np.ceil(
        np.column_stack([shape.in_channels, shape.out_channels]) / CONVERSION_CHANNELS
    )
    grown = whole / np.column_stack([shape.in_channels, shape.out_channels])
    weights = np.where(grown[:, 0] > 1.0, shape.weights * grown[:, 0], 0.0)
    turned = size * (shape.inputs * grown[:, 0] + shape.outputs * grown[:, 1] + weights)
    converted = nhwc + memory.moving_us(2.0 * turned) / LAYOUT_CONVERSION_SHARE
    gathers = (dtype == "tf32") | gpu.generation.half_gathers
    nchw = converted
    if gathers.any():
        nchw = np.where(
            gathers, np.minimum(np.maximum(kernel_us(NCHW_LOADS), patches_us), converted), converted
        )
    tensor = np.where(d.channels_last(), nhwc + filled_us, nchw)
    # few channels per group use tensor cores poorly: the library computes such convolutions without tensor cores
    plain = np.hypot(shape.flops / (1e3 * gpu.peak_gflop_per_s()), dram_us)
    return np.where(evenly_grouped(d), np.minimum(tensor, plain), tensor)


def _padded_elements(shape: ConvShape, multiple: Array) -> Array:
    """Elements that are read and written to pad images in NHWC to a multiple of channels, shape (rows,).

    cuDNN copies such images (`nhwcAddPaddingKernel`), and the result back. Kernels of several groups are not padded.
    """
    moved = np.zeros(len(multiple))
    for channels, elements in (
        (shape.in_channels, shape.inputs),
        (shape.out_channels, shape.outputs),
    ):
        grown = np.ceil(channels / multiple) * multiple / channels
        moved += np.where((grown > 1.0) & (shape.groups == 1.0), elements * (1.0 + grown), 0.0)
    return moved


def _patch_us(
    name: str,
    dtype: Texts,
    shape: ConvShape,
    product: tuple[Array, ...],
    gpu: GpuSpec,
) -> Array:
    """Least time of half-precision forward convolutions of few channels in large windows, us; 0 for all others."""
    rows, _, columns, _ = product
    few = (
        (shape.window > PATCH_TAPS)
        & (shape.in_channels < PATCH_STEP)
        & (values_of(dtype, BYTES, 4.0) == 2.0)
    )
    waves = np.ceil(
        np.ceil(rows / PATCH_TILE[0]) * np.ceil(columns / PATCH_TILE[1]) / max(gpu.sms, 1)
    )
    steps_us = waves * shape.window * PATCH_STEP_CYCLES / gpu.clock_mhz
    return np.where(few & (shape.groups == 1.0) & (name == "conv2d_forward"), steps_us, 0.0)


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
    split = np.clip(
        np.floor(sms / np.maximum(tiles, 1.0)), 1.0, np.maximum(depth / MIN_REDUCTION, 1.0)
    )
    block_slots = sms * np.ceil(tiles * split / sms)
    full = (
        block_slots
        * depth
        / split
        * np.maximum(2.0 * high * wide / rate, (high + wide) * size / l2)
    )
    powered = 2.0 * rows * depth * columns * groups / power
    joined = np.where(split > 1.0, 2.0 * 4.0 * split * rows * columns * groups, 0.0)
    return throttled_us(full, powered, gpu), joined


def _power_limit(dtype: Texts, gpu: GpuSpec) -> Array:
    """FLOP per us that the power budget sustains, shape (rows,)."""
    energy = gpu.generation.energy_ratio
    return 1e3 * power_gflop_per_s(gpu) * energy * values_of(dtype, FLOP_PER_JOULE, 1.0)
