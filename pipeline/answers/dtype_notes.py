"""What runs instead of a dtype that a GPU does not have, in words for the user."""

from __future__ import annotations

import pandas as pd

from pipeline.hardware.dtype_support import has_bf16, has_tf32
from pipeline.hardware.spec import GpuSpec

UNMATCHED_FAMILIES = {"attention": "fused attention", "rnn": "cuDNN's recurrent layers"}
"""Kernel families that have no bf16 kernels on GPUs without bf16; PyTorch runs separate operators in their place."""


def dtype_notes(gpu: GpuSpec, graph: pd.DataFrame, calls: pd.DataFrame) -> list[str]:
    """One sentence for each dtype that the step asks for and that the GPU does not have.

    Args:
        gpu: the device.
        graph: operators, `graph` schema; they state whether TF32 is allowed.
        calls: device calls, `calls` schema.
    """
    notes: list[str] = []
    if gpu.limits is None:  # a CPU
        return notes
    if not has_tf32(gpu) and graph["attributes"].astype(str).str.contains('"tf32"').any():
        notes.append(f"{gpu.name} has no TF32: what runs, and is predicted, is fp32")
    half = calls[calls["dtype"] == "bf16"]
    if not has_bf16(gpu) and len(half):
        text = f"{gpu.name} has no bf16: PyTorch stores 2 bytes and computes in fp32"
        if (half["op"] == "im2col").any():
            text += ", convolutions one sample at a time without cuDNN"
        lacking = [name for family, name in UNMATCHED_FAMILIES.items() if (half["family"] == family).any()]
        if lacking:
            text += f"; {' and '.join(lacking)} would be slower than predicted"
        notes.append(f"{text} (model.dtype=fp16 is faster)")
    return notes
