"""Predicted DLRM steps against those that NVIDIA measured and published, in training and inference.

    python benchmarks/steps/dlrm.py [DATASETS_DIR] [--write docs/accuracy.md]

The files and where they come from: `pipeline/evaluation/published_dlrm.py`. What ran there differs from what is predicted in ways
that options do not say: layers of an MLP are one operator of apex (bias and ReLU in one kernel behind a product), its
lookups read fp32 rows and write half ones, and real indices are as skewed as clicks are. Batches are taken to lie on the
device: training copies the next one on another stream meanwhile, and latencies of inference on the V100 leave no room for
copies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from published import judged

from pipeline import predict
from pipeline.evaluation.published_dlrm import ONE_BY_ONE, read_rows, read_steps
from pipeline.paths import datasets_dir
from pipeline.prediction import Prediction
from pipeline.report.markdown import markdown, rewrite
from pipeline.simulate.step_program import DEFAULT_LATENCY_US

LARGE_BATCH = 4096
"""Samples from which inference lasts half a millisecond and more: the host's part of a replay is then a tenth at most."""


def predicted(row: pd.Series, tables: Sequence[int]) -> Prediction:
    """What Steptime says of a row."""
    parts = row["version"] in ONE_BY_ONE
    options: dict[str, object] = {
        "model.rows": list(tables), "model.loss": "bce_logits", "model.mode": row["mode"], "model.dtype": row["dtype"],
        "model.embedding": "sparse" if parts else "joint_rows", "model.interaction": "by_parts" if parts else "fused",
        "predict.cuda_graph": bool(row["cuda_graph"]),
    }  # fmt: skip
    if row["mode"] == "inference" and row["dtype"] == "fp16":
        options["model.precision"] = "pure"  # the example's `model.half()`
    return predict(gpu=row["gpu"], model="dlrm_mlperf", batch_size=int(row["batch_size"]), **options)


def compare(rows: pd.DataFrame, tables: Sequence[int]) -> pd.DataFrame:
    """The rows judged, without copies of the batch."""
    found = [predicted(row, tables) for _, row in rows.iterrows()]
    return judged(rows, found, [one.predicted_us - _copies_us(one) for one in found])


def _copies_us(found: Prediction) -> float:
    """How much earlier the step's own work would begin if its batch lay on the device already.

    Where the host is what takes long, all that it does for copies; else what keeps the first kernel waiting beyond that.
    """
    calls = found.calls
    host = float(calls.loc[calls["phase"] != "data", "host_start_us"].min())
    if found.bound == "host":
        return host
    first = calls[calls["family"].notna() & (calls["family"] != "memcpy_h2d")].iloc[0]
    launched = float(first["host_start_us"]) - host
    return float(first["device_start_us"]) - launched - DEFAULT_LATENCY_US


def kinds(rows: pd.DataFrame) -> pd.Series:
    """What each row is, for the summary."""
    precision = np.where(rows["dtype"] == "fp16", "fp16", "fp32 or TF32")
    by_parts = np.where(rows["version"].isin(ONE_BY_ONE), ", by parts", "")
    large = np.where(rows["batch_size"] >= LARGE_BATCH, f", CUDA graphs, from {LARGE_BATCH}", ", CUDA graphs, smaller")
    graphs = np.where((rows["mode"] == "inference") & rows["cuda_graph"], large, "")
    return rows["mode"] + by_parts + graphs + ", " + precision


def summary(rows: pd.DataFrame) -> str:
    """A line per kind of step: mean and mean absolute error of the V100's rows and of the others."""
    lines = []
    for kind, group in rows.groupby(kinds(rows), sort=False):
        parts = [group[group["seen"]], group[~group["seen"]]]
        cells = [str(kind)]
        for part in parts:
            error = 100 * part["error"]
            cells += [str(len(part)), *([f"{error.mean():+.1f}", f"{error.abs().mean():.1f}", f"{error.abs().max():.1f}"]
                                        if len(part) else ["", "", ""])]  # fmt: skip
        cells.append(f"{group['inside'].sum()} of {len(group)}")
        lines.append(cells)
    each = ("rows", "mean error %", "mean absolute %", "worst %")
    return markdown(["step", *(f"V100: {c}" for c in each), *(f"A100: {c}" for c in each), "inside p10-p90"], lines)


def table(rows: pd.DataFrame) -> str:
    """A line per row."""
    lines = []
    for row in rows.itertuples():
        graphs = ", CUDA graphs" if row.cuda_graph else ""
        lines.append([str(row.gpu), f"{row.mode}{graphs}", str(row.version), str(row.dtype), str(row.batch_size),
                      *(f"{value / 1e3:.2f}" for value in (row.measured_us, row.predicted_us)),
                      f"{row.p10_us / 1e3:.2f} to {row.p90_us / 1e3:.2f}{'' if row.inside else ', outside'}",
                      f"{100 * row.error:+.1f}"])  # fmt: skip
    headings = ["GPU", "step", "page of", "precision", "batch", "measured ms", "predicted ms", "p10 to p90", "error %"]
    return markdown(headings, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--mode", choices=("train", "inference"), help="only these steps")
    parser.add_argument("--write", type=Path, help="document whose marked sections take the tables")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    rows = read_steps(args.datasets)
    rows = rows[rows["mode"] == args.mode] if args.mode else rows
    rows = compare(rows, read_rows(args.datasets))
    fit = f"All of these ran; {rows['fits'].sum()} of {len(rows)} are said to fit."
    short = f"{summary(rows)}\n\n{fit}"
    print(f"{table(rows)}\n\n{short}")
    if args.write:
        rewrite(args.write, {"dlrm steps": table(rows), "dlrm": short})
    return 0


if __name__ == "__main__":
    sys.exit(main())
