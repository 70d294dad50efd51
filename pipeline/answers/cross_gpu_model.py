"""Predicts families without samples on a GPU from other GPUs' samples. An adapter of `pipeline.transfer`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.same_chip_model import same_chip_models
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.kernels.sample_range import without_phase
from pipeline.transfer.shipped_models import covered, load_models, predict_calls


@dataclass(frozen=True)
class TransferredModel(KernelModel):
    """A cross-GPU model with the interface of a family's model."""

    gpu: GpuSpec
    family: str
    corrections: Mapping[str, Any] | None = None
    evidence: str = "transferred"

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Rows that the cross-GPU models cover."""
        return covered(without_phase(self.family, calls))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times from the cross-GPU models; NaN for rows they do not cover."""
        found = predict_calls(without_phase(self.family, calls), self.gpu, None, dict(self.corrections or {}))
        latency, kernel, low, high = (
            found[name].to_numpy(dtype=np.float64) for name in ("predicted_us", "kernel_us", "p10_us", "p90_us")
        )
        rest = latency - kernel
        inside = np.ones(len(calls), dtype=bool)
        return Estimate(latency, kernel, low, high, inside, rest + low, rest + high)


def transferred_models(
    gpu: GpuSpec, present: set[str], corrections: Mapping[str, Any] | None = None
) -> dict[str, KernelModel]:
    """Adapters for families that the cross-GPU models cover and `present` lacks; none for a CPU or where none ship."""
    if gpu.limits is None:
        return {}

    found: dict[str, KernelModel] = {name: TransferredModel(gpu, name, corrections) for name in load_models()}
    # a GPU with the same chip and samples of its own predicts better than the cross-GPU models
    found |= same_chip_models(gpu, corrections)
    return {name: model for name, model in found.items() if name not in present}
