"""The figures of the GPU of a grid point: from its file, altered, or measured by a campaign."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipeline.answers.sources import Source, kernel_source
from pipeline.collect.campaign_reader import measured_peaks
from pipeline.config import LOCAL_GPU
from pipeline.hardware.altered_figures import composed_gpu, proportional_factor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.paths import measurements_dir


def gpu_of(values: Mapping[str, Any]) -> GpuSpec:
    """The GPU of a composed configuration, with or without overridden figures; `local` is the GPU of this machine.

    Where the configuration has no measured peak, the peak that a campaign of this project measured is used.
    """
    if values["name"] == LOCAL_GPU:
        return load_gpu(LOCAL_GPU)
    gpu, stated = composed_gpu(values)
    return with_measured_peaks(gpu, stated or gpu)


def with_measured_peaks(gpu: GpuSpec, stated: GpuSpec) -> GpuSpec:
    """`gpu` with measured peaks where it states none, from this project's campaign on the catalogue's `stated`."""
    if kernel_source(gpu.name) is not Source.MEASUREMENTS:
        return gpu
    peaks = {f"measured_{name}": value for name, value in measured_peaks(measurements_dir() / gpu.name).items()}
    new: dict[str, Any] = {
        name: value * proportional_factor(name, gpu, stated)
        for name, value in peaks.items()
        if hasattr(gpu, name) and getattr(gpu, name) is None
    }
    return replace(gpu, **new) if new else gpu
