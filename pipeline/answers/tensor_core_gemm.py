"""Matrix products on tensor cores (bf16, fp16, TF32), in addition to a GPU's other models.

fp32 samples carry no information about tensor cores. There are two models:

- `packs/half/<GPU>` holds a model of bf16 products, if they were measured on the GPU or on one with the same chip
  (`evaluation.published.aiconfigurator`). It has priority over derived estimates.
- Elsewhere the cross-GPU model predicts (`tensor_core_transfer.py`).

fp16 runs at the same rate through the same kernels and is predicted as bf16. The time of TF32 is that of bf16 times the
ratio that the cross-GPU model gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.fallback import with_fallback
from pipeline.answers.tensor_core_transfer import MISALIGNED_SPREAD, UNSAMPLED_SPREAD, tensor_core_transfer_models
from pipeline.hardware.find_gpu import load_gpu, same_chip_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.physics import Physics
from pipeline.kernels.tensor_cores import HALF_DTYPES, covered, misaligned
from pipeline.kernels.work import Dims, is_one_of
from pipeline.packs import MANIFEST, pack_models
from pipeline.paths import packs_dir
from pipeline.transfer.tensor_core_model import time_ratio

FOLDER = "half"
"""Folder under `packs/`."""

FAMILY = "gemm"
"""The family of the measured bf16 products."""

ALIGNED_ELEMENTS = 8.0
"""Number of half-precision elements to which the rows of a matrix in memory must be aligned."""

SIBLING_SPREAD = 1.2
"""Factor by which the interval grows, up and down, on another GPU with the same chip: clocks and power limits
differ."""


@dataclass(frozen=True)
class TensorCoreGemmModel(KernelModel):
    """A measured GPU's bf16 model. The cross-GPU model scales it to TF32 and to another GPU with the same chip."""

    gpu: GpuSpec
    measured: GpuSpec
    base: KernelModel

    @property
    def evidence(self) -> str:
        """The evidence of the model, or `transferred` on a GPU that was not measured itself."""
        return self.base.evidence if self.gpu.name == self.measured.name else "transferred"

    def evidence_of(self, calls: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Evidence of each row, shape (rows,). TF32 is `transferred`, because no TF32 product was measured."""
        return np.where(self._half(calls), self.evidence, "transferred").astype(object)

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Products on tensor cores whose dims are all known."""
        return np.asarray(covered(calls, self.gpu) & self.base.covers(calls.assign(dtype="bf16")))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of products of these sizes."""
        # the samples are forward passes of linear layers with aligned rows in memory
        uneven, d = misaligned(calls), Dims(calls)
        even = {
            name: np.where(uneven, ALIGNED_ELEMENTS * np.ceil(d(name) / ALIGNED_ELEMENTS), d(name))
            for name in ("N", "K")
        }
        stored = [name for name in ("trans_a", "trans_b") if name in calls]
        plain = calls.drop(columns=stored).assign(dtype="bf16", phase="forward", B=1.0, **even)
        found = self.base.predict(plain)
        half, sister = self._half(calls), self.gpu.name != self.measured.name
        moved = ~half | uneven | sister
        if not moved.any():
            return found
        ratio = time_ratio(calls.assign(B=1.0), self.gpu, plain, self.measured)
        if ratio is None:
            # without the cross-GPU model: scaled by the ratio of the peaks
            here, there = (Physics.of(gpu).peak_flop_per_us(Dims(rows)) for gpu, rows in
                           ((self.gpu, calls), (self.measured, plain)))  # fmt: skip
            ratio = there / here
        spread = np.where(half, 1.0, UNSAMPLED_SPREAD) * np.where(uneven, MISALIGNED_SPREAD, 1.0)
        return found.scale(np.where(moved, ratio, 1.0)).widen(spread * (SIBLING_SPREAD if sister else 1.0))

    def _half(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        return is_one_of(Dims(calls).text("dtype", "fp32"), HALF_DTYPES)


def measured_gpus() -> list[str]:
    """GPUs with a shipped model of bf16 products."""
    return sorted(path.parent.name for path in (packs_dir() / FOLDER).glob(f"*/{MANIFEST}"))


def tensor_core_gemm_model(gpu: GpuSpec) -> TensorCoreGemmModel | None:
    """The bf16 model for a GPU: its own, else that of a GPU with the same chip; None if there is neither.

    Raises:
        PackError: the pack is damaged.
    """
    names = measured_gpus()
    measured = load_gpu(gpu.name) if gpu.name in names else same_chip_gpu(gpu, names)
    if measured is None:
        return None
    folder: Path = pack_models(f"{FOLDER}/{measured.name}") / FAMILY
    return TensorCoreGemmModel(gpu, measured, FittedModel.load(folder, measured))


def with_tensor_core_gemm(gpu: GpuSpec, models: Mapping[str, KernelModel]) -> dict[str, KernelModel]:
    """Models of a GPU, with tensor-core products added for calls that its own models of these families do not cover.

    Raises:
        PackError: the pack is damaged.
    """
    half = tensor_core_gemm_model(gpu)
    found: dict[str, KernelModel] = dict(tensor_core_transfer_models(gpu, None if half is None else half.measured.name))
    if half is not None:
        found[FAMILY] = half
    return with_fallback(models, found)
