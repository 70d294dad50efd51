"""Predicted training steps of GNMT against the logs of Lambda's benchmark: a mean over batches of several lengths.

    python benchmarks/steps/translation.py [DATASETS_DIR] [--gpu V100 ...] [--write docs/accuracy.md]

The logs and where they come from: `pipeline/datasets/published_translation.py`; the step: `benchmarks/steps/gnmt.py`. Rows
marked `seen` were in view while recurrent layers were modelled.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from published import coverage, summary, table

from pipeline import predict
from pipeline.datasets.published_translation import LENGTHS, read_translation
from pipeline.paths import datasets_dir
from pipeline.prediction import Prediction
from pipeline.report.markdown import rewrite


def mean_step(gpu: str, batch_size: int, dtype: str) -> Prediction:
    """The mean over buckets of sentences, as a prediction of its own; errors of all buckets are taken as one."""
    found = [
        predict(gpu=gpu, model="custom", batch_size=batch_size, **{
            "model.target": "gnmt:make_step", "+model.options.tokens": tokens, "model.dtype": dtype,
            "model.optimizer": "adam", "model.foreach": False,  # PyTorch 1.13's default
        })
        for tokens, _ in LENGTHS
    ]  # fmt: skip
    shares = np.array([share for _, share in LENGTHS])
    shares = shares / shares.sum()
    means = {name: float(shares @ [getattr(one, name) for one in found]) for name in
             ("predicted_us", "active_us", "host_us", "p10_us", "p90_us")}  # fmt: skip
    families = {name: float(shares @ [one.families.get(name, 0.0) for one in found]) for name in found[-1].families}
    return replace(found[-1], **means, families=families)  # type: ignore[arg-type]


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with `predicted_us`, `p10_us`, `p90_us`, `error`, `inside`, `evidence`, `fits`, and the share of `rnn`."""
    found = [mean_step(row["gpu"], int(row["batch_size"]), row["dtype"]) for _, row in rows.iterrows()]
    measured = rows["measured_us"].to_numpy()
    ends = {name: np.array([getattr(one, name) for one in found]) for name in ("predicted_us", "p10_us", "p90_us")}
    return rows.assign(
        **ends,
        error=ends["predicted_us"] / measured - 1.0,
        inside=(ends["p10_us"] <= measured) & (measured <= ends["p90_us"]),
        evidence=[max(one.evidence, key=lambda kind, shares=one.evidence: shares[kind]) for one in found],  # type: ignore[misc]
        fits=[one.fits for one in found],
        recurrent=[one.families.get("rnn", 0.0) / one.predicted_us for one in found],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--gpu", nargs="+", help="only these GPUs")
    parser.add_argument("--write", type=Path, help="document whose marked sections take the tables")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    rows = read_translation(args.datasets)
    rows = rows[rows["gpu"].isin(args.gpu)] if args.gpu else rows
    rows = rows.assign(dtype_of_table=np.where(rows["dtype"] == "fp16", "fp16", "fp32 or TF32"))
    rows = compare(rows.sort_values("dtype_of_table", kind="stable", ascending=False))
    share = f"Recurrent layers are {100 * rows['recurrent'].min():.0f} to {100 * rows['recurrent'].max():.0f} % of a step."
    short = [*summary(rows), "", share, "", coverage(rows) if (~rows["seen"]).any() else ""]
    print("\n".join([*table(rows), "", *short]))
    if args.write:
        rewrite(args.write, {"translation steps": "\n".join(table(rows)), "translation": "\n".join(short).rstrip()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
