"""Compares predicted steps of timm's networks with those that its own benchmark measured, in training and inference.

    python benchmarks/steps/timm_networks.py [DATASETS_DIR] [--sets training inference] [--rows tuning report]
        [--sample REPORT TUNING] [--out ROWS.parquet] [--write docs/accuracy.md]

It needs timm. `evaluation/published/published_timm.py` names the measured tables and splits them into tuning and report
rows. Capturing a step takes 2 to 5 s of CPU time; the cache ($STEPTIME_CACHE) keeps graphs.
`--sample` takes the rows of that many models with report rows, and with tuning rows, by the hash of their names.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from evaluation.checks.step_accuracy import with_errors
from evaluation.pages.markdown import markdown, rewrite
from evaluation.pages.step_tables import counted
from evaluation.published.published_timm import GPUS, read_inference, read_training
from pipeline.answers.engine import STEPS, Engine
from pipeline.answers.model_sources import AvailableModels
from pipeline.errors import SteptimeError
from pipeline.paths import datasets_dir
from pipeline.question.question import Question, questions_of

READERS = {"training": read_training, "inference": read_inference}

FUSED_ATTENTION_SINCE = "2.0"
"""PyTorch from which timm's networks call fused attention."""


def question_of(row: pd.Series) -> Question:
    """The question about one measured step."""
    options = {
        "model.target": "evaluation.workloads.timm_library:make_step",
        "+model.options.network": row["model"],
        "+model.options.side": int(row["side"]),
        "+model.options.fused": row["torch"] >= FUSED_ATTENTION_SINCE,
        "model.mode": row["mode"],
        "model.dtype": row["dtype"],
        "model.memory_format": row["memory_format"],
        "model.optimizer": "none",
        "model.copies": "none",
        "batch_size": int(row["batch_size"]),
        "predict.wait_each_step": True,
    }
    return questions_of(row["gpu"], "custom", options)[0]


def kind(calls: pd.DataFrame) -> str:
    """What kind of network a step is, by its calls: the first of attention, grouped, depthwise, convolutions, other."""
    conv = calls[calls["family"].astype(str).str.startswith("conv2d") & (calls["kernel_size"] > 1)]
    if calls["family"].isin(["bmm", "attention"]).any():
        return "attention"
    depthwise = conv["groups"] == conv["in_channels"]
    if ((conv["groups"] > 1) & ~depthwise).any():
        return "grouped convolutions"
    return (
        "depthwise convolutions"
        if depthwise.any()
        else "dense convolutions"
        if len(conv) > 1
        else "other"
    )


def compared(rows: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Each row with its prediction, or with the `reason` why there is none."""
    engine = Engine(AvailableModels())
    for _, row in rows.iterrows():
        try:
            question = question_of(row)
            found = engine.predict_one(question, detail=False).whole()
        except SteptimeError as error:
            yield {**row, "reason": " ".join(str(error).split())}
            continue
        table = with_errors(row.to_frame().T, [found])
        yield {**table.iloc[0], "kind": kind(STEPS.calls(question)), "reason": ""}


def summary(rows: pd.DataFrame) -> str:
    """Errors by set, layout and kind of network, report rows beside tuning rows."""
    lines = []
    for (name, layout), part in rows.groupby(["set", "layout"], sort=False):
        kinds = [("all", part), *part.groupby("kind")]
        for what, group in kinds:
            cells = [str(name), str(layout), str(what)]
            for tuning in (False, True):
                own = group[group["tuning"] == tuning]
                error = 100 * own["error"].astype(float)
                stated = (
                    f"{len(own)}: {error.mean():+.1f}, {error.abs().mean():.1f},"
                    f" {error.abs().max():.0f}"
                )
                cells += [stated if len(own) else "", counted(own["inside"].astype(bool))]
            lines.append(cells)
    told = "rows: mean, mean absolute, worst error %"
    return markdown(
        [
            "steps",
            "layout",
            "networks",
            f"report {told}",
            "inside p10-p90",
            f"tuning {told}",
            "inside p10-p90",
        ],
        lines,
    )


def worst(rows: pd.DataFrame, count: int = 20) -> str:
    """The report rows with the largest errors."""
    report = rows[~rows["tuning"].astype(bool)]
    chosen = report.loc[
        report["error"].astype(float).abs().sort_values(ascending=False).index[:count]
    ]
    lines = [
        [
            str(row.model),
            str(row.set),
            str(row.layout),
            str(row.batch_size),
            str(row.side),
            f"{row.measured_us / 1e3:.0f}",
            f"{row.predicted_us / 1e3:.0f}",
            f"{100 * row.error:+.0f}",
        ]
        for row in chosen.itertuples()
    ]
    return markdown(
        ["network", "step", "layout", "batch", "pixels", "measured ms", "predicted ms", "error %"],
        lines,
    )


def drawn(models: pd.Series, count: int) -> pd.Series:
    """For each row, whether its model is among the `count` models drawn by the hash of their names."""
    names = sorted(set(models), key=lambda name: hashlib.sha256(f"sample {name}".encode()).digest())
    return models.isin(names[:count])


def chosen_rows(args: argparse.Namespace) -> pd.DataFrame:
    """The measured rows that the command asks for."""
    tables = [READERS[name](args.datasets).assign(set=name, gpu=GPUS[name]) for name in args.sets]
    rows = pd.concat(tables, ignore_index=True)
    rows = rows[rows["tuning"].isin([name == "tuning" for name in args.rows])]
    if args.sample:
        parts = rows.groupby("tuning")
        rows = pd.concat(
            [part[drawn(part["model"], args.sample[int(tuning)])] for tuning, part in parts]
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--sets", nargs="+", choices=tuple(READERS), default=list(READERS))
    parser.add_argument(
        "--rows", nargs="+", choices=("tuning", "report"), default=["tuning", "report"]
    )
    parser.add_argument(
        "--sample",
        type=int,
        nargs=2,
        metavar=("REPORT", "TUNING"),
        help="rows of only so many models",
    )
    parser.add_argument("--out", type=Path, help="parquet file for all rows with predictions")
    parser.add_argument(
        "--write", type=Path, help="document in which the marked sections are replaced"
    )
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    table = pd.DataFrame(compared(chosen_rows(args)))
    rows, lost = table[table["reason"] == ""], table[table["reason"] != ""]
    print(f"{summary(rows)}\n\n{worst(rows)}")
    for line in lost.itertuples():
        print(f"{line.model}, {line.set}: {line.reason}", file=sys.stderr)
    if args.out:
        table.drop(columns="reason").to_parquet(args.out)
    if args.write:
        names = ", ".join(sorted({f"`{name}`" for name in lost["model"]})) or "none"
        measured = sum(len(READERS[name](args.datasets)) for name in READERS)
        told = (
            f"{len(rows):,} of {measured:,} measured rows are in the table. Could not be captured:"
            f" {names}."
        )
        rewrite(args.write, {"timm": f"{summary(rows)}\n\n{told}", "timm worst": worst(rows)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
