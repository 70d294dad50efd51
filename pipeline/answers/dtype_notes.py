"""What runs instead of a dtype that a GPU does not have, in words for the user."""

from __future__ import annotations

import pandas as pd

from pipeline.hardware.spec import GpuSpec, has_bf16, has_tf32

UNMATCHED_FAMILIES = {"attention": "fused attention", "rnn": "cuDNN's recurrent layers"}
"""Kernel families that have no bf16 kernels on GPUs without bf16; PyTorch runs separate operators in their place."""


def asks_tf32(graph: pd.DataFrame) -> bool:
    """Whether the attributes of an operator (`graph` schema) allow TF32."""
    return bool(graph["attributes"].drop_duplicates().astype(str).str.contains('"tf32"').any())


def dtype_notes(gpu: GpuSpec, tf32: bool, calls: pd.DataFrame) -> list[str]:
    """One sentence for each dtype that the step asks for and that the GPU does not have.

    Args:
        gpu: the device.
        tf32: whether an operator asks for TF32 (`asks_tf32`).
        calls: device calls, `calls` schema.
    """
    notes: list[str] = []
    if gpu.limits is None:  # a CPU
        return notes
    if tf32 and not has_tf32(gpu):
        notes.append(f"{gpu.name} has no TF32: what runs, and is predicted, is fp32")
    if has_bf16(gpu):
        return notes
    in_bf16 = (calls["dtype"] == "bf16").to_numpy(bool, na_value=False)
    if in_bf16.any():
        half = calls[in_bf16]
        text = f"{gpu.name} has no bf16: PyTorch stores 2 bytes and computes in fp32"
        if (half["op"] == "im2col").any():
            text += ", convolutions one sample at a time without cuDNN"
        lacking = [name for family, name in UNMATCHED_FAMILIES.items() if (half["family"] == family).any()]
        if lacking:
            text += f"; {' and '.join(lacking)} would be slower than predicted"
        notes.append(f"{text} (model.dtype=fp16 is faster)")
    return notes
