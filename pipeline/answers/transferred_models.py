"""Models of families without samples on a GPU, from samples of other GPUs: of one with the same chip, else of all.

The fitted models of a GPU with the same chip have errors of a few per cent, less than cross-GPU models. Each call is scaled
by the ratio of the cross-GPU model's predictions for the two GPUs. Memory-bound calls therefore follow the bandwidth, and
arithmetic follows clock and power. The latency floor is that of the measured host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.families import FAMILIES
from pipeline.families.chip import Chip
from pipeline.families.dims import Dims
from pipeline.hardware.find_gpu import load_gpu, same_chip, same_chip_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, Floor, KernelModel
from pipeline.kernels.family_model import FittedModel, read_description
from pipeline.kernels.features import without_phase
from pipeline.kernels.physics import LARGE_SIDES, Physics, raised_to_min_duration
from pipeline.model_files import list_packs, pack_models
from pipeline.transfer.probes import Calibration
from pipeline.transfer.shipped_models import covered, load_models, predict_calls
from pipeline.transfer.utilisation import UtilisationModel

SPREAD = 1.5
"""Factor on the log half-widths of the measured GPU's intervals, because boards of one chip differ in clocks and
memory."""

SAMPLED_SIDES = {"M": 8192.0, "N": 65536.0, "K": 65536.0}
"""Largest products of the samples of cross-GPU models; what is larger adds time at the chip's rates."""

PROBE_TRUST = 3.0
"""Number of probes at which a level measured on this GPU gets weight 1/2. With n probes the weight is n / (n + 3)."""


def ratio_between(
    model: UtilisationModel, calls: pd.DataFrame, gpu: GpuSpec, measured: GpuSpec
) -> Array:
    """Ratio of the kernel time on `gpu` to that on `measured`, by the family's cross-GPU model, shape (rows,)."""
    own = model.own_correction(measured.name)
    # graphs contain calls on empty tensors, which move no bytes on either GPU
    with np.errstate(divide="ignore", invalid="ignore"):
        here, there = (
            model.kernel_and_latency(calls, g, correction=own)[0] for g in (gpu, measured)
        )
        ratio = here / there
    return np.where(np.isfinite(ratio) & (ratio > 0), ratio, 1.0)


def scaled_estimate(
    estimate: Estimate,
    factor: Array,
    family: str,
    gpu: GpuSpec,
    floor: Floor,
    ops: npt.NDArray[np.object_],
    spread: Array | float = SPREAD,
) -> Estimate:
    """A measured GPU's estimate with kernel times multiplied by `factor`. Latencies do not fall below the measured
    host's floor.

    Args:
        estimate: of the measured GPU.
        factor: shape (rows,).
        family: of the calls; no kernel falls below the shortest of its family, or its measured time if that is less.
        gpu: the GPU to predict.
        floor: of the measured host.
        ops: shape (rows,).
        spread: growth of the intervals' log half-widths.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        raised = (
            raised_to_min_duration(estimate.kernel * factor, family, gpu, estimate.kernel)
            / estimate.kernel
        )
    factor = np.where(np.isfinite(raised), raised, factor)
    scaled = estimate.scale(factor, spread)
    moved = floor.latency(estimate.kernel * factor, ops) / floor.latency(estimate.kernel, ops)
    latency = estimate.latency * moved
    return replace(
        scaled,
        latency=latency,
        latency_p10=latency * (estimate.latency_p10 / estimate.latency) ** spread,
        latency_p90=latency * (estimate.latency_p90 / estimate.latency) ** spread,
    )


@dataclass(frozen=True)
class SameChipModel(KernelModel):
    """A family's model of a measured GPU, scaled to another GPU with the same chip.

    Attributes:
        gpu: the GPU to predict.
        measured: the GPU of the samples.
        base: the fitted model of that GPU.
        model: the cross-GPU model of the family, for the ratio.
        log_level: log of the factor that probes of the GPU give.
    """

    gpu: GpuSpec
    measured: GpuSpec
    base: FittedModel
    model: UtilisationModel
    log_level: float = 0.0
    evidence: str = "transferred"

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Rows that the measured GPU's samples cover."""
        return self.base.covers(calls)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """The measured GPU's estimate with scaled kernel times. Latencies do not fall below the measured host's floor."""
        factor = self.ratio(calls) * np.exp(self.log_level)
        ops = Dims(calls).text("op")
        return scaled_estimate(
            self.base.predict(calls), factor, self.model.family, self.gpu, self.base.floor, ops
        )

    def ratio(self, calls: pd.DataFrame) -> Array:
        """Ratio of the kernel time on this GPU to that on the measured GPU, shape (rows,)."""
        if self.gpu.name == self.measured.name:
            return np.ones(len(calls))
        return ratio_between(self.model, calls, self.gpu, self.measured)

    def levelled(self, probes: pd.DataFrame) -> SameChipModel:
        """The same model with a level from a few calls measured on the GPU, shrunk towards the measured GPU's level."""
        errors = np.log(
            probes["latency_us"].to_numpy(dtype=np.float64) / self.predict(probes).latency
        )
        weight = len(errors) / (len(errors) + PROBE_TRUST)
        return replace(self, log_level=float(weight * np.median(errors)))


