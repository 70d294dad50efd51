"""GPUs with the same chip, such as the A100 with 40 GB and the A100 with 80 GB."""

from __future__ import annotations

from collections.abc import Iterable
from math import log

from pipeline.hardware.spec import GpuSpec, load_gpu_file


def same_chip(a: GpuSpec, b: GpuSpec) -> bool:
    """Whether two GPUs have the same chip and number of SMs, so that the same kernels run in the same waves."""
    return a.architecture == b.architecture and a.compute_capability == b.compute_capability and a.sms == b.sms


def same_chip_gpu(gpu: GpuSpec, measured: Iterable[str]) -> GpuSpec | None:
    """The measured GPU with the same chip and the nearest DRAM bandwidth, except the GPU itself; None without one."""
    found = [spec for spec in map(load_gpu_file, measured) if spec.name != gpu.name and same_chip(spec, gpu)]
    return min(found, key=lambda spec: abs(log(spec.dram_gb_per_s / gpu.dram_gb_per_s)), default=None)
