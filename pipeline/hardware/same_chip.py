"""Cards that carry the same chip: an A100 with 80 GB beside the one with 40 GB."""

from __future__ import annotations

from collections.abc import Iterable
from math import log

from pipeline.hardware.spec import GpuSpec, load_gpu_file


def same_chip(a: GpuSpec, b: GpuSpec) -> bool:
    """Whether two cards carry the same chip with as many SMs: the same kernels run in the same waves."""
    return a.architecture == b.architecture and a.compute_capability == b.compute_capability and a.sms == b.sms


def sibling_of(gpu: GpuSpec, measured: Iterable[str]) -> GpuSpec | None:
    """Of other, measured GPUs the one with the same chip, nearest in bandwidth, if any."""
    found = [spec for spec in map(load_gpu_file, measured) if spec.name != gpu.name and same_chip(spec, gpu)]
    return min(found, key=lambda spec: abs(log(spec.dram_gb_per_s / gpu.dram_gb_per_s)), default=None)
