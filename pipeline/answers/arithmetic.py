"""FLOPs of a step: those that its products execute, and those that the model needs; and the roofs of the GPU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.graph.device_calls import PRODUCTS
from pipeline.hardware.spec import GpuSpec
from pipeline.prediction_parts import Arithmetic

ATTENTION_BACKWARD = 4 / 5
"""Products of fused attention's backward pass without that of the scores, which it computes again (FlashAttention,
arXiv:2205.14135, algorithm 4)."""


def product_flops(calls: pd.DataFrame) -> Array:
    """FLOPs that each call executes in products, shape (calls,); 0 for other families."""
    flops: Array = np.where(
        calls["family"].isin(PRODUCTS), calls["flops"].to_numpy(np.float64), 0.0
    )
    return flops


def model_flops(operators: pd.DataFrame, calls: pd.DataFrame) -> dict[str, float]:
    """FLOPs that a model needs for one step by dtype, the dtype with most of them first: the numerator of MFU.

    Chowdhery et al. define it (PaLM, arXiv:2204.02311, appendix B). Products of forward and backward count, a multiply-add as
    two FLOPs. What runs again in the backward pass does not (gradient checkpointing, the scores of fused attention). The score
    matrix of causal attention counts as a whole.

    Args:
        operators: `graph` schema.
        calls: its device calls, `calls` schema.
    """
    flops = product_flops(calls)
    fused = (calls["family"] == "attention").to_numpy()
    if fused.any():
        causal = (
            calls["attributes"].astype(str).str.contains('"causal":true', regex=False).to_numpy()
        )
        backward = (calls["phase"] == "backward").to_numpy()
        flops = (
            flops
            * np.where(fused & causal, 2.0, 1.0)
            * np.where(fused & backward, ATTENTION_BACKWARD, 1.0)
        )
    again = operators["attributes"].str.contains('"recomputed":true', regex=False).to_numpy(bool)
    if again.any():
        flops[calls["node_id"].isin(operators.loc[again, "node_id"])] = 0.0
    sums = (
        pd.Series(flops).groupby(calls["dtype"].to_numpy(object)).sum().sort_values(ascending=False)
    )
    return {str(dtype): float(value) for dtype, value in sums.items() if value > 0}


def arithmetic_of(gpu: GpuSpec, flops: Mapping[str, float]) -> Arithmetic | None:
    """The arithmetic of a step with the roofs of the GPU; None for a step without products."""
    if not flops:
        return None
    peaks = {dtype: gpu.datasheet_gflop_per_s(dtype) / 1000 for dtype in flops}
    return Arithmetic(sum(flops.values()), next(iter(flops)), peaks, gpu.dram_gb_per_s)
