"""The shipped constants of fused attention, and the choice of the constants for a GPU.

Which kernel runs depends on the GPU:

- Compute capability 8 and 12: PyTorch's flash backend (FlashAttention-2).
- Compute capability 9 and 10: cuDNN's kernel, which current PyTorch prefers there. docs/kernels.md states the version
  and the difference.
- GPUs older than Ampere: neither. There, and in fp32, the formulas of physics predict attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.answers.fallback import with_fallback
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import KernelModel
from pipeline.kernels.fused_attention import FAMILY, AttentionModel, FittedAttention
from pipeline.model_files import read_by_gpu, write_by_gpu
from pipeline.packs import SHARED, record_file, shipped_file

FILE = "attention.json"
"""Name of the file of constants in the shared pack."""


def write_fitted(path: Path, fitted: Mapping[str, FittedAttention], provenance: Mapping[str, Any]) -> None:
    """Write the constants fitted on several GPUs as JSON, and add the file to its folder's manifest."""
    write_by_gpu(path, {gpu: found.to_json() for gpu, found in fitted.items()}, provenance)
    record_file(path)


@lru_cache(maxsize=4)
def read_fitted(path: Path) -> dict[str, FittedAttention]:
    """The fitted constants, by GPU.

    Raises:
        PackError: the file is damaged or of another format.
    """
    return read_by_gpu(path, FittedAttention.from_json)


def kernel_of(gpu: GpuSpec) -> str | None:
    """The fused kernel that PyTorch runs on a GPU: `flash2`, `cudnn`, or None (before Ampere, or not an NVIDIA GPU)."""
    if gpu.architecture not in ("ampere", "ada", "hopper", "blackwell"):
        return None
    return "cudnn" if 9.0 <= gpu.compute_capability < 11.0 else "flash2"


def nearest(gpu: GpuSpec, names: Mapping[str, Any]) -> GpuSpec | None:
    """The measured GPU with the same kernels that is nearest in compute capability, then in bandwidth; None if there is
    none.
    """
    kind = kernel_of(gpu)
    specs = [spec for spec in map(load_gpu, names) if kind is not None and kernel_of(spec) == kind]

    def distance(spec: GpuSpec) -> tuple[float, float]:
        bandwidth = abs(float(np.log(spec.dram_gb_per_s / gpu.dram_gb_per_s)))
        return round(abs(spec.compute_capability - gpu.compute_capability), 3), bandwidth

    return min(specs, key=distance, default=None)


def attention_model(gpu: GpuSpec) -> AttentionModel | None:
    """The shipped model for a GPU: its own, else that of the nearest GPU with the same kernels; None if there is none.

    Raises:
        PackError: the shipped file is damaged.
    """
    if gpu.limits is None or kernel_of(gpu) is None or (path := shipped_file(SHARED, FILE)) is None:
        return None
    fitted = read_fitted(path)
    measured = load_gpu(gpu.name) if gpu.name in fitted else nearest(gpu, fitted)
    return None if measured is None else AttentionModel(gpu, measured, fitted[measured.name])


def with_attention(gpu: GpuSpec, models: Mapping[str, KernelModel]) -> dict[str, KernelModel]:
    """Models of a GPU, with fused attention added for calls that its own model of the family does not cover.

    Raises:
        PackError: the shipped file is damaged.
    """
    found = attention_model(gpu)
    return with_fallback(models, {} if found is None else {FAMILY: found})
