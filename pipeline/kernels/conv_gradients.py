"""Extra time of fp32 convolution gradients over a forward pass of the same arithmetic.

The rules come from the backward kernels of the V100 trace (`benchmarks/kernels/image_kernels.py --convolutions`). The
RTX 2080 Ti's kernels check them. The data gradient at stride 1 takes as long as a forward convolution. Other gradients
differ:

- A data gradient with a larger stride runs in `dgrad_engine`, where cuDNN has no Winograd and no modern implicit
  product.
- The weight gradient of a 1 x 1 window is a product with a long reduction and few outputs. It is split over blocks.
  They read both images once and add up partial sums, so traffic does not overlap with arithmetic.
- The weight gradient of a 3 x 3 window at stride 1 never runs the fused Winograd kernel, which the forward pass uses on
  large images with few channels. It runs the unfused one, which stores transformed tiles in DRAM.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.work import Array, ConvShape, Dims

STRIDED_GRADIENT = 1.5
"""Time of a data gradient with a stride above 1, over the time of its arithmetic at the attainable peak.

Five of six such gradients in the V100 trace reach 8.2 to 9.2 of 14 TFLOP/s, with 1 x 1 and with 3 x 3 windows."""

WINOGRAD_POINTS, WINOGRAD_OUTPUTS = 36.0, 4.0
"""Winograd F(4x4, 3x3): products per tile, and outputs along a tile's edge."""


def gradient_us(name: str, d: Dims, kernel_us: Array, product_us: Array, peak: Array, memory: BandwidthCurve) -> Array:
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
        return np.where(strided, np.fmax(kernel_us, STRIDED_GRADIENT * shape.flops / peak), kernel_us)
    if name != "conv2d_backward_weight":
        return kernel_us
    # with a stride, rows of pixels between the visited ones are not read
    images = memory.moving_us(size * (shape.inputs / stride + shape.outputs))
    tiles = shape.batch * np.ceil(shape.out_height / WINOGRAD_OUTPUTS) * np.ceil(shape.out_width / WINOGRAD_OUTPUTS)
    held = size * WINOGRAD_POINTS * tiles * (shape.in_channels + shape.out_channels)
    products = 2.0 * WINOGRAD_POINTS * tiles * shape.in_channels * shape.out_channels / peak
    transformed = memory.moving_us(size * (shape.inputs + shape.outputs) + 2.0 * held) + products
    winograd = (d("kernel_size") == 3.0) & (shape.window == 9.0) & (stride == 1.0) & (shape.groups == 1.0)
    found = np.where(winograd, np.fmax(kernel_us, np.fmin(transformed, product_us)), kernel_us)
    return np.where(shape.window == 1.0, kernel_us + np.nan_to_num(images), found)
