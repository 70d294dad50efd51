"""What gradients of convolutions in fp32 take beyond a forward pass of the same arithmetic.

Read off the backward kernels of the V100 trace (`benchmarks/kernels/image_kernels.py --convolutions`); the RTX 2080 Ti's
are the check. The data gradient at stride 1 is a convolution like any other. But:

- at a stride it runs in `dgrad_engine`, for which cuDNN has no Winograd and no modern implicit product;
- the weight gradient of a 1 x 1 window is a product with a long reduction and few outputs: it is split over blocks, which
  read both images once and add up in between, so that traffic does not overlap with arithmetic;
- the weight gradient of a 3 x 3 window at stride 1 is never the fused Winograd kernel that the forward pass takes on large
  images with few channels, but the transformed one, through DRAM.
"""

from __future__ import annotations

import numpy as np

from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.work import Array, ConvShape, Dims

STRIDED_GRADIENT = 1.5
"""Arithmetic of a data gradient at a stride over the attainable peak's time: 8.2 to 9.2 of 14 TFLOP/s for five of six
such gradients in the V100 trace, 1 x 1 and 3 x 3 alike."""

WINOGRAD_POINTS, WINOGRAD_OUTPUTS = 36.0, 4.0
"""F(4x4, 3x3): products, and outputs on a tile's edge."""


def gradient_us(name: str, d: Dims, kernel_us: Array, product_us: Array, peak: Array, memory: BandwidthCurve) -> Array:
    """Times of gradients from those of forward convolutions or products of the same arithmetic, us, shape (rows,).

    Args:
        name: family; other families' and forward times stay.
        d: dims of the calls.
        kernel_us: time as a forward convolution or plain product.
        product_us: time as an implicit product by physics, which the library has for everything.
        peak: attainable FLOP per us by the rows' dtypes.
        memory: bandwidth of DRAM.
    """
    shape, size, stride = ConvShape.of(d), d.element_bytes(), d("stride", 1.0)
    if name == "conv2d_backward_data":
        strided = np.maximum(stride, d("stride_w", stride)) > 1.0
        return np.where(strided, np.fmax(kernel_us, STRIDED_GRADIENT * shape.flops / peak), kernel_us)
    if name != "conv2d_backward_weight":
        return kernel_us
    # rows of pixels between those that a stride visits are not read
    images = memory.moving_us(size * (shape.inputs / stride + shape.outputs))
    tiles = shape.batch * np.ceil(shape.out_height / WINOGRAD_OUTPUTS) * np.ceil(shape.out_width / WINOGRAD_OUTPUTS)
    held = size * WINOGRAD_POINTS * tiles * (shape.in_channels + shape.out_channels)
    products = 2.0 * WINOGRAD_POINTS * tiles * shape.in_channels * shape.out_channels / peak
    transformed = memory.moving_us(size * (shape.inputs + shape.outputs) + 2.0 * held) + products
    winograd = (d("kernel_size") == 3.0) & (shape.window == 9.0) & (stride == 1.0) & (shape.groups == 1.0)
    found = np.where(winograd, np.fmax(kernel_us, np.fmin(transformed, product_us)), kernel_us)
    return np.where(shape.window == 1.0, kernel_us + np.nan_to_num(images), found)
