"""Products on tensor cores (bf16, fp16, TF32) of GPUs without such samples. An adapter of
`pipeline.transfer.tensor_core_tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.kernels.tensor_cores import covered, misaligned
from pipeline.kernels.work import Dims, is_one_of
from pipeline.transfer.tensor_core_model import kernel_us, sampled_architectures, tensor_model
from pipeline.transfer.utilisation import UtilisationModel

FAMILIES = ("gemm", "bmm")
"""Families that run on tensor cores. A batch is treated as more tiles of one product."""

BATCHED = "bmm"
"""The family of batched products."""

UNSAMPLED_ARCHITECTURE_SPREAD = 1.25
"""Factor on the interval, up and down, for architectures without a measured GPU: Volta, Turing and older libraries'
kernels."""

UNSAMPLED_SPREAD = 1.2
"""Factor on the interval, up and down, for products without samples: TF32 and batched products."""

MISALIGNED_SPREAD = 1.3
"""Factor on the interval, up and down, for matrices whose rows in memory are not aligned. In the A100 DLRM trace such
products take 1.1 to 2.6 times as long."""


@dataclass(frozen=True)
class TensorCoreTransferModel(KernelModel):
    """The cross-GPU model with the interface of a family's model. `like` names a measured GPU with the same chip, if
    any.
    """

    gpu: GpuSpec
    family: str
    model: UtilisationModel
    like: str | None = None
    evidence: str = "transferred"

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Products that the GPU's tensor cores compute."""
        return covered(calls, self.gpu)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Kernel times. The latency is equal, because the samples contain neither launch nor floor."""
        plain = calls if self.family == BATCHED else calls.assign(B=1.0)
        found = kernel_us(
            self.model, plain, self.gpu, None if self.like is None else self.model.own_correction(self.like)
        )
        low, high = found * np.exp(self.model.log_p10), found * np.exp(self.model.log_p90)
        inside = np.ones(len(calls), dtype=bool)
        estimate = Estimate(found, found, low, high, inside, low, high)
        extra = np.where(
            is_one_of(Dims(calls).text("dtype"), ("tf32",)) | (self.family == BATCHED), UNSAMPLED_SPREAD, 1.0
        )
        extra = extra * np.where(misaligned(plain), MISALIGNED_SPREAD, 1.0)
        if self.gpu.architecture not in sampled_architectures(tuple(self.model.gpu_corrections)):
            extra = extra * UNSAMPLED_ARCHITECTURE_SPREAD
        return estimate.widen(extra)


def tensor_core_transfer_models(gpu: GpuSpec, like: str | None = None) -> dict[str, TensorCoreTransferModel]:
    """The cross-GPU model by family; empty for a device without specified limits, or if no model ships.

    Raises:
        PackError: the file is damaged.
    """
    model = tensor_model() if gpu.limits is not None else None
    return {} if model is None else {name: TensorCoreTransferModel(gpu, name, model, like) for name in FAMILIES}
