"""Times of fp32 convolution gradients, and of depthwise and grouped convolutions.

Gradients take the time of a forward pass of the same arithmetic, and extra time by rules from the V100 trace
(`evaluation/checks/image_kernel_times.py`). The data gradient at stride 1 takes as long as a forward
convolution. Other gradients differ:

- A data gradient with a larger stride runs in `dgrad_engine`, where cuDNN has no Winograd and no modern implicit
  product.
- The weight gradient of a 1 x 1 window is a product with a long reduction and few outputs. It is split over blocks.
  They read both images once and add up partial sums, so traffic does not overlap with arithmetic.
- The weight gradient of a 3 x 3 window at stride 1 never runs the fused Winograd kernel, which the forward pass uses on
  large images with few channels. It runs the unfused one, which stores transformed tiles in DRAM.

PyTorch computes a depthwise convolution (one input channel per group) with kernels of its own, unless
`use_cudnn_depthwise` in aten/src/ATen/native/Convolution.cpp chooses cuDNN. Other grouped convolutions run in cuDNN:

- `_native_us`: PyTorch's kernels. They use no tensor cores, so TF32 and fp32 take the same time. In the forward pass and
  the data gradient, a thread computes one element. Integer divisions give its position, and every tap of the window
  costs address arithmetic, bounds checks and two loads. Instruction issue limits it, or DRAM. In the weight gradient, a
  block sums one weight over all images. A warp takes one image at a time and 32 pixels per pass. A pass is one chain of
  dependent instructions, so its latency and the number of resident blocks limit the kernel.
- `_library_us`: cuDNN's kernels, direct or implicit products whose tiles hold at least `NARROWEST` columns of a group.
  They compute depthwise convolutions in NHWC, and all grouped and transposed ones. On tensor cores `tensor_cores` gives
  another time, and the library takes the shorter.

The constants come from published times of single kernels (docs/notes/kernels.md lists them), and one from steps.
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array, Flags
from pipeline.families.chip import BandwidthCurve
from pipeline.families.conv_shape import ConvShape, implicit_product
from pipeline.families.dims import Dims
from pipeline.families.tensor_cores import evenly_grouped, on_tensor_cores
from pipeline.hardware.spec import GpuSpec

STRIDED_GRADIENT = 1.5
"""Time of a data gradient with a stride above 1, over the time of its arithmetic at the attainable peak (V100 trace)."""

WINOGRAD_POINTS, WINOGRAD_OUTPUTS = 36.0, 4.0
"""Winograd F(4x4, 3x3): products per tile, and outputs along a tile's edge."""


def gradient_us(
    name: str, d: Dims, kernel_us: Array, product_us: Array, peak: Array, memory: BandwidthCurve
) -> Array:
    """Times of gradients, from times of forward convolutions or products of the same arithmetic; us, shape (rows,).

    Args:
        name: family; times of other families and of forward passes do not change.
        d: dims of the calls.
        kernel_us: time as a forward convolution or plain product.
        product_us: time as an implicit product by physics; the library has such a kernel for every gradient.
        peak: attainable FLOP per us by the rows' dtypes.
        memory: bandwidth of DRAM.
    """
    shape, size, stride = ConvShape.of(d), d.element_bytes(), d("stride", 1.0)
    if name == "conv2d_backward_data":
        strided = np.maximum(stride, d("stride_w", stride)) > 1.0
        return np.where(
            strided, np.fmax(kernel_us, STRIDED_GRADIENT * shape.flops / peak), kernel_us
        )
    if name != "conv2d_backward_weight":
        return kernel_us
    # with a stride, rows of pixels between the visited ones are not read
    images = memory.moving_us(size * (shape.inputs / stride + shape.outputs))
    tiles = (
        shape.batch
        * np.ceil(shape.out_height / WINOGRAD_OUTPUTS)
        * np.ceil(shape.out_width / WINOGRAD_OUTPUTS)
    )
    transformed_bytes = size * WINOGRAD_POINTS * tiles * (shape.in_channels + shape.out_channels)
    products = 2.0 * WINOGRAD_POINTS * tiles * shape.in_channels * shape.out_channels / peak
    transformed = (
        memory.moving_us(size * (shape.inputs + shape.outputs) + 2.0 * transformed_bytes) + products
    )
    times = np.where(winograd(d), np.fmax(kernel_us, np.fmin(transformed, product_us)), kernel_us)
    return np.where(shape.window == 1.0, kernel_us + np.nan_to_num(images), times)


