"""The families of convolutions: their registration, their times by physics, and their feature columns."""

from __future__ import annotations

from functools import partial

import numpy as np

from pipeline.arrays import Array
from pipeline.families.conv_shape import ConvShape, conv_work, implicit_product
from pipeline.families.convolutions import (
    gradient_us,
    grouped,
    grouped_us,
    spread,
    volumes,
    winograd,
)
from pipeline.families.dims import Dims
from pipeline.families.family import (
    Calls,
    Columns,
    Family,
    Law,
    alignment,
    product_us,
    wave_columns,
)
from pipeline.families.tensor_cores import on_tensor_cores, tensor_us

CONV_TILES = ((128, 128), (128, 64), (128, 32), (64, 64))
"""Tiles (along positions, along channels) in the names of the cuDNN and cuBLAS kernels of convolutions."""


def computed_flop_per_us(c: Calls) -> Array:
    """Throughput of each call outside tensor cores and convolution kernels, FLOP per us, shape (rows,).

    Before tensor cores, cuDNN computes convolutions of half-precision images in fp32 (`ConvShared.cpp` asks for it), also where
    the GPU has a faster fp16 rate (P100).
    """
    dtype = c.dtype
    if not c.chip.is_cpu and c.chip.gpu.compute_capability < 7.0:
        dtype = np.where(dtype == "fp64", "fp64", "fp32").astype(object)
    return c.chip.flop_per_us(dtype)


def with_gradients_us(c: Calls, kernel_us: Array, implicit_us: Array | None = None) -> Array:
    """Times of fp32 gradients, from those of forward convolutions or products of the same arithmetic (`gradient_us`)."""
    implicit_us = product_us(c) if implicit_us is None else implicit_us
    peak = computed_flop_per_us(c)
    return gradient_us(c.family.name, c.d, kernel_us, implicit_us, peak, c.chip.memory)


def conv_us(c: Calls) -> Array:
    """Times of convolutions on a GPU, from those of matrix products with the same arithmetic.

    Gradients, convolutions on tensor cores and those with several groups have formulas of their own. Where TF32 is allowed, the
    library may take its fp32 kernel of a volume (of an image, `derived_calls` takes the shorter).
    """
    d, chip, name = c.d, c.chip, c.family.name
    on_tensor, in_groups = on_tensor_cores(d, chip.gpu), grouped(d)
    # no kernel but Winograd's beats plain arithmetic, also where the measured peak is that of a board with a faster clock
    direct = ~(on_tensor | winograd(d))
    rates = [chip.gpu.peak_gflop_per_s("fp64"), chip.gpu.fp32_gflop_per_s]
    rate = np.select([c.dtype == "fp64", direct], rates, np.inf)
    arithmetic = c.start + c.work.flops / (1e3 * rate)
    plain = np.fmax(product_us(c, computed_flop_per_us(c)), arithmetic)
    plain = with_gradients_us(c, plain, plain)
    tensor = np.full(d.rows, np.inf)
    if on_tensor.any():
        part = d.at(on_tensor)
        tensor[on_tensor] = tensor_us(name, part, chip.gpu, chip.memory, chip.l2_gb_per_s)
        known = on_tensor & np.isfinite(tensor)
        plain = np.where(known, c.start + tensor, plain)
    if in_groups.any():
        moving = chip.memory.moving_us(c.work.bytes[in_groups])
        fp32 = 1e3 * chip.gpu.peak_gflop_per_s()
        times = grouped_us(name, d.at(in_groups), chip.gpu, moving, fp32, tensor[in_groups])
        plain[in_groups] = np.where(np.isfinite(times), c.start + times, plain[in_groups])
    times = np.fmax(plain, arithmetic)
    free = on_tensor & volumes(d) & (c.dtype == "tf32")
    if free.any():
        fp32_calls = c.family.on(chip, Dims(d.table[free].assign(dtype="fp32")))
        times[free] = np.fmin(times[free], conv_us(fp32_calls))
    return times


