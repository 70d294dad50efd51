"""A what-if on a GPU's figures: the catalogue GPU is predicted, and each call is scaled by what the figures change.

The models of the catalogue GPU are fitted to measurements, so altered figures do not change them. The altered GPU is
treated like another GPU with the same chip (`same_chip_model.py`). A call's time is scaled by a ratio:

- the ratio of the cross-GPU model's predictions for the two specs;
- the ratio of the formulas, where no cross-GPU model covers the call.

If every altered figure is larger than the catalogue's, no call becomes slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pipeline.answers.gap_models import FAMILIES as TENSOR_FAMILIES
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.transferred_models import SPREAD, ratio_between, scaled_estimate
from pipeline.arrays import Array, Texts
from pipeline.families import FAMILIES
from pipeline.families.dims import Dims
from pipeline.families.family import Law
from pipeline.families.tensor_products import on_tensor_cores_with_dims as tensor_covered
from pipeline.hardware.find_gpu import differing_figures, time_factor_bounds
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate
from pipeline.kernels.features import without_phase
from pipeline.kernels.physics import Physics
from pipeline.transfer.shipped_models import covered, load_models, time_ratio

SAMPLED_EVIDENCE = ("measured", "fitted", "pack")
"""Kinds of evidence that rest on samples of the GPU. For the altered GPU they become `transferred`, with a wider
interval. Other evidence and its interval stay the same: cross-GPU models and formulas are as accurate for the altered
GPU."""

LINK_FIGURES = frozenset({"pcie_gb_per_s", "nvlink_gb_per_s"})
"""Figures of links. They change only copies over PCIe and collectives."""


@dataclass(frozen=True, kw_only=True)
class AlteredPredictor(KernelPredictor):
    """Predictor of a GPU with altered figures. `stated` predicts the catalogue GPU; `physics` holds its curves, scaled."""

    stated: KernelPredictor

    @classmethod
    def of(cls, gpu: GpuSpec, stated: KernelPredictor) -> AlteredPredictor:
        """From the altered spec and the predictor of the catalogue GPU."""
        gpu = replace(gpu, in_step=stated.gpu.in_step)
        return cls(
            gpu=gpu,
            models=stated.models,
            physics=_scaled_physics(stated.physics, gpu),
            floor=stated.floor,
            complete=stated.complete,
            stated=stated,
        )

    def estimate(self, name: str, calls: pd.DataFrame) -> tuple[Estimate, Texts]:
        """Estimate and evidence of each row. Calls that no altered figure affects keep those of the catalogue GPU."""
        estimate, evidence = self.stated.estimate(name, calls)
        if not self._concerns(name):
            return estimate, evidence
        sampled, ops = np.isin(evidence.astype(str), SAMPLED_EVIDENCE), Dims(calls).text("op")
        ratio, spread = self._ratio(name, calls), np.where(sampled, SPREAD, 1.0)
        scaled = scaled_estimate(estimate, ratio, name, self.gpu, self.floor, ops, spread)
        return scaled, np.where(sampled, "transferred", evidence).astype(object)

    def _concerns(self, family: str) -> bool:
        """Whether an altered figure can change times of a family. Copies over PCIe depend on `pcie_gb_per_s` only."""
        changed, law = differing_figures(self.gpu, self.stated.gpu), FAMILIES[family].law
        if law is Law.LINK:
            return "pcie_gb_per_s" in changed
        return law is Law.COLLECTIVE or bool(changed - LINK_FIGURES)

    def _ratio(self, family: str, calls: pd.DataFrame) -> Array:
        """Ratio of the kernel time on the altered GPU to that on the catalogue GPU, shape (rows,); 1 where it is
        unknown.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.physics.kernel_us(family, calls) / self.stated.physics.kernel_us(
                family, calls
            )
        ratio = np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)
        model = load_models().get(family)
        forward = without_phase(family, calls)
        rows = covered(forward)
        if model is not None and self.gpu.limits is not None and rows.any():
            ratio[rows] = ratio_between(model, forward[rows], self.gpu, self.stated.gpu)
        if family in TENSOR_FAMILIES:
            # only if both specs have tensor cores for the call; otherwise the formulas' ratio stays
            rows = tensor_covered(calls, self.gpu) & tensor_covered(calls, self.stated.gpu)
            own = (
                time_ratio(calls[rows], self.gpu, calls[rows], self.stated.gpu)
                if rows.any()
                else None
            )
            if own is not None:
                ratio[rows] = own
        return np.clip(ratio, *time_factor_bounds(self.gpu, self.stated.gpu))


def _scaled_physics(physics: Physics, gpu: GpuSpec) -> Physics:
    """The formulas of the catalogue GPU for the altered spec: fitted curves are scaled by the ratio of bandwidths."""
    dram = gpu.peak_dram_gb_per_s() / physics.gpu.peak_dram_gb_per_s()
    pcie = max(gpu.pcie_gb_per_s, 1.0) / max(physics.gpu.pcie_gb_per_s, 1.0)
    memory, link = physics.memory.faster(dram), physics.link.faster(pcie)
    return replace(physics, gpu=gpu, memory=memory, link=link, l2_gb_per_s=gpu.peak_l2_gb_per_s())
