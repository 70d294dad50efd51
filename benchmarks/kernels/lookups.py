"""Compares predicted embedding lookups and their gradients with published measurements (V100, A100).

    python benchmarks/kernels/lookups.py [DATASETS_DIR] [--rows] [--write docs/notes/kernels.md]

The prediction uses only the GPU's spec file. The form of the model was chosen on the rows marked *used for tuning*. No
constant was set on any row. `--rows` prints every measurement; `--write` puts the table between the markers of a page.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown, rewrite
from evaluation.pages.step_tables import counted
from evaluation.published.published_lookups import read_lookups
from pipeline.answers.who_answers import kernel_predictor
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import datasets_dir

HEADINGS = (
    "source",
    "GPU",
    "what",
    "width",
    "rows",
    "measured µs",
    "error %, median (lowest to highest)",
    "inside p10–p90",
    "used for tuning",
)

OP_LABELS = {
    "gather": "`nn.Embedding`, compiled",
    "gather_2024": "`nn.Embedding`, PyTorch 2.4",
    "dense": "`nn.Embedding`: gradient, sorted, and its addition",
    "dense_few": "`nn.Embedding`: gradient of few tokens",
    "fused": "fused lookup in many tables",
    "fused_atomic": "fused lookup: update, unsorted",
}
"""Label of each op of `read_lookups` in the table."""


def calls_of(row: pd.Series) -> pd.DataFrame:
    """The device calls of one measurement."""
    if row["op"] in ("fused", "fused_atomic"):
        forward = row["op"] == "fused"
        sizes = {
            "B": row["B"],
            "T": row["T"],
            "E": row["E"],
            "L": row["L"],
            "D": row["D"],
            "dtype": "fp32",
        }
        family = "embedding_forward" if forward else "embedding_backward"
        call = {
            "family": family,
            "op": "fused" if forward else "fused_sgd",
            "phase": family.removeprefix("embedding_"),
        }
        return pd.DataFrame([{**sizes, **call, "attributes": '{"index_bytes": 4}'}])
    rows, width, tokens = int(row["E"]), int(row["D"]), int(row["B"])
    weight, chosen = Tensor((rows, width), "fp32"), Tensor((tokens, width), "fp32")
    indices = Tensor((tokens,), "int64")
    if row["op"].startswith("gather"):
        nodes = [
            Node(
                0,
                "aten::embedding",
                inputs=(weight, indices),
                values=(None, None),
                outputs=(chosen,),
            )
        ]
        return map_calls(Graph(write_nodes(nodes)))
    nodes = [
        Node(
            0,
            "aten::embedding_dense_backward",
            inputs=(chosen, indices, None, None, None),
            values=(None, None, rows, -1, False),
            outputs=(weight,),
            phase="backward",
        )
    ]
    if (
        row["op"] == "dense"
    ):  # the measurement draws a random gradient, and adds the result to the existing one
        nodes.append(
            Node(1, "aten::fill_", inputs=(chosen, None), values=(None, 0.0), outputs=(chosen,))
        )
        nodes.append(
            Node(2, "aten::add_", inputs=(weight, weight), values=(None, None), outputs=(weight,))
        )
    return map_calls(Graph(write_nodes(nodes)))


def compare(measured: pd.DataFrame) -> pd.DataFrame:
    """The measurements with `predicted_us`, `p10_us` and `p90_us`."""
    predictors = {
        name: kernel_predictor(load_gpu(name), "auto", None) for name in set(measured["gpu"])
    }
    found = [predictors[row["gpu"]].predict(calls_of(row)) for _, row in measured.iterrows()]
    sums = pd.DataFrame(
        [part[["kernel_us", "p10_us", "p90_us"]].sum() for part in found], index=measured.index
    )
    return measured.join(sums.rename(columns={"kernel_us": "predicted_us"}))


def table(compared: pd.DataFrame) -> str:
    """Markdown table: errors of the measurements by source, op and width."""
    lines: list[tuple[str, ...]] = []
    for (source, gpu, op, width), rows in compared.groupby(
        ["source", "gpu", "op", "D"], sort=False
    ):
        error = 100 * (rows["predicted_us"] / rows["measured_us"] - 1)
        inside = (rows["p10_us"] <= rows["measured_us"]) & (rows["measured_us"] <= rows["p90_us"])
        spread = f"{rows['measured_us'].min():,.0f} to {rows['measured_us'].max():,.0f}"
        errors = f"{np.median(error):+.0f} ({error.min():+.0f} to {error.max():+.0f})"
        seen = "yes" if rows["seen"].all() else ""
        lines.append(
            (
                source,
                gpu,
                OP_LABELS[op],
                str(width),
                str(len(rows)),
                spread,
                errors,
                counted(inside),
                seen,
            )
        )
    return markdown(HEADINGS, lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--rows", action="store_true", help="print every measurement")
    parser.add_argument("--write", type=Path, help="page in which the marked table is replaced")
    chosen = parser.parse_args()
    if chosen.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    compared = compare(read_lookups(chosen.datasets))
    made = table(compared)
    print(made)
    if chosen.rows:
        print(compared.round(1).to_string())
    if chosen.write:
        rewrite(chosen.write, {"lookups": made})
    return 0


if __name__ == "__main__":
    sys.exit(main())