THREAD_INSTRUCTIONS = 200.0
"""Instructions of a thread of PyTorch's depthwise kernels outside the taps: three integer divisions, and the loop. From 2D
and 3D windows on a V100."""

TAP_INSTRUCTIONS = {"conv2d_forward": 22.0, "conv2d_backward_data": 38.0}
"""Instructions per tap of PyTorch's depthwise kernels. The gradient also tests whether the stride divides a position."""

PASS_CLOCKS = 1200.0
"""Clock cycles of a warp's pass over 32 pixels in PyTorch's weight gradient, median of ten published times."""

MAX_BLOCK_WARPS = 8.0
"""Largest number of warps of a block of the weight gradient: `getGradParamsNumThreads`, 256 threads."""

LIBRARY_INSTRUCTIONS = {
    "conv2d_forward": 4.0,
    "conv2d_backward_data": 4.0,
    "conv2d_backward_weight": 20.0,
}
"""Instructions per multiply-add of cuDNN's direct kernels. From fp16 windows of 5 x 5 on 8 x 64 images of 1024 x 1008:
3.2 ms for the forward pass, 26.4 ms for both gradients, if the GPU is an A100."""

LIBRARY_THREAD_INSTRUCTIONS = 150.0
"""Instructions per element of cuDNN's depthwise kernels in NHWC outside the taps, from published training steps of
MobileNetV3-Large and EfficientNet-B0 on an RTX 3090."""

NHWC_GROUP_INSTRUCTIONS = 0.71
"""Instructions per multiply-add of cuDNN's direct kernels (`conv2d_grouped_direct_kernel`) in NHWC, over
`LIBRARY_INSTRUCTIONS`, where their blocks are full. Set on training steps of 18 networks of timm, tuning rows of
docs/accuracy.md; without blocks, these rows give 1.0."""

BLOCK_CHANNELS, DEPTHWISE_CHANNELS = 256.0, 64.0
"""Channels of a block of these kernels, and of cuDNN's kernels of depthwise convolutions in NHWC (same rows)."""

SPECIAL_WINDOW = 49.0
"""Largest window of cuDNN's kernels of depthwise convolutions in NHWC (`conv2d_c1_k1_nhwc_kernel_specialized`)."""

LARGE_WINDOW_INSTRUCTIONS = 93.0
"""Instructions per multiply-add of depthwise convolutions of larger windows in NHWC, which run in general kernels (same rows)."""

NARROWEST = 32.0
"""Smallest number of rows and columns of a tile of cuDNN's implicit products in fp32 (128x32, 32x32)."""

MIN_DEPTHWISE_CHANNELS, MIN_DEPTHWISE_WIDTH = 32.0, 7.0
"""Least number of channels and least width of images of a depthwise convolution in NCHW that PyTorch gives to cuDNN."""

NATIVE_SPREAD, LIBRARY_SPREAD = 1.6, 2.2
"""Factors between the time and the ends of p10 to p90, for PyTorch's kernels (published times are within a factor of 1.4)
and for cuDNN's, of which single kernels were not compared."""


def winograd(d: Dims) -> Flags:
    """Rows that cuDNN's transforms compute with fewer products: windows of 3 x 3 without a stride, shape (rows,)."""
    square = (d("kernel_size") == 3.0) & (ConvShape.of(d).window == 9.0)
    return np.asarray(square & (d("stride", 1.0) == 1.0) & sampled_kind(d))


