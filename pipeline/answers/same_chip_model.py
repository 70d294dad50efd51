"""Kernel times on a card of the same chip as one that was measured: an A100 with 80 GB beside the one with 40 GB.

The measured card's own fitted models know its kernels to a few per cent, which no model of all GPUs does. They are
scaled per call by the ratio of the cross-GPU model's answers for the two cards, so that memory-bound calls follow the
bandwidth and arithmetic follows clock and power. The floor stays the measured host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.same_chip import same_chip, sibling_of
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, Floor, KernelModel
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.min_duration import not_shorter
from pipeline.kernels.saved_families import read_description
from pipeline.kernels.work import Dims
from pipeline.packs import check_pack, list_packs
from pipeline.paths import packs_dir
from pipeline.transfer.probes import Calibration
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.utilisation import UtilisationModel

Array = npt.NDArray[np.float64]

SPREAD = 1.5
"""Growth of the interval's log half-widths over the measured card's: boards of one chip differ in clocks and memory."""

PROBE_TRUST = 3.0
"""Probes after which half of a measured level (three to one against the sibling's, then more) is believed."""


def ratio_between(model: UtilisationModel, calls: pd.DataFrame, gpu: GpuSpec, measured: GpuSpec) -> Array:
    """Kernel time on `gpu` over that on `measured` by the cross-GPU model of the calls' family, shape (rows,)."""
    own = model.own(measured.name)
    # calls of empty tensors occur in graphs: they move nothing on either card
    with np.errstate(divide="ignore", invalid="ignore"):
        here, there = (model.kernel_and_latency(calls, g, correction=own)[0] for g in (gpu, measured))
        ratio = here / there
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)


def rescaled(
    found: Estimate,
    factor: Array,
    family: str,
    gpu: GpuSpec,
    floor: Floor,
    ops: npt.NDArray[np.object_],
    spread: Array | float = SPREAD,
) -> Estimate:
    """A measured card's estimate with kernels `factor` times as long; latencies follow down to the measured host's floor.

    Args:
        found: of the measured card.
        factor: shape (rows,).
        family: of the calls; no kernel falls below the shortest of its family, or what it was where that is less.
        gpu: the card to predict.
        floor: of the measured host.
        ops: shape (rows,).
        spread: growth of the intervals' log half-widths.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = not_shorter(found.kernel * factor, family, gpu, found.kernel) / found.kernel
    factor = np.where(np.isfinite(raised), raised, factor)
    scaled = found.scale(factor, spread)
    moved = floor.latency(found.kernel * factor, ops) / floor.latency(found.kernel, ops)
    latency = found.latency * moved
    return replace(
        scaled,
        latency=latency,
        latency_p10=latency * (found.latency_p10 / found.latency) ** spread,
        latency_p90=latency * (found.latency_p90 / found.latency) ** spread,
    )


@dataclass(frozen=True)
class SiblingModel(KernelModel):
    """A family's model of a measured card, scaled to another card of the chip.

    Attributes:
        gpu: the card to predict.
        measured: the card of the samples.
        base: that card's fitted model.
        model: the cross-GPU model of the family, for the ratio.
        log_level: log factor that probes of the card ask for.
    """

    gpu: GpuSpec
    measured: GpuSpec
    base: FittedModel
    model: UtilisationModel
    log_level: float = 0.0
    evidence: str = "transferred"

    def native(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Rows that the measured card's samples cover."""
        return self.base.native(calls)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """The measured card's estimate, its kernel times scaled; latencies follow down to the measured host's floor."""
        factor = self.ratio(calls) * np.exp(self.log_level)
        ops = Dims(calls).text("op")
        return rescaled(self.base.predict(calls), factor, self.model.family, self.gpu, self.base.floor, ops)

    def ratio(self, calls: pd.DataFrame) -> Array:
        """Kernel time on this card over the measured one, shape (rows,)."""
        if self.gpu.name == self.measured.name:
            return np.ones(len(calls))
        return ratio_between(self.model, calls, self.gpu, self.measured)

    def levelled(self, probes: pd.DataFrame) -> SiblingModel:
        """The same with the level of a few calls measured on the card, shrunk towards the sibling's own."""
        errors = np.log(probes["latency_us"].to_numpy(dtype=np.float64) / self.predict(probes).latency)
        weight = len(errors) / (len(errors) + PROBE_TRUST)
        return replace(self, log_level=float(weight * np.median(errors)))


def sibling_models(gpu: GpuSpec, calibrations: Mapping[str, Calibration] | None = None) -> dict[str, SiblingModel]:
    """Models by family from the pack of a card with the same chip; none where there is no such pack.

    Raises:
        PackError: the pack is damaged.
    """
    sibling = sibling_of(gpu, list_packs())
    if sibling is None:
        return {}
    check_pack(sibling.name)
    found: dict[str, SiblingModel] = {}
    for name, model in load_models().items():
        folder = packs_dir() / sibling.name / "kernels" / name
        if not folder.is_dir() or read_description(folder).get("variant") == "curve":
            continue
        scaled = SiblingModel(gpu, _measured(model, sibling), FittedModel.load(folder, sibling), model)
        calibration = (calibrations or {}).get(name)
        found[name] = scaled if calibration is None else scaled.levelled(calibration.probes)
    return found


def _measured(model: UtilisationModel, sibling: GpuSpec) -> GpuSpec:
    """The card that the samples of a pack's family come from: convolutions of the A100 ran on the 80 GB card."""
    if sibling.name in model.gpu_corrections:
        return sibling
    return next((gpu for gpu in map(load_gpu, model.gpu_corrections) if same_chip(gpu, sibling)), sibling)
