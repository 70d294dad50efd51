"""Compares predicted with published scaling efficiencies: throughput of N GPUs over N times that of one.

    python benchmarks/steps/scaling.py [DATASETS_DIR] [--write docs/accuracy.md]

`evaluation/published/published_scaling.py` lists the rows and what joins the GPUs of each machine. BERT's step is that of
`evaluation/workloads/squad_step.py`. GNMT's sentences have 25 tokens here; on real ranks their lengths differ, and all
wait for the longest. Exchange is that of PyTorch's DistributedDataParallel; NVIDIA's examples use apex's or PyTorch's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.compare_published import answer, shipped_models
from evaluation.pages.markdown import markdown, rewrite
from evaluation.published.published_scaling import read_scaling
from pipeline.paths import datasets_dir

GNMT_TOKENS = 25


def command(row: Mapping[str, Any]) -> str:
    """The command that predicts a row. NVIDIA's examples wait for the device in each step."""
    name = row["model"]
    options = {
        "model.dtype": row["dtype"],
        "devices": row["devices"],
        "cluster": row["cluster"],
        "predict.wait_each_step": "true",
    }
    if name == "gnmt":
        options |= {
            "model.seq_len": GNMT_TOKENS,
            "model.shared_embedding": "true",
            "model.label_smoothing": 0.1,
            "model.normalised_attention": "true",
        }
    elif name != "resnet50":
        options |= {
            "model.target": "evaluation.workloads.squad_step:make_step",
            "+model.options.size": name,
            # PyTorch 1.13, which all but a B200 ran, fills gradients with zeros
            "+model.options.zero": str(row["dtype"] != "fp16" and row["gpu"] != "B200").lower(),
            "model.optimizer": "none",
        }
        name = "custom"
    if row["memory_format"] != "contiguous":
        options["model.memory_format"] = row["memory_format"]
    words = [f"gpu={row['gpu']}", f"model={name}", f"batch_size={row['batch_size']}"]
    return " ".join(["steptime predict", *words, *(f"{key}={of}" for key, of in options.items())])


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `predicted` (efficiency) and `points`, the difference in percentage points."""
    commands = [command(row) for row in rows.to_dict("records")]
    engine = shipped_models()
    several = [answer(each, engine).several for each in commands]
    efficiencies = [each.efficiency for each in several if each is not None]
    found = rows.assign(predicted=efficiencies, command=commands)
    return found.assign(points=100 * (found["predicted"] - found["efficiency"]))


def tables(rows: pd.DataFrame) -> str:
    """Mean absolute difference by machine, then each row."""
    head = [
        "machine",
        "what states its fabric",
        "rows",
        "mean difference (points)",
        "worst (points)",
    ]
    means = []
    for (_, machine), group in rows.assign(none=rows["stated"] == "").groupby(
        ["none", "machine"], sort=True
    ):
        worst = group.loc[group["points"].abs().idxmax()]
        means.append(
            [
                str(machine),
                group["stated"].iloc[0] or "nothing at hand",
                str(len(group)),
                f"{group['points'].abs().mean():.1f}",
                f"{worst['points']:+.1f} ({worst['model']}, {worst['dtype']})",
            ]
        )
    for name, group in (
        ("all that state it", rows[rows["stated"] != ""]),
        ("the others", rows[rows["stated"] == ""]),
    ):
        if len(group):
            means.append(
                [f"**{name}**", "", str(len(group)), f"{group['points'].abs().mean():.1f}", ""]
            )
    each = [
        [
            row.machine,
            row.model,
            row.dtype,
            str(row.batch_size),
            f"{100 * row.efficiency:.1f}",
            f"{100 * row.predicted:.1f}",
            f"{row.points:+.1f}",
            f"`{row.command}`",
        ]
        for row in rows.itertuples()
    ]
    columns = [
        "machine",
        "model",
        "dtype",
        "batch of a GPU",
        "measured (%)",
        "predicted (%)",
        "difference",
        "command",
    ]
    return f"{markdown(head, means)}\n\n{markdown(columns, each)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--model", nargs="+", help="only these workloads")
    parser.add_argument("--write", type=Path, help="document with a block `scaling`")
    args = parser.parse_args()
    rows = read_scaling(args.datasets)
    rows = rows[rows["model"].isin(args.model)] if args.model else rows
    text = tables(compared(rows))
    print(text)
    if args.write:
        rewrite(args.write, {"scaling": text})
    return 0


if __name__ == "__main__":
    sys.exit(main())
