"""Compares predicted and published training steps of translators: GNMT on 13 GPUs, the big Transformer on three.

    python benchmarks/steps/translation.py [DATASETS_DIR] [--gpu RTX4090 ...] [--write docs/accuracy.md]
    python benchmarks/steps/translation.py [DATASETS_DIR] --transformer [--write docs/notes/recurrent.md]

`evaluation/published/published_translation.py` lists the files and their sources. GNMT's step is
`evaluation/workloads/gnmt_step.py`; its time is a mean over batches of several lengths. Rows marked `seen` were used
while recurrent layers were modelled.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

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
from evaluation.published.published_translation import (
    FILL_RATIO,
    LENGTH_BUCKETS,
    SENTENCE_TOKENS,
    read_transformer,
    read_translation,
)
from pipeline import predict
from pipeline.paths import datasets_dir
from pipeline.prediction import Prediction

WAITS = {"predict.wait_each_step": True}
"""NVIDIA's examples read the loss in each step."""


def mean_step(gpu: str, batch_size: int, dtype: str) -> Prediction:
    """The mean over the buckets of sentence lengths; errors of the buckets are assumed to be fully correlated."""
    found = [
        predict(
            gpu=gpu,
            model="custom",
            batch_size=batch_size,
            **{
                "model.target": "evaluation.workloads.gnmt_step:make_step",
                "+model.options.tokens": tokens,
                "model.dtype": dtype,
                "model.optimizer": "adam",
                "model.foreach": gpu in PYTORCH_2_GPUS,
                **WAITS,
            },
        )
        for tokens, _ in LENGTH_BUCKETS
    ]
    shares = np.array([share for _, share in LENGTH_BUCKETS])
    shares = shares / shares.sum()
    means = {
        name: float(shares @ [getattr(one, name) for one in found])
        for name in ("predicted_us", "active_us", "host_us", "p10_us", "p90_us")
    }
    families = {
        name: float(shares @ [one.families_us.get(name, 0.0) for one in found])
        for name in found[-1].families_us
    }
    return replace(found[-1], **means, families_us=families)  # type: ignore[arg-type]


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with predictions and errors, and `recurrent`, the share of recurrent layers in the step."""
    found = [
        mean_step(row["gpu"], int(row["batch_size"]), row["dtype"]) for _, row in rows.iterrows()
    ]
    share = [one.families_us.get("rnn", 0.0) / one.predicted_us for one in found]
    return with_errors(rows, found, [one.predicted_us for one in found]).assign(recurrent=share)


BIG_TRANSFORMER = {
    "model.width": 1024, "model.heads": 16, "model.vocabulary": 33712,
    "model.shared_embedding": True, "model.label_smoothing": 0.1, "model.seq_len": SENTENCE_TOKENS,
}  # fmt: skip
"""Options that turn the built-in `transformer` into the page's `transformer_wmt_en_de_big`."""


def transformer(rows: pd.DataFrame) -> list[str]:
    """Table with one line per row: the step predicted without padding and with the maximum number of tokens."""
    lines = [
        (
            "| GPU | precision | max. tokens | measured ms | predicted ms, no padding | predicted"
            " ms, full padding | error % |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows.itertuples():
        pure = {"model.precision": "pure"} if row.dtype == "fp16" else {}
        ends = [
            predict(
                gpu=row.gpu,
                model="transformer",
                batch_size=round(share * row.tokens / SENTENCE_TOKENS),
                **{"model.dtype": row.dtype, **pure, **BIG_TRANSFORMER, **WAITS},
            ).predicted_us
            for share in (FILL_RATIO, 1.0)
        ]
        off = " to ".join(f"{100 * (end / row.measured_us - 1.0):+.0f}" for end in ends)
        times = " | ".join(f"{time / 1e3:.0f}" for time in (row.measured_us, *ends))
        lines.append(f"| {row.gpu} | {row.dtype} | {row.tokens} | {times} | {off} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--gpu", nargs="+", help="only these GPUs")
    parser.add_argument(
        "--write", type=Path, help="document in which the marked sections are replaced"
    )
    parser.add_argument(
        "--transformer", action="store_true", help="the big Transformer instead of GNMT"
    )
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    if args.transformer:
        lines = transformer(read_transformer(args.datasets))
        print("\n".join(lines))
        if args.write:
            rewrite(args.write, {"transformer": "\n".join(lines)})
        return 0
    rows = read_translation(args.datasets)
    if args.gpu and (strange := sorted(set(args.gpu) - set(rows["gpu"]))):
        parser.error(
            f"no step was published of {', '.join(strange)}; choose from"
            f" {', '.join(sorted(set(rows['gpu'])))}"
        )
    rows = rows[rows["gpu"].isin(args.gpu)] if args.gpu else rows
    rows = rows.assign(dtype_of_table=np.where(rows["dtype"] == "fp16", "fp16", "fp32 or TF32"))
    rows = compare(rows.sort_values("dtype_of_table", kind="stable", ascending=False))
    share = (
        f"Recurrent layers are {100 * rows['recurrent'].min():.0f} to"
        f" {100 * rows['recurrent'].max():.0f} % of a step."
    )
    short = [summary(rows), "", mean_errors(rows, "GNMT steps"), share, "", coverage(rows)]
    print("\n".join([*table(rows), "", *short]))
    if args.write:
        rewrite(
            args.write,
            {"translation steps": "\n".join(table(rows)), "translation": "\n".join(short).rstrip()},
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
