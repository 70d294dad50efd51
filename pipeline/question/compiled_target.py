"""The GPU for which a step is compiled, as a part of its workload: compiled code differs between GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigError
from pipeline.hardware.spec import GpuSpec

KEYS = ("compile", "compiled_for")
"""Options of a workload that make its step a compiled one."""

OLDEST = 7.0
"""Compute capability from which Triton has kernels, which PyTorch's compiler needs on a GPU."""


def as_written(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the same step, not compiled."""
    plain = {key: value for key, value in config.items() if key not in KEYS}
    return {**plain, "compile": False} if "compile" in config else plain


def with_target(
    model: Mapping[str, Any], gpu: GpuSpec, local: bool, spreads: bool
) -> dict[str, Any]:
    """The workload with the compute capability and the SMs of the GPU for which it is compiled; unchanged if it is not.

    Raises:
        ConfigError: such a step cannot be compiled, or is not predicted.
    """
    if not model.get("compile"):
        return dict(model)
    asked = "model.compile=true"
    if local:
        raise ConfigError(f"{asked}: gpu=local measures steps as they are written; name a GPU")
    if gpu.limits is None or gpu.architecture.startswith("cdna"):
        raise ConfigError(f"{asked} on {gpu.name}: compiled steps are predicted on NVIDIA's GPUs")
    if gpu.compute_capability < OLDEST:
        raise ConfigError(
            f"{asked} on {gpu.name}: Triton needs compute capability {OLDEST}, and this GPU has"
            f" {gpu.compute_capability:.1f}; leave it out"
        )
    if spreads or "part" in model:
        what = "parallel=hybrid" if spreads else "layers that GPUs share (model=gpt, model=llama)"
        raise ConfigError(
            f"{asked}: compiled steps are predicted on one GPU, with parallel=ddp and fsdp, not"
            f" with {what}; leave one of them out"
        )
    return {**model, "compiled_for": f"{gpu.compute_capability:.1f}-{gpu.sms}"}