def grouped(d: Dims) -> Flags:
    """Rows with more than one group, shape (rows,)."""
    return d("groups", 1.0) > 1.0


def volumes(d: Dims) -> Flags:
    """3D convolutions, shape (rows,). cuDNN has no Winograd for them, and no sample of them was at hand."""
    return d.flag("volume")


def sampled_kind(d: Dims) -> Flags:
    """Rows of the kind that samples hold, 2D convolutions with one group; others run in other kernels. Shape (rows,)."""
    return ~grouped(d) & ~volumes(d)


def depthwise(d: Dims) -> Flags:
    """Rows that PyTorch calls depthwise: one input channel per group, not transposed; shape (rows,).

    The dims of a 3D convolution count the slices of the window as channels. The attribute `single_channel` marks those with
    one channel per group.
    """
    groups = d("groups", 1.0)
    single_channel = (d("in_channels") == groups) | d.flag("single_channel")
    multiple = np.mod(d("out_channels"), np.maximum(groups, 1.0)) == 0.0
    return np.asarray((groups > 1.0) & single_channel & multiple & ~d.flag("transposed"))


def cudnn_depthwise(d: Dims, capability: float) -> Flags:
    """Rows that PyTorch gives to cuDNN if they are depthwise (`use_cudnn_depthwise`), shape (rows,).

    The rule is that of PyTorch since 1.11, with cuDNN 8.2 or newer. Images of 2^31 elements or more are not considered.
    """
    kernel, height, stride = d("kernel_size"), d("input_size"), d("stride", 1.0)
    wide, width, across = (
        d("kernel_size_w", kernel),
        d("input_size_w", height),
        d("stride_w", stride),
    )
    batch, channels = d("B"), d("in_channels")
    large = (channels >= 512.0) | ((channels >= 256.0) & (width >= 28.0))
    point = (batch <= 16.0) & (channels >= 128.0) & (width <= 7.0)
    halved = np.where(
        batch == 1.0, (kernel > 1.0) | (width <= 28.0), np.where(kernel > 1.0, large, point)
    ).astype(bool)
    square = (kernel == wide) & np.isin(kernel, (1.0, 3.0, 5.0)) & (width >= MIN_DEPTHWISE_WIDTH)
    line = (height == 1.0) & (across == 1.0)
    fits = line | (square & ((across == 1.0) | ((across == 2.0) & halved)))
    half = (d.dtype == "fp16") & (capability >= 7.0) & ~volumes(d)
    plain = (d("dilation", 1.0) == 1.0) & ((stride == across) | (height == 1.0))
    return np.asarray(
        d.channels_last() | (half & plain & fits & (channels >= MIN_DEPTHWISE_CHANNELS))
    )


def native(d: Dims, capability: float) -> Flags:
    """Rows that run in PyTorch's own depthwise kernels on a GPU of this compute capability, shape (rows,)."""
    return depthwise(d) & ~cudnn_depthwise(d, capability)


def grouped_us(
    name: str, d: Dims, gpu: GpuSpec, moving_us: Array, peak: float, tensor_us: Array
) -> Array:
    """Times of grouped convolutions without the kernel's start, us, shape (rows,); NaN where dims are missing.

    Args:
        name: conv2d_forward, conv2d_backward_data or conv2d_backward_weight.
        d: dims of the calls; all have more than one group.
        gpu: the GPU, with limits of its SMs.
        moving_us: time of the calls' traffic.
        peak: attainable FLOP per us outside tensor cores.
        tensor_us: times on tensor cores; infinite where the GPU has none for the dtype.
    """
    plain = np.hypot(_library_us(name, d, gpu, peak), moving_us)
    library = np.where(only_direct(d, gpu), plain, np.fmin(plain, tensor_us))
    return np.where(
        native(d, gpu.compute_capability), np.maximum(_native_us(name, d, gpu), moving_us), library
    )


