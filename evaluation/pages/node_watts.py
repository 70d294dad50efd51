"""Watts of whole nodes of 8 H100 in MLPerf Training v4.0, beside those of predicted steps: a consistency check.

MLPerf measures whole runs, with evaluation and start-up; its BERT multiplies in FP8 and packs its batches. So the steps are
stand-ins, and nothing was set on these rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.pages.markdown import markdown
from evaluation.published.published_pages import reading
from pipeline.answers.engine import Engine
from pipeline.answers.model_sources import AvailableModels
from pipeline.question.question import expand

FILE = Path("power") / "mlperf_nodes.parquet"

HALF = "gpu=H100 model.dtype=fp16"
STEPS: dict[Any, str] = {
    (
        "resnet",
        1,
    ): f"{HALF} model=resnet50 model.memory_format=channels_last batch_size=400 devices=8",
    (
        "resnet",
        8,
    ): f"{HALF} model=resnet50 model.memory_format=channels_last batch_size=50 devices=64",
    (
        "bert",
        1,
    ): f"{HALF} model=bert_large model.seq_len=512 model.attention=fused batch_size=48 devices=8",
}
"""The stand-in of a benchmark on so many nodes."""


def node_table(datasets: Path) -> str:
    """Measured and predicted watts of a node by benchmark and number of nodes, as a table."""
    with reading(file := datasets / FILE):
        rows = pd.read_parquet(file)
        rows = rows[rows["kind"] == "AC"]
        nodes = rows["system"].str.extract(r"^(\d+)x")[0].astype(int)
        found = rows.groupby([rows["benchmark"], nodes])["mean_w_per_part"].median()
    engine, lines = Engine(AvailableModels(results=None)), []
    medians: dict[Any, float] = dict(found)
    for run, watts in medians.items():
        if overrides := STEPS.get(run):
            facts = engine.predict_one(expand(overrides.split())[0]).whole().as_dict()
            off = f"{100 * (facts['node_w'] / watts - 1):+.0f}"
            cells = (watts, facts["node_w"], 8 * facts["mean_w"], 8 * facts["rest_w"])
            name = f"{run[0]}, {run[1]} x 8 H100"
            lines.append([name, *(f"{value:,.0f}" for value in cells), off])
    head = ["run", "measured W", "ours", "of it GPUs", "of it the rest", "off %"]
    return markdown(head, lines)
