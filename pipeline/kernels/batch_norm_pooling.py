"""Times of batch norm and pooling of images, whose kernels reach less bandwidth than plain element-wise kernels.

The constants come from the kernels of the V100 trace (ResNet-50, 32 images, `benchmarks/kernels/image_kernels.py`). The
RTX 2080 Ti's trace (ResNet-18, 128 images) checks them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.work import Array, Dims

FAMILIES = ("batch_norm", "pooling")

BATCH_NORM_SHARE = 0.86
"""Bandwidth of batch norm over that of element-wise kernels, from the sum of all 106 kernels of the V100 trace.

A block works on one channel: it sums the channel, waits, and reads it again. If the channel fits the block's registers
(`singleread`), it is read once. But then loads and stores do not overlap, so these kernels take as long as three
passes."""

POOL_CLOCKS = 5.3
"""SM clock cycles per pixel of the larger image in the gradient of a max pooling (NCHW layout).

For each pixel, the kernel checks every window over it for the position of the maximum, with 8-byte indices. The V100
trace has 1,113 us for 25.7 million pixels on 80 SMs at 1.53 GHz."""


def image_us(name: str, d: Dims, moving_us: Array, gpu: GpuSpec) -> Array:
    """Time of batch norm and pooling without the start, us, shape (rows,); `moving_us` is the time of the bytes."""
    if name == "batch_norm":
        return moving_us / BATCH_NORM_SHARE
    asked = d.backward() & pd.Series(d.text("op")).str.startswith("max").to_numpy(dtype=bool) & ~channels_last(d)
    pixels = np.nan_to_num(d("B", 1.0) * d("C") * d("HW", 1.0))
    clocks_us = POOL_CLOCKS * pixels / (max(gpu.sms, 1) * max(gpu.boost_clock_mhz, 1.0))
    return np.where(asked, np.maximum(moving_us, clocks_us), moving_us)


def channels_last(d: Dims) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows whose images have the channels innermost (`layout` of a call's attributes), shape (rows,)."""
    return pd.Series(d.text("attributes")).str.contains('"layout":"nhwc"', regex=False).to_numpy(dtype=bool)
