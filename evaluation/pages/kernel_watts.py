"""Watts of single products and of fused attention in bf16 on H200 and B200 (aiconfigurator), beside those of the power model.

The measured time of a kernel says its clock already: it takes what the full clock would take, or what the limit leaves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown
from evaluation.published.published_pages import reading
from pipeline.arrays import Array
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.power import SHARED, pj_per_flop
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import sustained_dram_gb_per_s

FILES = {
    "product": Path("power") / "gemm_watts.parquet",
    "fused attention": Path("power") / "attention_watts.parquet",
}

HELD = 0.985
"""Share of its limit at which a card holds one kernel that is repeated."""

LEAST_MS = 0.1
"""Shorter kernels are left out: their measured watts are those of the gaps between launches as well."""


def work_of(kind: str, rows: pd.DataFrame) -> tuple[Array, Array]:
    """FLOPs and bytes of each row, each of shape (rows,)."""
    if kind == "product":
        m, n, k = (rows[name].to_numpy(float) for name in "mnk")
        return 2 * m * n * k, 2 * (m * k + n * k + m * n)
    names = ("batch_size", "seq_len", "q_heads", "head_dim", "causal")
    batch, tokens, heads, width, causal = (rows[name].to_numpy(float) for name in names)
    shared = rows["kv_heads"].fillna(rows["q_heads"]).to_numpy(float)
    flops = 4 * batch * tokens**2 * heads * width * np.where(causal == 1, 0.5, 1.0)
    return flops, 4 * batch * tokens * width * (heads + shared)


def watts(kind: str, rows: pd.DataFrame, gpu: GpuSpec) -> Array:
    """Predicted watts of kernels with known times, shape (rows,)."""
    per_s, (flops, moved) = 1e3 / rows["latency_ms"].to_numpy(float), work_of(kind, rows)
    traffic = np.minimum(moved * per_s, 1e9 * sustained_dram_gb_per_s(gpu))
    joules = pj_per_flop(gpu, "bf16") * flops * per_s + gpu.generation.pj_per_byte * traffic
    board_w = SHARED.board_w(gpu, np.array(1.0))
    return np.minimum(board_w + 1e-12 * joules, HELD * rows["power_limit_w"].to_numpy(float))


def watts_table(datasets: Path) -> str:
    """Mean errors in % by kind of kernel and card, with the limit as watts beside them.

    Raises:
        TableError: a table is missing or has another form.
    """
    lines = []
    for kind, file in FILES.items():
        with reading(path := datasets / file):
            rows = pd.read_parquet(path)
            rows = rows[rows["latency_ms"] > LEAST_MS]
            rows = rows[rows["gemm_dtype"] == "bfloat16"] if kind == "product" else rows
            for device, own in rows.groupby("device", observed=True):
                gpu = load_gpu(str(device).removeprefix("NVIDIA "))
                measured = own["power_w"].to_numpy(float)
                found = watts(kind, own, gpu), own["power_limit_w"].to_numpy(float)
                ours, limit = (100 * (each / measured - 1) for each in found)
                mean = f"{np.abs(ours).mean():.1f} ({ours.mean():+.1f})"
                lines.append([kind, gpu.name, str(len(own)), mean, f"{np.abs(limit).mean():.1f}"])
    return markdown(["kernel", "GPU", "rows", "watts %", "limit as watts"], lines)
