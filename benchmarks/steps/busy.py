"""Compares the predicted busy share of the GPU in DLRM steps with that of Lin et al. on V100, TITAN Xp and P100.

    python benchmarks/steps/busy.py [--write docs/accuracy.md]

`evaluation/published/facts/` has the published errors and their source. The published loop is that of facebookresearch/dlrm of
2021 (PyTorch 1.8):

- The host waits for copies and reads the loss before the backward pass.
- Gradients are filled with zeros.
- The optimizer updates one parameter at a time.

Steps are predicted in that loop and in the default loop. The published predictions use overheads that were profiled on
the same hosts and workloads; ours use neither.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from evaluation.checks.lin2022_steps import DLRM_LOOP
from evaluation.pages.markdown import markdown, rewrite
from evaluation.published.published_lin2022 import read_dlrm
from pipeline import predict

LOOPS: dict[str, dict[str, object]] = {
    "their loop": DLRM_LOOP,
    "their loop's waits alone": {
        name: DLRM_LOOP[name] for name in ("model.copies", "model.read_loss")
    },
    "the default loop": {},
}
"""Options of the predicted steps, by their name in the tables."""


def predicted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows, with a column of predicted busy shares for each of `LOOPS`."""
    for name, options in LOOPS.items():
        found = [
            predict(gpu=row.gpu, model=row.model, batch_size=row.batch_size, **options)
            for row in rows.itertuples()
        ]
        rows = rows.assign(**{name: [one.active_us / one.predicted_us for one in found]})
    return rows


def summary(rows: pd.DataFrame) -> str:
    """Table by prediction: mean, mean absolute and worst difference in percentage points."""
    lines = []
    shown = {
        "Lin et al., overheads profiled on those hosts": "published_busy",
        **{f"Steptime, {n}": n for n in LOOPS},
    }
    for name, column in shown.items():
        off = 100 * (rows[column] - rows["busy"])
        lines.append(
            [name, f"{off.mean():+.1f}", f"{off.abs().mean():.1f}", f"{off.abs().max():.0f}"]
        )
    return markdown(["busy share predicted by", "mean difference", "mean absolute", "worst"], lines)


def table(rows: pd.DataFrame) -> str:
    """Table by GPU and model: measured and predicted shares in %, by batch size."""
    batches, column, lines = sorted(rows["batch_size"].unique()), next(iter(LOOPS)), []
    for (gpu, model), group in rows.groupby(["gpu", "model"], sort=False):
        own = group.set_index("batch_size")
        cells = [f"{100 * own.at[b, 'busy']:.0f} → {100 * own.at[b, column]:.0f}" for b in batches]
        lines.append([str(gpu), str(model), *cells])
    return markdown(["GPU", "model", *(f"batch {b}" for b in batches)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--write", type=Path, help="document in which the marked section is replaced"
    )
    args = parser.parse_args()
    rows = predicted(read_dlrm())
    text = f"{summary(rows)}\n\n{table(rows)}"
    print(text)
    if args.write:
        rewrite(args.write, {"busy": text})


if __name__ == "__main__":
    main()
