"""Half-precision matrix products of newer GPUs: models fitted on public bf16 kernel times, beside a GPU's other models.

The fp32 samples of a GPU, or those of other GPUs, say nothing of tensor cores. Where bf16 products of a GPU, or of a card
with the same chip, were measured (`pipeline.datasets.aiconfigurator`), `packs/half/<GPU>` holds a model of them, which
takes its rows ahead of anything derived. fp16 runs at the same rate through the same kernels and is predicted as bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec, load_gpu
from pipeline.kernels.fitted import FittedModel
from pipeline.kernels.heuristics import Physics
from pipeline.kernels.prediction import Estimate, KernelModel, merge
from pipeline.kernels.work import Dims, is_one_of
from pipeline.packs import MANIFEST, check_pack
from pipeline.paths import packs_dir

FOLDER = "half"
"""Folder under `packs/`."""

FAMILY = "gemm"

DTYPES = ("bf16", "fp16")

SIBLING_SPREAD = 1.2
"""Factor up and down that another card of the same chip adds to the interval: clocks and power limits differ."""


@dataclass(frozen=True)
class HalfModel(KernelModel):
    """A measured card's bf16 model, scaled by physics to a card of the same chip where that is another one."""

    gpu: GpuSpec
    measured: GpuSpec
    base: KernelModel

    @property
    def evidence(self) -> str:
        """As the model's, or `transferred` on a card that was not measured itself."""
        return self.base.evidence if self.gpu.name == self.measured.name else "transferred"

    def native(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Products of bf16 or fp16 with all their dims."""
        half = is_one_of(Dims(calls).text("dtype", "fp32"), DTYPES)
        return np.asarray(half & self.base.native(calls.assign(dtype="bf16")))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of bf16 products of these sizes."""
        plain = calls.assign(dtype="bf16")
        found = self.base.predict(plain)
        if self.gpu.name == self.measured.name:
            return found
        here, there = (Physics.of(gpu).kernel_us(FAMILY, plain) for gpu in (self.gpu, self.measured))
        return found.scale(here / there).widen(SIBLING_SPREAD)


@dataclass(frozen=True)
class Layered(KernelModel):
    """Two models of one family: rows that `first` covers are its own, `other`'s the rest."""

    first: KernelModel
    other: KernelModel

    @property
    def evidence(self) -> str:
        """Of rows that neither was fitted on."""
        return self.first.evidence

    def evidence_of(self, calls: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Evidence of each row, shape (rows,)."""
        return np.where(self._others(calls), self.other.evidence, self.first.evidence).astype(object)

    def native(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Rows that either covers."""
        return np.asarray(self.first.native(calls) | self.other.native(calls))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Each row by its model; rows that neither covers by `first`."""
        other = self._others(calls)
        if other.all() and len(other):
            return self.other.predict(calls)
        found = self.first.predict(calls)
        return merge(found, self.other.predict(calls[other]), other) if other.any() else found

    def _others(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        return np.asarray(~self.first.native(calls) & self.other.native(calls))


def measured_gpus() -> list[str]:
    """GPUs whose bf16 products ship."""
    return sorted(path.parent.name for path in (packs_dir() / FOLDER).glob(f"*/{MANIFEST}"))


def half_model(gpu: GpuSpec) -> HalfModel | None:
    """The bf16 model for a GPU: its own, else that of a card with the same chip; None where there is neither.

    Raises:
        PackError: the pack is damaged.
    """
    from pipeline.transfer.sibling import sibling_of

    names = measured_gpus()
    measured = load_gpu(gpu.name) if gpu.name in names else sibling_of(gpu, names)
    if measured is None:
        return None
    check_pack(f"{FOLDER}/{measured.name}")
    folder: Path = packs_dir() / FOLDER / measured.name / "kernels" / FAMILY
    return HalfModel(gpu, measured, FittedModel.load(folder, measured))


def with_half(gpu: GpuSpec, models: Mapping[str, KernelModel]) -> dict[str, KernelModel]:
    """Models of a GPU with its bf16 products behind what it has of the family.

    Raises:
        PackError: the pack is damaged.
    """
    half = half_model(gpu)
    if half is None:
        return dict(models)
    own = models.get(FAMILY)
    return {**models, FAMILY: half if own is None else Layered(own, half)}
