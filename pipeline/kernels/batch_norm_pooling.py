"""Batch norm and pooling of images: what keeps their kernels below the bandwidth of plain element-wise ones.

Read off the kernels of the V100 trace (ResNet-50, 32 images, `benchmarks/kernels/image_kernels.py`); the RTX 2080 Ti's
(ResNet-18, 128 images) is the check.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.work import Array, Dims

FAMILIES = ("batch_norm", "pooling")

BATCH_NORM_SHARE = 0.86
"""Bandwidth of batch norm over that of element-wise kernels: a block works on one channel, sums it, waits, and reads it
again. Of a channel that fits a block's registers (`singleread`) the second reading is saved, but the block loads and
stores in turn: such kernels take as long as three passes. Sum of all 106 kernels of the V100 trace."""

POOL_CLOCKS = 5.3
"""Clocks of one SM that the gradient of a max pooling takes for each pixel of the larger image, in NCHW: the kernel asks
every window over a pixel whether its maximum was there, with 8-byte indices. 1,113 us for 25.7 million pixels on the
trace's 80 SMs at 1.53 GHz."""


def image_us(name: str, d: Dims, moving_us: Array, gpu: GpuSpec) -> Array:
    """Time beyond the start of batch norm and pooling, us, shape (rows,); `moving_us` is what the bytes alone take."""
    if name == "batch_norm":
        return moving_us / BATCH_NORM_SHARE
    asked = d.backward() & pd.Series(d.text("op")).str.startswith("max").to_numpy(dtype=bool) & ~channels_last(d)
    pixels = np.nan_to_num(d("B", 1.0) * d("C") * d("HW", 1.0))
    clocks_us = POOL_CLOCKS * pixels / (max(gpu.sms, 1) * max(gpu.boost_clock_mhz, 1.0))
    return np.where(asked, np.maximum(moving_us, clocks_us), moving_us)


def channels_last(d: Dims) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Rows whose images lie with the channels innermost (`layout` of a call's attributes), shape (rows,)."""
    return pd.Series(d.text("attributes")).str.contains('"layout":"nhwc"', regex=False).to_numpy(dtype=bool)