def conv_spread(c: Calls, usual: float) -> Array | float:
    """Factors between a time and the ends of its interval."""
    return usual if c.chip.is_cpu else spread(c.d, c.chip.gpu, usual)


def conv_columns(columns: Columns, calls: Calls) -> None:
    """Sizes, tiles and waves of implicit products, of Winograd's products, and of its fused kernels."""
    c, sms = ConvShape.of(calls.d), calls.chip.sms
    rows, depth, width, groups = implicit_product(calls.family.name, calls.d)
    sizes = c.in_channels, c.out_channels, c.height
    columns.log(c.batch, *sizes, c.window, rows, depth)
    for tile_m, tile_k in CONV_TILES:
        blocks = groups * np.ceil(rows / tile_m) * np.ceil(width / tile_k)
        wave_columns(columns, blocks, groups * rows * width / (blocks * tile_m * tile_k), sms)
    # Winograd works on tiles of 4 x 4 (or 2 x 2) outputs: 36 (16) products of tiles x in x out channels
    for edge, products in ((4.0, 36.0), (2.0, 16.0)):
        tiles = c.batch * np.ceil(c.out_height / edge) * np.ceil(c.out_width / edge)
        columns.log(2.0 * products * tiles * c.in_channels * c.out_channels, tiles)
        columns.add(c.out_height / (edge * np.ceil(c.out_height / edge)))
    # products of the unfused variant; their grids have tiles along x, out channels along y, and 36 along z
    tiles = c.batch * np.ceil(c.out_height / 4.0) * np.ceil(c.out_width / 4.0)
    for tile_m, tile_k in ((128, 128), (64, 64), (32, 128)):
        blocks = 36.0 * np.ceil(tiles / tile_m) * np.ceil(c.out_channels / tile_k)
        useful = 36.0 * tiles * c.out_channels / (blocks * tile_m * tile_k)
        wave_columns(columns, blocks, useful, sms)
    # the fused variant: `tileNHW` in its kernel name counts images and 2 x 2 outputs; a block has 32 out channels
    for images, high, wide in ((1.0, 4.0, 8.0), (4.0, 4.0, 2.0), (2.0, 4.0, 4.0)):
        tall, broad = np.ceil(c.out_height / (2.0 * high)), np.ceil(c.out_width / (2.0 * wide))
        blocks = np.ceil(c.batch / images) * np.ceil(c.out_channels / 32.0) * tall * broad
        useful = c.outputs / (blocks * images * high * wide * 4.0 * 32.0)
        wave_columns(columns, blocks, useful, sms)
        columns.log(np.ceil(blocks / sms) * np.ceil(c.in_channels / 8.0))
    columns.add(*map(alignment, (*sizes, rows)))
    # FFT sizes
    columns.log(np.exp2(np.ceil(np.log2(np.maximum(c.height + 2.0, 2.0)))))
    columns.log(c.inputs, c.outputs, c.weights)


def _family(name: str, start: tuple[float, float], colour: str) -> Family:
    return Family(
        name,
        ("B", "in_channels", "out_channels", "kernel_size", "input_size"),
        Law.COMPUTE,
        partial(conv_work, name),
        ("conv",),
        (
            *("stride", "padding", "groups", "dilation"),
            *("kernel_size_w", "input_size_w", "stride_w", "padding_w"),
        ),
        start=start,
        time=conv_us,
        reference=product_us,
        product=partial(implicit_product, name),
        columns=conv_columns,
        spread=conv_spread,
        colour=colour,
    )


FAMILIES = (
    _family("conv2d_forward", (7.0, 4.2), "#F2A93B"),
    _family("conv2d_backward_data", (7.0, 5.0), "#C8500A"),
    _family("conv2d_backward_weight", (7.0, 7.0), "#7A2F04"),
)
