"""A GPU with other figures than its file's: `gpu.dram_gb_per_s=2000` asks what more bandwidth would bring.

Nobody measured such a card. What was measured or fitted on the real one is carried over: measured peaks keep their
share of the datasheet's, fitted kernels are scaled call by call as between two cards of one chip
(`pipeline.transfer.sibling`), and fitted bandwidth curves scale with the bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.hardware.spec import GpuSpec, load_gpu

if TYPE_CHECKING:
    from pipeline.kernels.bandwidth import BandwidthCurve
    from pipeline.kernels.predictor import KernelPredictor

SUFFIX = " changed"
"""Ends the name under which a changed card looks for kernel models, so that it finds none of its own."""


def spec_of(values: Mapping[str, Any]) -> GpuSpec:
    """The GPU of composed figures, with measured peaks that follow the datasheet figures that were changed.

    Raises:
        UnknownNameError: no GPU file has that name.
        ConfigError: a figure is no number, or contradicts the others.
    """
    known = load_gpu(str(values["name"]))
    figures = dict(values)
    try:
        compute = 1e3 * float(values["fp32_tflop_per_s"]) / known.fp32_gflop_per_s
        dram = float(values["dram_gb_per_s"]) / known.dram_gb_per_s
        clocked = int(values["sms"]) * float(values["boost_clock_mhz"]) / (known.sms * known.boost_clock_mhz)
        for key, ratio in (("fp32_gflop", compute), ("dram_gb", dram), ("l2_gb", clocked), ("shared_gb", clocked)):
            name = f"measured_{key}_per_s"
            if figures.get(name) is not None and figures[name] == getattr(known, name):
                figures[name] = ratio * float(figures[name])
        return GpuSpec.from_mapping(figures, f"gpu={known.name} with these figures")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"gpu={known.name} with these figures: {error}") from None


def is_changed(gpu: GpuSpec) -> bool:
    """Whether figures that kernels depend on differ from those of the GPU's file."""
    if gpu.name == "local":
        return False
    known = load_gpu(gpu.name)
    same = {name: getattr(known, name) for name in ("memory_bytes", "aliases", "tdp_w", "sources")}
    peaks = {
        name: getattr(known, name)
        for name in (
            "measured_l2_gb_per_s",
            "measured_shared_gb_per_s",
            "measured_dram_gb_per_s",
            "measured_fp32_gflop_per_s",
        )
        if getattr(known, name) is None
    }  # a campaign's peaks stand in where the file has none
    return replace(gpu, **same, **peaks) != known


def predictor_of(gpu: GpuSpec, real: KernelPredictor) -> KernelPredictor:
    """Kernel models of a changed card.

    Args:
        gpu: the changed figures.
        real: what predicts the card as it is; one without models stays without.
    """
    from pipeline.kernels.heuristics import Physics
    from pipeline.kernels.predictor import load_predictor

    moved = load_predictor(replace(gpu, name=gpu.name + SUFFIX))
    dram = gpu.peak_dram_gb_per_s() / real.gpu.peak_dram_gb_per_s()
    link = gpu.pcie_gb_per_s / real.gpu.pcie_gb_per_s
    evidence = "transferred" if real.physics.evidence != "roofline" else "roofline"
    memory, curve = _faster(real.physics.memory, dram), _faster(real.physics.link, link)
    physics = replace(Physics.of(gpu), memory=memory, link=curve, evidence=evidence)
    return replace(moved, models=moved.models if real.models else {}, physics=physics, floor=real.floor)


def _faster(curve: BandwidthCurve, ratio: float) -> BandwidthCurve:
    return replace(curve, peak_gb_per_s=ratio * curve.peak_gb_per_s, low_gb_per_s=ratio * curve.low_gb_per_s)