def spread(d: Dims, gpu: GpuSpec, usual: float) -> Array:
    """Factors between a time and the ends of its p10 to p90, shape (rows,).

    `usual` holds for images and one group, and for those of which steps were published (ResNeXt).
    """
    published = sampled_kind(d) | (evenly_grouped(d) & on_tensor_cores(d, gpu) & ~volumes(d))
    return np.where(
        native(d, gpu.compute_capability), NATIVE_SPREAD, np.where(published, usual, LIBRARY_SPREAD)
    )


def _instructions_per_us(gpu: GpuSpec) -> float:
    """Instructions of single threads that all SMs issue per us."""
    limits = gpu.limits
    assert limits is not None
    return float(gpu.sms * limits.schedulers_per_sm * limits.warp_size * gpu.clock_mhz)


def _native_us(name: str, d: Dims, gpu: GpuSpec) -> Array:
    """Times of PyTorch's depthwise kernels where DRAM is no limit, us, shape (rows,)."""
    shape = ConvShape.of(d)
    slices = shape.in_channels / shape.groups  # of the window of a 3D convolution
    taps, pixels = slices * shape.window, shape.out_height * shape.out_width
    if name == "conv2d_backward_weight":
        warps = np.clip(shape.batch, 1.0, MAX_BLOCK_WARPS)
        resident = np.minimum(np.floor(gpu.max_warps_per_sm / warps), gpu.max_blocks_per_sm)
        waves = np.ceil(shape.out_channels * taps / (max(gpu.sms, 1) * np.maximum(resident, 1.0)))
        passes = np.ceil(shape.batch / warps) * np.ceil(pixels / 32.0)
        return np.asarray(waves * passes * PASS_CLOCKS / gpu.clock_mhz)
    threads = shape.outputs
    if name == "conv2d_backward_data":
        threads = shape.batch * shape.groups * shape.height * shape.width
        taps = taps * shape.out_channels / shape.groups
    return (
        threads * (THREAD_INSTRUCTIONS + TAP_INSTRUCTIONS[name] * taps) / _instructions_per_us(gpu)
    )


def _library_us(name: str, d: Dims, gpu: GpuSpec, peak: float) -> Array:
    """Arithmetic times of cuDNN's kernels outside tensor cores, the shorter of direct and implicit product, us."""
    shape, nhwc = ConvShape.of(d), d.channels_last()
    elements, products = (
        shape.inputs if name == "conv2d_backward_data" else shape.outputs,
        shape.flops / 2.0,
    )
    direct = LIBRARY_INSTRUCTIONS[name] * products / _instructions_per_us(gpu)
    rows, depth, columns, groups = implicit_product(name, d)
    tiles = np.ceil(rows / NARROWEST) * np.ceil(columns / NARROWEST)
    times = np.minimum(direct, 2.0 * groups * tiles * NARROWEST**2 * depth / peak)
    times = np.where(
        only_direct(d, gpu), NHWC_GROUP_INSTRUCTIONS * direct * _whole(shape, BLOCK_CHANNELS), times
    )
    single = (LIBRARY_THREAD_INSTRUCTIONS * elements / _instructions_per_us(gpu) + direct) * _whole(
        shape, DEPTHWISE_CHANNELS
    )
    large = LARGE_WINDOW_INSTRUCTIONS * products / _instructions_per_us(gpu)
    single = np.where(shape.window > SPECIAL_WINDOW, large, single)
    return np.where(nhwc & depthwise(d), single, times)


def _whole(shape: ConvShape, block: float) -> Array:
    """Channels of whole blocks over the channels, shape (rows,)."""
    return np.ceil(shape.in_channels / block) * block / shape.in_channels


def only_direct(d: Dims, gpu: GpuSpec) -> Flags:
    """Rows of several groups in NHWC for which the library has direct kernels only (measured in fp16), shape (rows,)."""
    several = grouped(d) & ~depthwise(d) & ~evenly_grouped(d) & ~volumes(d)
    return several & d.channels_last() & (not gpu.generation.newer_convolutions)