def same_chip_models(
    gpu: GpuSpec, calibrations: Mapping[str, Calibration] | None = None
) -> dict[str, SameChipModel]:
    """Models by family from the pack of a GPU with the same chip; empty if there is no such pack.

    Raises:
        PackError: the pack is damaged.
    """
    sibling = same_chip_gpu(gpu, list_packs())
    if sibling is None:
        return {}
    models = pack_models(sibling.name)
    scaled_models: dict[str, SameChipModel] = {}
    for name, model in load_models().items():
        folder = models / name
        if not folder.is_dir() or read_description(folder).get("variant") == "curve":
            continue
        scaled = SameChipModel(
            gpu, _measured(model, sibling), FittedModel.load(folder, sibling), model
        )
        calibration = (calibrations or {}).get(name)
        scaled_models[name] = scaled if calibration is None else scaled.levelled(calibration.probes)
    return scaled_models


def _measured(model: UtilisationModel, sibling: GpuSpec) -> GpuSpec:
    """The GPU that the samples of a pack's family come from. The A100's convolutions were measured on the 80 GB GPU."""
    if sibling.name in model.gpu_corrections:
        return sibling
    return next(
        (gpu for gpu in map(load_gpu, model.gpu_corrections) if same_chip(gpu, sibling)), sibling
    )


@dataclass(frozen=True)
class TransferredModel(KernelModel):
    """A cross-GPU model with the interface of a family's model."""

    gpu: GpuSpec
    family: str
    corrections: Mapping[str, Any] | None = None
    evidence: str = "transferred"

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Rows that the cross-GPU models cover."""
        return covered(without_phase(self.family, calls))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times from the cross-GPU models; NaN for rows they do not cover."""
        estimate = self._estimate(calls)
        sides = {name: calls[name] for name in SAMPLED_SIDES if name in calls}
        larger = [side > SAMPLED_SIDES[name] for name, side in sides.items()]
        if FAMILIES[self.family].added is None or not np.any(larger):
            return estimate
        within = calls.assign(
            **{name: side.clip(upper=SAMPLED_SIDES[name]) for name, side in sides.items()}
        )
        large = within.assign(**LARGE_SIDES)
        large_us = self._estimate(large).kernel
        most = self._estimate(within).kernel + Physics.of(self.gpu).added_us(
            self.family, calls, within, large, large_us
        )
        return estimate.scale(np.fmin(1.0, most / estimate.kernel))

    def _estimate(self, calls: pd.DataFrame) -> Estimate:
        predicted = predict_calls(
            without_phase(self.family, calls), self.gpu, None, dict(self.corrections or {})
        )
        latency, kernel, low, high = (
            predicted[name].to_numpy(dtype=np.float64)
            for name in ("predicted_us", "kernel_us", "p10_us", "p90_us")
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

    # layer norm of current PyTorch reads its rows once; that of the samples read them twice
    shared = [name for name in load_models() if name != "layer_norm" or not Chip.of(gpu).is_recent]
    models: dict[str, KernelModel] = {
        name: TransferredModel(gpu, name, corrections) for name in shared
    }
    # a GPU with the same chip and samples of its own predicts better than the cross-GPU models
    models |= same_chip_models(gpu, corrections)
    return {name: model for name, model in models.items() if name not in present}
