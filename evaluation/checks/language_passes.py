"""Predictions of whole language models, compared with public latencies that no kernel model or constant was fitted to.

The public table (NeuSight's `model_latency`) holds inference passes and training passes (forward and backward with
accumulating gradients, no optimizer), in fp32 with TF32 off, with eager attention and without fused operators. The
predictions use only the shipped packs, so the errors are those of the shipped models.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.answers.engine import engine
from pipeline.question.question import expand
from pipeline.schemas import read_frame

MODES = {"inf": "inference", "train": "train"}

COLUMNS = ("gpu", "model", "mode", "seq_len", "batch_size", "option", "e2e_latency_us")
"""Columns that are read from the public table."""

WORKLOADS = ("bert_large", "gpt2_large", "gpt3_xl", "gpt3_27", "opt_13")
"""Models of the public table for which this project has a workload."""


def read_passes(data: Path) -> pd.DataFrame:
    """The measured rows of models for which this project has a workload.

    Raises:
        TableError: the table is missing, unreadable, or lacks columns.
    """
    file = data / "neusight" / "model_latency.parquet"
    table = read_frame(file, "download the public data", "download it again", COLUMNS)
    kept = (
        table["model"].isin(WORKLOADS)
        & table["option"].fillna("").astype(str).eq("")
        & table["mode"].isin(MODES)
    )
    return table[kept].sort_values(
        ["model", "mode", "seq_len", "batch_size", "gpu"], ignore_index=True
    )


def predict_passes(data: Path) -> pd.DataFrame:
    """Predicted and measured latency of every public pass; each graph is captured once and used for all GPUs.

    Returns:
        gpu, model, mode, seq_len, batch_size, measured_us, predicted_us, p10_us, p90_us, active_us, bound.
    """
    rows = []
    for row in read_passes(data).to_dict("records"):
        mode = MODES[str(row["mode"])]
        overrides = {
            "gpu": row["gpu"],
            "model": row["model"],
            "batch_size": row["batch_size"],
            "model.mode": mode,
            "model.optimizer": "none",
            "model.seq_len": row["seq_len"],
        }
        prediction = (
            engine(None)
            .predict_one(expand([f"{key}={value}" for key, value in overrides.items()])[0])
            .whole()
        )
        rows.append(
            {
                "gpu": prediction.gpu,
                "model": row["model"],
                "mode": mode,
                "seq_len": row["seq_len"],
                "batch_size": row["batch_size"],
                "measured_us": row["e2e_latency_us"],
                "predicted_us": prediction.predicted_us,
                "p10_us": prediction.p10_us,
                "p90_us": prediction.p90_us,
                "active_us": prediction.active_us,
                "bound": prediction.bound,
            }
        )
    return pd.DataFrame(rows)
