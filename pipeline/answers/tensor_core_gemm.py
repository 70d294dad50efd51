"""Matrix products on tensor cores (bf16, fp16, TF32), beside a GPU's other models.

The fp32 samples of a GPU, or those of other GPUs, say nothing of tensor cores. Where bf16 products of a GPU, or of a card
with the same chip, were measured (`pipeline.datasets.aiconfigurator`), `packs/half/<GPU>` holds a model of them, which
takes its rows ahead of anything derived; elsewhere the cross-GPU model answers (`tensor.py`). fp16 runs at the same rate
through the same kernels and is predicted as bf16; TF32 takes what the cross-GPU model says it takes longer than bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.fallback import behind
from pipeline.answers.tensor_core_transfer import MISALIGNED_SPREAD, UNSAMPLED_SPREAD, tensor_models
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.same_chip import sibling_of
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.physics import Physics
from pipeline.kernels.tensor_core_products import HALF_DTYPES, covered, misaligned
from pipeline.kernels.work import Dims, is_one_of
from pipeline.packs import MANIFEST, check_pack
from pipeline.paths import packs_dir
from pipeline.transfer.tensor_core_model import ratio_of

FOLDER = "half"
"""Folder under `packs/`."""

FAMILY = "gemm"

EVEN = 8.0
"""Elements of half precision whose rows in memory are aligned."""

SIBLING_SPREAD = 1.2
"""Factor up and down that another card of the same chip adds to the interval: clocks and power limits differ."""


@dataclass(frozen=True)
class HalfModel(KernelModel):
    """A measured card's bf16 model, scaled by the cross-GPU model to TF32 and to another card of the same chip."""

    gpu: GpuSpec
    measured: GpuSpec
    base: KernelModel

    @property
    def evidence(self) -> str:
        """As the model's, or `transferred` on a card that was not measured itself."""
        return self.base.evidence if self.gpu.name == self.measured.name else "transferred"

    def evidence_of(self, calls: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Evidence of each row, shape (rows,): no TF32 product was measured."""
        return np.where(self._half(calls), self.evidence, "transferred").astype(object)

    def native(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Products on tensor cores with all their dims."""
        return np.asarray(covered(calls, self.gpu) & self.base.native(calls.assign(dtype="bf16")))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of products of these sizes."""
        # what the samples hold: forward passes of linear layers whose rows in memory are aligned
        uneven, d = misaligned(calls), Dims(calls)
        even = {name: np.where(uneven, EVEN * np.ceil(d(name) / EVEN), d(name)) for name in ("N", "K")}
        stored = [name for name in ("trans_a", "trans_b") if name in calls]
        plain = calls.drop(columns=stored).assign(dtype="bf16", phase="forward", B=1.0, **even)
        found = self.base.predict(plain)
        half, sister = self._half(calls), self.gpu.name != self.measured.name
        moved = ~half | uneven | sister
        if not moved.any():
            return found
        ratio = ratio_of(calls.assign(B=1.0), self.gpu, plain, self.measured)
        if ratio is None:
            # without the cross-GPU model: as many times longer as the peaks say
            here, there = (Physics.of(gpu).peak_flop_per_us(Dims(rows)) for gpu, rows in
                           ((self.gpu, calls), (self.measured, plain)))  # fmt: skip
            ratio = there / here
        spread = np.where(half, 1.0, UNSAMPLED_SPREAD) * np.where(uneven, MISALIGNED_SPREAD, 1.0)
        return found.scale(np.where(moved, ratio, 1.0)).widen(spread * (SIBLING_SPREAD if sister else 1.0))

    def _half(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        return is_one_of(Dims(calls).text("dtype", "fp32"), HALF_DTYPES)


def measured_gpus() -> list[str]:
    """GPUs whose bf16 products ship."""
    return sorted(path.parent.name for path in (packs_dir() / FOLDER).glob(f"*/{MANIFEST}"))


def half_model(gpu: GpuSpec) -> HalfModel | None:
    """The bf16 model for a GPU: its own, else that of a card with the same chip; None where there is neither.

    Raises:
        PackError: the pack is damaged.
    """
    names = measured_gpus()
    measured = load_gpu(gpu.name) if gpu.name in names else sibling_of(gpu, names)
    if measured is None:
        return None
    check_pack(f"{FOLDER}/{measured.name}")
    folder: Path = packs_dir() / FOLDER / measured.name / "kernels" / FAMILY
    return HalfModel(gpu, measured, FittedModel.load(folder, measured))


def with_half(gpu: GpuSpec, models: Mapping[str, KernelModel]) -> dict[str, KernelModel]:
    """Models of a GPU with products on tensor cores behind what it has of their families.

    Raises:
        PackError: the pack is damaged.
    """
    half = half_model(gpu)
    found: dict[str, KernelModel] = dict(tensor_models(gpu, None if half is None else half.measured.name))
    if half is not None:
        found[FAMILY] = half
    return behind(models, found)
