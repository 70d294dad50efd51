"""Device-normalised features of kernel calls: quantities that carry over to other GPUs.

Sizes appear as waves (tiles over SMs), as padding and alignment, and as working sets over the L2 size. Bandwidths and
clocks do not appear. They scale the prediction itself (`utilisation.py`), which keeps it monotone in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import work_of
from pipeline.kernels.work import ConvShape, Dims

Array = npt.NDArray[np.float64]

TILES = ((128, 128), (128, 64), (64, 64), (32, 128), (128, 32), (32, 32))
"""Output tiles of the fp32 matrix kernels from which cuBLAS and cuDNN choose (kernel names in the public table)."""

COVERED_FAMILIES = ("gemm", "bmm", "conv2d_forward", "elementwise", "softmax", "layer_norm")
"""Families with cross-GPU models; for other families the caller uses its roofline."""

COMPUTE_FAMILIES = ("gemm", "bmm", "conv2d_forward")
"""Families with a compute term; the others move bytes only."""


@dataclass(frozen=True)
class CallFeatures:
    """Work and features of calls: `flops` and `bytes` of shape (rows,), features `x` of shape (rows, features)."""

    flops: Array
    bytes: Array
    x: Array
    names: tuple[str, ...]


def call_features(family: str, calls: pd.DataFrame, gpu: GpuSpec) -> CallFeatures:
    """Work and features of calls of one covered family on a GPU."""
    d = Dims(calls)
    work = work_of(family, calls, own_columns=False)
    columns = _products(family, d, gpu, work.bytes) if family in COMPUTE_FAMILIES else _rows(d, gpu, work.bytes)
    return CallFeatures(work.flops, work.bytes, np.column_stack(list(columns.values())), tuple(columns))


def _products(family: str, d: Dims, gpu: GpuSpec, traffic: Array) -> dict[str, Array]:
    """Features of matrix products (B x) M x N times N x K, and of convolutions as implicit products.

    For convolutions these features serve only as a measure of similarity of calls (`probe_prior.py`). Their models use
    features of each route instead.
    """
    if family == "conv2d_forward":
        shape = ConvShape.of(d)
        batch, m = np.ones(d.rows), shape.batch * shape.out_height * shape.out_width
        n, k = shape.in_channels / shape.groups * shape.window, shape.out_channels
    else:
        batch, m, n, k = d("B", 1.0), d("M"), d("N"), d("K")
    f = {"log_m": np.log(m), "log_n": np.log(n), "log_k": np.log(k), "log_batch": np.log(batch)}
    for high, wide in TILES:
        tiles = batch * np.ceil(m / high) * np.ceil(k / wide)
        waves = tiles / gpu.sms
        f[f"waves_{high}x{wide}"] = np.log(waves)
        f[f"tail_{high}x{wide}"] = waves / np.ceil(waves)
        f[f"padding_{high}x{wide}"] = batch * m * k / (tiles * high * wide)
    for name, size in (("m", m), ("n", n), ("k", k)):
        f[f"align_{name}"] = alignment(size)
    # bytes that one wave of blocks reads together, over the L2 size; the logarithm of 1 + x is nearly 0 where they fit.
    # A GPU with much more L2 than the GPUs with samples therefore has features within the range of the samples.
    f["operands_per_l2"] = np.log1p(traffic / gpu.l2_bytes)
    f["panels_per_l2"] = np.log1p(4.0 * 64.0 * n * np.minimum(batch * np.ceil(m / 64) * np.ceil(k / 64), 2.0 * gpu.sms)
                                  / gpu.l2_bytes)  # fmt: skip
    f["smaller_panel_per_l2"] = np.log1p(4.0 * n * np.minimum(m, k) / gpu.l2_bytes)
    f["squareness"] = np.log(m / k)
    f["pascal"] = np.full(d.rows, float(gpu.architecture == "pascal"))
    if family == "conv2d_forward":
        f |= _image(d, shape, gpu)
    return f


def _image(d: Dims, shape: ConvShape, gpu: GpuSpec) -> dict[str, Array]:
    """Features on which the choice of Winograd, implicit products or FFT depends.

    They are the image size, channels, the window, and padding to Winograd tiles of 2 x 2, 4 x 4 and 6 x 6.
    """
    out = shape.out_height
    f = {"log_images": np.log(shape.batch), "log_image": np.log(out), "log_in": np.log(shape.in_channels)}
    for edge in (2, 4, 6):
        f[f"winograd_padding_{edge}"] = out / (edge * np.ceil(out / edge))
    winograd = shape.batch * np.ceil(shape.out_height / 2) * np.ceil(shape.out_width / 2)
    waves = np.ceil(winograd / 128) * np.ceil(shape.out_channels / 128) / gpu.sms
    f["winograd_waves"] = np.log(waves)
    f["winograd_tail"] = waves / np.ceil(waves)
    f["align_in"] = alignment(shape.in_channels)
    f["window"] = np.log(shape.window)
    f["stride"] = d("stride", 1.0)
    return f


def _rows(d: Dims, gpu: GpuSpec, traffic: Array) -> dict[str, Array]:
    """Features of families that work on rows: rows per SM, their width, and their size over the L2 size."""
    rows, width = d("B", 1.0), d("H")
    threads = gpu.sms * gpu.max_threads_per_sm
    return {
        "log_width": np.log(width),
        "rows_per_sm": np.log(rows / gpu.sms),
        "elements_per_thread": np.log(rows * width / threads),
        "row_power": width / 2.0 ** np.ceil(np.log2(width)),
        "wide": (width > 1024.0).astype(float),
        "align_width": alignment(width),
        "bytes_per_l2": np.log(traffic / gpu.l2_bytes),
        "warps_per_wave": np.log1p(rows / (gpu.sms * gpu.max_warps_per_sm)),
        "block_wave_tail": rows / (gpu.sms * 8.0) / np.maximum(np.ceil(rows / (gpu.sms * 8.0)), 1.0),
    }


def alignment(size: Array) -> Array:
    """Base-2 logarithm of the largest power of two up to 32 that divides a size, over 5: 0 for odd sizes, 1 for 32."""
    powers = sum((np.mod(size, 2.0**step) == 0).astype(float) for step in range(1, 6))
    return np.asarray(powers) / 5.0
