"""Sizes, work and implicit matrix products of convolutions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Array
from pipeline.families.dims import Dims, Work


def output_size(
    size: Array, window: Array, stride: Array, padding: Array, dilation: Array | float = 1.0
) -> Array:
    """Positions of a convolution or pooling window along one axis, at least 1."""
    reach = dilation * (window - 1.0) + 1.0
    return np.maximum(np.floor((size + 2.0 * padding - reach) / stride) + 1.0, 1.0)


@dataclass(frozen=True)
class ConvShape:
    """A convolution's derived sizes, each of shape (rows,): output height and width, window area, group sizes."""

    batch: Array
    in_channels: Array
    out_channels: Array
    height: Array
    width: Array
    out_height: Array
    out_width: Array
    window: Array
    groups: Array

    @classmethod
    def of(cls, d: Dims) -> ConvShape:
        """Read the convolution dims of a table; `_w` columns default to the square case."""
        kernel, size, stride, padding = (
            d("kernel_size"),
            d("input_size"),
            d("stride", 1.0),
            d("padding", 0.0),
        )
        dilation = d("dilation", 1.0)
        kernel_w, width = d("kernel_size_w", kernel), d("input_size_w", size)
        return cls(
            d("B"),
            d("in_channels"),
            d("out_channels"),
            size,
            width,
            output_size(size, kernel, stride, padding, dilation),
            output_size(width, kernel_w, d("stride_w", stride), d("padding_w", padding), dilation),
            kernel * kernel_w,
            np.maximum(d("groups", 1.0), 1.0),
        )

    @property
    def inputs(self) -> Array:
        """Elements of the input image."""
        return self.batch * self.in_channels * self.height * self.width

    @property
    def outputs(self) -> Array:
        """Elements of the output image."""
        return self.batch * self.out_channels * self.out_height * self.out_width

    @property
    def weights(self) -> Array:
        """Elements of the filter."""
        return self.out_channels * self.in_channels / self.groups * self.window

    @property
    def flops(self) -> Array:
        """Direct-convolution FLOPs; the same for forward, data gradient and weight gradient."""
        return 2.0 * self.outputs * self.in_channels / self.groups * self.window


def implicit_product(name: str, d: Dims) -> tuple[Array, Array, Array, Array]:
    """The matrix product that equals a convolution: (rows, reduction, columns, groups), each of shape (rows,)."""
    c = ConvShape.of(d)
    inside, outside = c.in_channels / c.groups, c.out_channels / c.groups
    if name == "conv2d_backward_data":
        # with a stride, each input pixel meets only a part of the window's taps; libraries skip the zeros between them
        taps = np.maximum(
            np.rint(outside * c.window * c.out_height * c.out_width / (c.height * c.width)), 1.0
        )
        return c.batch * c.height * c.width, taps, inside, c.groups
    if name == "conv2d_backward_weight":
        return inside * c.window, c.batch * c.out_height * c.out_width, outside, c.groups
    return c.batch * c.out_height * c.out_width, inside * c.window, outside, c.groups


def conv_work(name: str, d: Dims) -> Work:
    """Read two of image, filter and output (their gradients in a backward), write the third."""
    c, size = ConvShape.of(d), d.element_bytes()
    third = {"conv2d_backward_data": c.inputs, "conv2d_backward_weight": c.weights}
    written = third.get(name, c.outputs)
    total = c.inputs + c.weights + c.outputs
    return Work(c.flops, size * (total - written), size * written)
