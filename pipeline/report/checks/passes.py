"""Whole models against public end-to-end latencies: language models that no kernel model or constant was fitted to.

The public table (NeuSight's `model_latency`) holds inference passes and training passes (forward and backward with
accumulating gradients, no optimizer), fp32, TF32 off, eager attention, without fused operators. Prediction rests on the
shipped packs alone, so that it says how good what ships is.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.schemas import read_columns

MODES = {"inf": "inference", "train": "train"}

COLUMNS = ("gpu", "model", "mode", "seq_len", "batch_size", "option", "e2e_latency_us")
"""Columns of the public table that are read."""

WORKLOADS = ("bert_large", "gpt2_large", "gpt3_xl", "gpt3_27", "opt_13")
"""Models of the public table that a workload of ours describes."""


def measured_passes(data: Path) -> pd.DataFrame:
    """The measured rows that a workload of ours describes.

    Raises:
        TableError: the table is missing, unreadable, or lacks columns.
    """
    file = data / "neusight" / "model_latency.parquet"
    table = read_columns(file, COLUMNS, "download the public data", "download it again")
    kept = table["model"].isin(WORKLOADS) & table["option"].fillna("").astype(str).eq("") & table["mode"].isin(MODES)
    return table[kept].sort_values(["model", "mode", "seq_len", "batch_size", "gpu"], ignore_index=True)


def predicted_passes(data: Path) -> pd.DataFrame:
    """Predicted and measured latency of every public pass; each graph is captured once and serves all GPUs.

    Returns:
        gpu, model, mode, seq_len, batch_size, measured_us, predicted_us, p10_us, p90_us, active_us, bound.
    """
    from pipeline.api import gpu_of, kernel_predictor, overhead_model
    from pipeline.config import expand
    from pipeline.evaluate import Subject, evaluate
    from pipeline.graph.calls import map_calls
    from pipeline.graph.capture import capture

    rows = []
    for (model, mode, length, batch), part in measured_passes(data).groupby(
        ["model", "mode", "seq_len", "batch_size"], sort=False, observed=True
    ):
        graph = None
        for row in part.itertuples():
            point = expand([
                f"gpu={row.gpu}", f"model={model}", f"batch_size={batch}", f"model.mode={MODES[str(mode)]}",
                "model.optimizer=none", f"model.seq_len={length}",
            ])[0]  # fmt: skip
            graph = graph or capture(point.config["model"], point.batch_size)
            gpu = gpu_of(point.config["gpu"])
            calls = map_calls(graph, gpu, graph.device)
            subject = Subject(point.model, point.variant, point.batch_size, graph.memory_bytes,
                              settings=point.config["predict"])  # fmt: skip
            found, _ = evaluate(subject, gpu, graph.table, calls, kernel_predictor(gpu, "auto", None),
                                overhead_model(gpu.name, point.config["overheads"], None, point.workload))  # fmt: skip
            rows.append({"gpu": gpu.name, "model": model, "mode": MODES[str(mode)], "seq_len": length,
                         "batch_size": batch, "measured_us": row.e2e_latency_us, "predicted_us": found.predicted_us,
                         "p10_us": found.p10_us, "p90_us": found.p90_us, "active_us": found.active_us,
                         "bound": found.bound})  # fmt: skip
    return pd.DataFrame(rows)
