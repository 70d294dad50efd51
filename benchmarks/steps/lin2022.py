"""Predicted training steps against those that Lin et al. (HiPC 2022) measured on V100, TITAN Xp and P100.

    python benchmarks/steps/lin2022.py [DATASETS_DIR] [--write docs/accuracy.md] [--draw docs/images]

The files and where they come from: `pipeline/evaluation/published_lin2022.py`; the predicted loop:
`pipeline/evaluation/lin2022_steps.py`. The paper's error of each DLRM step is in its notebook
(`pipeline/evaluation/published_busy.py`); without that file the tables leave it out, and `--write` refuses.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import SteptimeError
from pipeline.evaluation.lin2022_steps import predicted_cnn, predicted_dlrm
from pipeline.evaluation.published_busy import FILE as NOTEBOOK
from pipeline.evaluation.published_lin2022 import DLRM_READING_MS, METHODS
from pipeline.evaluation.published_pages import missing
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.paths import datasets_dir
from pipeline.report.figures.measured_errors import published_networks
from pipeline.report.figures.published_errors import published
from pipeline.report.figures.style import save
from pipeline.report.markdown import markdown, rewrite

OURS = "Steptime"

READINGS = 10_000
"""Drawn sets of readings of the paper's figure: the deciles of the error over them are stable to 0.1 %."""


def dlrm_summary(rows: pd.DataFrame) -> str:
    """A line per prediction over all DLRM steps, and how much of it the reading of the figure leaves open."""
    predictions = {OURS: rows["error"]}
    if "published_error" in rows:
        predictions["Lin et al., overheads profiled on those hosts"] = rows["published_error"]
    lines = []
    for name, error in predictions.items():
        size = 100 * error.abs()
        own = f"{rows['inside'].sum()} of {len(rows)}" if name == OURS else ""
        lines.append([name, f"{100 * gmae(1 + error.to_numpy(), np.ones(len(error))):.2f}", f"{size.mean():.1f}",
                      f"{100 * error.mean():+.1f}", f"{size.max():.1f}", own])  # fmt: skip
    head = [
        f"{len(rows)} DLRM steps, predicted by",
        "GMAE %",
        "mean absolute %",
        "mean error %",
        "worst %",
        "inside p10-p90",
    ]
    return f"{markdown(head, lines)}\n\n{reading(rows)}"


def reading(rows: pd.DataFrame) -> str:
    """Errors if the measured steps differ from the readings by up to `DLRM_READING_MS`, drawn uniformly."""
    shape = (READINGS, len(rows))
    measured = rows["measured_us"].to_numpy() + 1e3 * DLRM_READING_MS * np.random.default_rng(0).uniform(-1, 1, shape)
    predicted = rows["predicted_us"].to_numpy()
    errors = [[100 * figure(predicted, drawn) for drawn in measured] for figure in (gmae, mape)]
    (low, high), (lowest, highest) = (np.quantile(each, (0.1, 0.9)) for each in errors)
    return (f"The measured steps are read off a figure, to {DLRM_READING_MS:g} ms. With uniform errors up to that size, 80 % of "
            f"the draws give a GMAE\nof {low:.1f} to {high:.1f} % and a mean of {lowest:.1f} to {highest:.1f} %. "
            f"The paper's abstract states a GMAE of {published('step')[0].percent:g} %.")  # fmt: skip


def cnn_summary(rows: pd.DataFrame) -> str:
    """A line per prediction: mean absolute error over all steps of convolutional networks, by GPU and by network."""
    parts = [rows.index, *(rows.index[rows[column] == value] for column in ("gpu", "model")
                           for value in dict.fromkeys(rows[column]))]  # fmt: skip
    sizes = {OURS: rows["error"].abs(), **{name: rows[name] for name in METHODS.values()}}
    lines = [[name, *(f"{100 * size[part].mean():.1f}" for part in parts), f"{100 * size.max():.1f}"]
             for name, size in sizes.items()]  # fmt: skip
    head = [
        f"{len(rows)} steps, mean absolute error %",
        "all",
        *dict.fromkeys(rows["gpu"]),
        *dict.fromkeys(rows["model"]),
    ]
    low = f"Of our {len(rows)} predictions, {(rows['error'] < 0).sum()} are too short, and {rows['inside'].sum()} of the " \
          f"measured steps lie inside p10 to p90."  # fmt: skip
    return f"{markdown([*head, 'worst'], lines)}\n\n{low}"


def table(rows: pd.DataFrame) -> str:
    """A line per step; published errors are the last columns."""
    theirs = {"published_error": "Lin et al. %"} if "published_error" in rows else {}
    theirs |= {name: f"{name} %" for name in METHODS.values() if name in rows}
    lines = []
    for row in rows.to_dict("records"):
        signed = "+" if "published_error" in theirs else ""
        times = [f"{row[name] / 1e3:.2f}" for name in ("measured_us", "predicted_us")]
        inside = f"{row['p10_us'] / 1e3:.2f} to {row['p90_us'] / 1e3:.2f}{'' if row['inside'] else ', outside'}"
        lines.append([row["gpu"], row["model"], str(row["batch_size"]), *times, inside, f"{100 * row['error']:+.1f}",
                      *(f"{100 * row[name]:{signed}.1f}" for name in theirs)])  # fmt: skip
    head = ["GPU", "model", "batch", "measured ms", "predicted ms", "p10 to p90", "error %", *theirs.values()]
    return markdown(head, lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--write", type=Path, help="document whose marked sections take the tables")
    parser.add_argument("--draw", type=Path, help="folder for networks.png")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    try:
        if args.write and not (args.datasets / NOTEBOOK).is_file():
            raise missing(args.datasets / NOTEBOOK)
        dlrm, cnn = predicted_dlrm(args.datasets), predicted_cnn(args.datasets)
        blocks = {"lin2022 dlrm": dlrm_summary(dlrm), "lin2022 cnn": cnn_summary(cnn), "lin2022 dlrm steps": table(dlrm),
                  "lin2022 cnn steps": table(cnn)}  # fmt: skip
        print("\n\n".join(blocks.values()))
        if args.draw:
            save(published_networks(cnn), args.draw, "networks", kinds=("png",))
        if args.write:
            rewrite(args.write, blocks)
    except SteptimeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
