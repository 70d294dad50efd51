"""Compares predicted DLRM steps with those that NVIDIA measured and published, in training and inference.

    python benchmarks/steps/dlrm.py [DATASETS_DIR] [--write docs/accuracy.md]

`evaluation/published/published_dlrm.py` lists the files and their sources. The measured code differs from the prediction in
three ways that no option describes:

- All layers of an MLP are one operator of apex, with bias and ReLU in one kernel after each product.
- Lookups read fp32 rows and write rows in half precision.
- The indices are real, with the skew of click data.

Batches are assumed to be on the device. Training copies the next batch on another stream at the same time. In inference,
the V100's latencies are too short to include copies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown, rewrite
from evaluation.pages.published_step_tables import counted, with_errors
from evaluation.published.published_dlrm import SEPARATE_LOOKUP_VERSIONS, read_rows, read_steps
from pipeline import predict
from pipeline.overheads.overhead_model import DEVICE_CONSTANTS_US
from pipeline.paths import datasets_dir
from pipeline.prediction import Prediction

MIN_LARGE_BATCH = 4096
"""Batch size from which inference takes at least 0.5 ms, so the host's part of a graph replay is at most 10 %."""


def predicted(row: pd.Series, tables: Sequence[int]) -> Prediction:
    """Steptime's prediction of a row."""
    parts = row["version"] in SEPARATE_LOOKUP_VERSIONS
    options: dict[str, object] = {
        "model.rows": list(tables),
        "model.loss": "bce_logits",
        "model.mode": row["mode"],
        "model.dtype": row["dtype"],
        "model.embedding": "sparse" if parts else "joint_rows",
        "model.interaction": "by_parts" if parts else "fused",
        "predict.cuda_graph": bool(row["cuda_graph"]),
    }
    if row["mode"] == "inference" and row["dtype"] == "fp16":
        options["model.precision"] = "pure"  # the example's `model.half()`
    return predict(
        gpu=row["gpu"], model="dlrm_mlperf", batch_size=int(row["batch_size"]), **options
    )


def compare(rows: pd.DataFrame, tables: Sequence[int]) -> pd.DataFrame:
    """The rows with predictions and errors, without the time of batch copies."""
    found = [predicted(row, tables) for _, row in rows.iterrows()]
    return with_errors(rows, found, [one.predicted_us - _copies_us(one) for one in found])


def _copies_us(found: Prediction) -> float:
    """Time in microseconds that the step would save if its batch were already on the device.

    In a host-bound step it is the host time of the copies; otherwise it is the additional wait of the first kernel.
    """
    calls = found.calls
    host = float(calls.loc[calls["phase"] != "data", "host_start_us"].min())
    if found.bound == "host":
        return host
    first = calls[calls["family"].notna() & (calls["family"] != "memcpy_h2d")].iloc[0]
    launched = float(first["host_start_us"]) - host
    return float(first["device_start_us"]) - launched - DEVICE_CONSTANTS_US["launch_latency"]


def step_kinds(rows: pd.DataFrame) -> pd.Series:
    """Kind of step of each row, as the summary calls it."""
    precision = np.where(rows["dtype"] == "fp16", "fp16", "fp32 or TF32")
    by_parts = np.where(rows["version"].isin(SEPARATE_LOOKUP_VERSIONS), ", tables one by one", "")
    large = np.where(
        rows["batch_size"] >= MIN_LARGE_BATCH,
        f", CUDA graphs, batch of at least {MIN_LARGE_BATCH}",
        ", CUDA graphs, smaller batch",
    )
    graphs = np.where((rows["mode"] == "inference") & rows["cuda_graph"], large, "")
    return rows["mode"] + by_parts + graphs + ", " + precision


def summary(rows: pd.DataFrame) -> str:
    """Table by kind of step: mean and mean absolute error of the V100's rows and of the A100's."""
    lines = []
    for kind, group in rows.groupby(step_kinds(rows), sort=False):
        parts = [group[group["seen"]], group[~group["seen"]]]
        cells = [str(kind)]
        for part in parts:
            error = 100 * part["error"]
            cells += [
                str(len(part)),
                *(
                    [
                        f"{error.mean():+.1f}",
                        f"{error.abs().mean():.1f}",
                        f"{error.abs().max():.1f}",
                    ]
                    if len(part)
                    else ["", "", ""]
                ),
            ]
        cells.append(counted(group["inside"]))
        lines.append(cells)
    each = ("rows", "mean error %", "mean absolute %", "worst %")
    return markdown(
        ["step", *(f"V100: {c}" for c in each), *(f"A100: {c}" for c in each), "inside p10-p90"],
        lines,
    )


def table(rows: pd.DataFrame) -> str:
    """Table with one line per published step."""
    lines = []
    for row in rows.itertuples():
        graphs = ", CUDA graphs" if row.cuda_graph else ""
        lines.append(
            [
                str(row.gpu),
                f"{row.mode}{graphs}",
                str(row.version),
                str(row.dtype),
                str(row.batch_size),
                *(f"{value / 1e3:.2f}" for value in (row.measured_us, row.predicted_us)),
                (
                    f"{row.p10_us / 1e3:.2f} to"
                    f" {row.p90_us / 1e3:.2f}{'' if row.inside else ', outside'}"
                ),
                f"{100 * row.error:+.1f}",
            ]
        )
    headings = [
        "GPU",
        "step",
        "version of page",
        "precision",
        "batch",
        "measured ms",
        "predicted ms",
        "p10 to p90",
        "error %",
    ]
    return markdown(headings, lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--mode", choices=("train", "inference"), help="only these steps")
    parser.add_argument(
        "--write", type=Path, help="document in which the marked sections are replaced"
    )
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    rows = read_steps(args.datasets)
    rows = rows[rows["mode"] == args.mode] if args.mode else rows
    rows = compare(rows, read_rows(args.datasets))
    fit = f"All of these ran; {rows['fits'].sum()} of {len(rows)} are predicted to fit in memory."
    short = f"{summary(rows)}\n\n{fit}"
    print(f"{table(rows)}\n\n{short}")
    if args.write:
        rewrite(args.write, {"dlrm steps": table(rows), "dlrm": short})
    return 0


if __name__ == "__main__":
    sys.exit(main())
