"""The families of kernels over images: batch norm and pooling."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.families.dims import Dims, Work
from pipeline.families.family import IO, Calls, Family, Law, movement_us

BATCH_NORM_SHARE = 0.86
"""Bandwidth of batch norm over that of element-wise kernels, from the V100 trace. A block sums a channel, waits, and reads
it again. A channel in registers is read once, but then loads and stores do not overlap: it takes as long."""

CHANNEL_ELEMENTS_PER_US = (1640.0, 690.0)
"""Elements that the block of a channel normalises in a microsecond, forward and backward: few channels leave SMs idle (cuDNN's
`bn_fw_tr_1C11`, measured on an H100). Memory latency sets it, not the clock. Training on an RTX 3090 shows no such limit."""

CLOCKS = {
    "max pixel": 2.95, "former max pixel": 5.3, "average pixel": 4.1,
    "average window": 0.39, "tap": 0.4,
}  # fmt: skip
"""Clock cycles of an SM in pooling in NCHW, measured on an H100: a pixel of the larger image in the gradient, which checks every
window over it (`former`: V100 trace, before Ampere); each window over it; a pixel of a window forward."""


def images(d: Dims) -> Array:
    """Elements of B images of C channels and HW pixels."""
    return d("B", 1.0) * d("C") * d("HW", 1.0)


def batch_norm_work(d: Dims) -> Work:
    """One pass for statistics, which inference knows, one to normalise. A backward reads gradient and input twice."""
    elements, size = images(d), d.element_bytes()
    passes = np.where(d.backward(), 4.0, np.where(d.op_in(("batch_norm_inference",)), 1.0, 2.0))
    moved = size * elements
    return Work(8.0 * elements, d("inputs", passes * moved), d("outputs", moved))


def pooling_work(d: Dims) -> Work:
    """Pooling over HW input positions. Without column `outputs`, the window is 2 x 2, so a quarter is written."""
    large, back = d.element_bytes() * images(d), d.backward()
    read, written = np.where(back, large / 4.0, large), np.where(back, large, large / 4.0)
    return Work(images(d), d("inputs", read), d("outputs", written))


def batch_norm_us(c: Calls) -> Array:
    """Time of batch norm; with known statistics it is an element-wise kernel."""
    rate = np.where(c.d.backward(), *reversed(CHANNEL_ELEMENTS_PER_US))
    limited = ~c.d.channels_last() & c.chip.is_recent
    channel_us = limited * np.nan_to_num(c.d("B", 1.0) * c.d("HW", 1.0)) / rate
    trained = np.maximum(c.moving_us / BATCH_NORM_SHARE, channel_us)
    return c.start + np.where(c.d.op_in(("batch_norm_inference",)), c.moving_us, trained)


def pooling_us(c: Calls) -> Array:
    """Time of pooling, which NCHW images may limit by pixels."""
    d, op = c.d, pd.Series(c.d.op)
    greatest, average = (op.str.startswith(start).to_numpy(bool) for start in ("max", "av"))
    pixels, taps = np.nan_to_num(images(d)), d("kernel_size", 2.0) ** 2
    windows = taps / d("stride", 2.0) ** 2
    outputs = d("outputs") / (d.element_bytes() + np.where(greatest, 8.0, 0.0))
    forward = CLOCKS["tap"] * np.where(np.isnan(outputs), pixels * windows, outputs * taps)
    greatest_clocks = CLOCKS[c.chip.gpu.generation.max_pooling]
    average_clocks = CLOCKS["average pixel"] + CLOCKS["average window"] * windows
    gradient = pixels * np.where(greatest, greatest_clocks, average_clocks)
    clocks_us = np.where(d.backward(), gradient, forward) / c.chip.clocks_per_us()
    limited = (greatest | average) & ~d.channels_last()
    return c.start + np.where(limited, np.maximum(c.moving_us, clocks_us), c.moving_us)


FAMILIES = (
    Family(
        "batch_norm", ("B", "C", "HW"), Law.MOVEMENT, batch_norm_work,
        ("batch_norm", "batch_norm_inference"), IO, start=(5.0, 3.4), time=batch_norm_us,
        reference=movement_us, colour="#D98AB6",
    ),
    Family(
        "pooling", ("B", "C", "HW"), Law.MOVEMENT, pooling_work, ("max", "average", "adaptive"),
        IO, start=(4.0, 2.0), time=pooling_us, reference=movement_us, colour="#F6DCEA",
    ),
)  # fmt: skip
