"""The shipped cross-GPU model of products on tensor cores: kernel times on a GPU, and ratios between two GPUs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.physics import raised_to_min_duration
from pipeline.kernels.work import Array
from pipeline.packs import TRANSFER, shipped_file
from pipeline.transfer.tensor_core_tiles import FAMILY
from pipeline.transfer.utilisation import Correction, UtilisationModel, load_cached


def tensor_model() -> UtilisationModel | None:
    """The shipped cross-GPU model of products on tensor cores; None where it does not ship.

    Raises:
        PackError: the file is damaged.
    """
    path = shipped_file(TRANSFER, f"{FAMILY}.safetensors")
    return None if path is None else load_cached(path)


@lru_cache(maxsize=4)
def sampled_architectures(gpus: tuple[str, ...]) -> frozenset[str]:
    """Architectures of the GPUs that a model was trained on."""
    return frozenset(load_gpu(name).architecture for name in gpus)


def kernel_us(
    model: UtilisationModel, calls: pd.DataFrame, gpu: GpuSpec, correction: Correction | None = None
) -> Array:
    """Kernel times on a GPU in µs, shape (rows,); none is shorter than the shortest kernel of the samples.

    On architectures without samples, `raised_to_min_duration` also applies, whose limit comes from kernels of older traces.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        _, found = model.kernel_and_latency(calls.assign(op="linear"), gpu, correction=correction)
    return (
        found
        if gpu.architecture in sampled_architectures(tuple(model.gpu_corrections))
        else raised_to_min_duration(found, "gemm", gpu)
    )


def time_ratio(
    calls: pd.DataFrame, gpu: GpuSpec, others: pd.DataFrame, other: GpuSpec, sampled_like: str | None = None
) -> Array | None:
    """Kernel times of calls on `gpu` over those of `others` on `other`, shape (rows,); None without the shipped model.

    Args:
        calls: covered products.
        gpu: their GPU.
        others: covered products, one for each row of `calls`.
        other: their GPU.
        sampled_like: name of a GPU with samples. Its deviation from the common model is used for both GPUs; `other` by default.
    """
    model = tensor_model()
    if model is None:
        return None
    own = model.own_correction(sampled_like or other.name)
    ratio = kernel_us(model, calls, gpu, own) / kernel_us(model, others, other, own)
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
