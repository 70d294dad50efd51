"""What to know about a predicted step: dtypes that its GPU lacks, GPUs and operators that nothing measured stands behind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import pandas as pd

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec, has_bf16, has_tf32
from pipeline.model_files import HALF, list_packs
from pipeline.prediction_parts import UNMEASURED
from pipeline.readable import listed

UNMATCHED_FAMILIES = {"attention": "fused attention", "rnn": "cuDNN's recurrent layers"}
"""Kernel families that have no bf16 kernels on GPUs without bf16; PyTorch runs separate operators in their place."""


@lru_cache(maxsize=1)
def measured_architectures() -> frozenset[str]:
    """Architectures of the GPUs with kernels that were measured, of which models ship."""
    return frozenset(load_gpu(name).architecture for name in (*list_packs(), *list_packs(HALF)))


def unmeasured_notes(gpu: GpuSpec) -> list[str]:
    """The sentence of an answer for a GPU of whose architecture no kernel was measured; nothing for others, and for a CPU."""
    if gpu.limits is None or gpu.architecture in measured_architectures():
        return []
    return [
        f"{UNMEASURED} the times of {gpu.name}: no kernel of its architecture was"
        " measured; they are the rules of NVIDIA's cards, with its figures"
    ]


def asks_tf32(graph: pd.DataFrame) -> bool:
    """Whether the attributes of an operator (`graph` schema) allow TF32."""
    return bool(graph["attributes"].drop_duplicates().astype(str).str.contains('"tf32"').any())


def dtype_notes(gpu: GpuSpec, tf32: bool, kinds: Iterable[tuple[str, str, str]]) -> list[str]:
    """One sentence for each dtype that the step asks for and that the GPU does not have.

    Args:
        gpu: the device.
        tf32: whether an operator asks for TF32 (`asks_tf32`).
        kinds: family, operation and dtype of the device calls.
    """
    notes: list[str] = []
    if gpu.fp64_gflop_per_s is None and any(dtype == "fp64" for *_, dtype in kinds):
        notes.append(
            f"the file of {gpu.name} has no fp64_tflop_per_s: 1/{1 / gpu.fp64_share:.0f} of the"
            " rate of fp32 is assumed, as in its architecture"
        )
    if gpu.limits is None:  # a CPU
        return notes
    if tf32 and not has_tf32(gpu):
        notes.append(f"{gpu.name} has no TF32: what runs, and is predicted, is fp32")
    if has_bf16(gpu):
        return notes
    if half := [(family, op) for family, op, dtype in kinds if dtype == "bf16"]:
        text = f"{gpu.name} has no bf16: PyTorch stores 2 bytes and computes in fp32"
        if any(op == "im2col" for _, op in half):
            text += ", convolutions one sample at a time without cuDNN"
        families = {family for family, _ in half}
        lacking = [name for family, name in UNMATCHED_FAMILIES.items() if family in families]
        if lacking:
            text += f"; {' and '.join(lacking)} would be slower than predicted"
        notes.append(f"{text} (model.dtype=fp16 is faster)")
    return notes


def lower_bound_notes(unmodelled: Iterable[str]) -> list[str]:
    """The sentence of an answer whose step has operators without a model; nothing without them."""
    if not (names := sorted(unmodelled)):
        return []
    return [
        f"lower bound: {listed(names)} {'has' if len(names) == 1 else 'have'} no model; only the"
        " bytes (of products: the arithmetic as in fp32) are counted, and the step may take much"
        " longer"
    ]
