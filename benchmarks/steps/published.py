"""Compares predicted steps with whole steps that others measured and published, on GPUs with and without samples.

    python benchmarks/steps/published.py [DATASETS_DIR] [--model resnet50 ...] [--write docs/accuracy.md]
        [--draw docs/images]

`evaluation/published/published_steps.py` lists the files and their sources. BERT's step is the published loop with its
optimizers (`evaluation/workloads/squad_step.py`). Some differences remain, which the tables do not specify: software of 2020 to
2024, fused layer norm and GELU in BERT, and the hosts. Rows marked `seen` were used to set constants.
"""

from __future__ import annotations

import argparse
import sys
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.pages.markdown import rewrite
from evaluation.pages.published_step_tables import (
    PYTORCH_2_GPUS,
    coverage,
    mean_errors,
    summary,
    table,
    with_errors,
)
from evaluation.published.published_steps import read_resnet50, read_training
from pipeline import predict
from pipeline.palette import series_colours
from pipeline.paths import datasets_dir
from pipeline.prediction import Prediction
from pipeline.show.figures.board import (
    MARKERS,
    Board,
    Page,
    marks,
    rows_height,
    save,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_INFERENCE_BATCH = 16
"""Minimum batch size in inference. Smaller batches wait for the host, which the page does not describe."""


def predicted(row: pd.Series) -> Prediction:
    """Steptime's prediction of a row. NVIDIA's loops wait for the device in each step."""
    options: dict[str, object] = {
        "model.mode": row["mode"],
        "model.dtype": row["dtype"],
        "predict.wait_each_step": True,
    }
    name = "custom"
    if row["model"] == "resnet50":
        name = "resnet50"
    else:
        options |= {
            "model.target": "evaluation.workloads.squad_step:make_step",
            "+model.options.size": row["model"],
            "+model.options.zero": row["dtype"] != "fp16" and row["gpu"] not in PYTORCH_2_GPUS,
            "model.optimizer": "none",
        }
    if row["memory_format"] != "contiguous":
        options["model.memory_format"] = row["memory_format"]
    return predict(gpu=row["gpu"], model=name, batch_size=int(row["batch_size"]), **options)


def without_copies(found: Prediction) -> float:
    """Predicted step time in microseconds with inputs already on the device, as in the published runs."""
    return found.predicted_us - (
        found.families_us.get("memcpy_h2d", 0.0) if found.bound == "device" else 0.0
    )


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with predictions and errors, without the time of input copies."""
    found = [predicted(row) for _, row in rows.iterrows()]
    return with_errors(rows, found, [without_copies(one) for one in found])


def right_order(rows: pd.DataFrame) -> tuple[int, int]:
    """Number of GPU pairs predicted in the right order, and number of all pairs, by samples per second of a workload."""
    right = pairs = 0
    for _, group in rows.groupby(["model", "mode", "dtype_of_table"]):
        speeds = [
            (gpu, size / a, size / b)
            for gpu, size, a, b in group[
                ["gpu", "batch_size", "measured_us", "predicted_us"]
            ].itertuples(index=False)
        ]
        for one, other in combinations(speeds, 2):
            pairs += one[0] != other[0]
            right += one[0] != other[0] and (one[1] - other[1]) * (one[2] - other[2]) > 0
    return right, pairs


def picture(rows: pd.DataFrame) -> Figure:
    """Errors of training steps by GPU, a panel per precision."""
    training = rows[(rows["mode"] == "train") & (rows["source"] == "lambda")]
    order = sorted(training["gpu"].unique())
    reach = 105 * training["error"].abs().max()
    page = Page(9.0, 2, 2.0)
    board = Board([rows_height(order, page)] * 2, page)
    models = sorted(training["model"].unique())
    colours, markers = series_colours(models), dict(zip(models, MARKERS, strict=False))
    for axes, (precision, group) in zip(
        board.panels, training.groupby("dtype_of_table"), strict=True
    ):
        for model, own in group.groupby("model"):
            where = [order.index(gpu) for gpu in own["gpu"]]
            axes.plot(100 * own["error"], where, markers[model], color=colours[model])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.axvspan(-20, 20, color="0.93", zorder=0)
        axes.set_xlim(-reach, reach)
        board.label_rows(axes, order)
        board.number_ticks(axes)
        board.names(axes, "predicted / measured − 1 (%)")
        board.title(axes, str(precision))
    within = 100 * float((training["error"].abs() <= 0.2).mean())
    mean = 100 * float(training["error"].abs().mean())
    board.headline(
        f"{len(training)} published training steps on {len(order)} GPUs: mean error {mean:.1f} %, "
        f"{within:.0f} % of them within 20 %"
    )
    board.legend(marks(colours.values()), models)
    board.note("Measured: Lambda Labs' benchmark. Grey: within 20 %.")
    return board.figure


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--model", nargs="+", help="only these workloads")
    parser.add_argument("--gpu", nargs="+", help="only these GPUs")
    parser.add_argument(
        "--write", type=Path, help="document in which the marked sections are replaced"
    )
    parser.add_argument("--draw", type=Path, help="folder for published.svg")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    rows = pd.concat(
        [read_training(args.datasets), read_resnet50(args.datasets)], ignore_index=True
    )
    rows = rows[(rows["mode"] == "train") | (rows["batch_size"] >= MIN_INFERENCE_BATCH)]
    for name, chosen in (("model", args.model), ("gpu", args.gpu)):
        if strange := sorted(set(chosen or ()) - set(rows[name])):
            parser.error(
                f"no step was published of {', '.join(strange)}; choose from"
                f" {', '.join(sorted(set(rows[name])))}"
            )
        rows = rows[rows[name].isin(chosen)] if chosen else rows
    half = np.where(rows["memory_format"] == "channels_last", "fp16, NHWC", "fp16")
    rows = compare(
        rows.assign(dtype_of_table=np.where(rows["dtype"] == "fp16", half, "fp32 or TF32"))
    )
    right, pairs = right_order(rows[rows["mode"] == "train"])
    order = f"Of {pairs} pairs of GPUs in training, {right} are predicted in the right order."
    memory = (
        f"All these batches ran; {rows['fits'].sum()} of {len(rows)} are predicted to fit in"
        " memory."
    )
    mean = mean_errors(rows[rows["mode"] == "train"], "training steps")
    short = [summary(rows), "", f"{mean} {order} {memory}", "", coverage(rows)]
    print("\n".join([*table(rows), "", *short]))
    if args.draw:
        save(picture(rows), args.draw, "published", kinds=("svg",))
    if args.write:
        rewrite(
            args.write, {"published steps": "\n".join(table(rows)), "published": "\n".join(short)}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
