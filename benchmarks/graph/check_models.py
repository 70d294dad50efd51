"""Compares predicted and measured latency of language models (NeuSight's model_latency, without the fused rows).

    python benchmarks/graph/check_models.py [DATASETS_DIR] [--gpus V100,P100,T4] [--results DIR]

The rows are held out: no kernel model or constant was fitted to them. Inference is one forward pass. Training is forward
and backward with accumulating gradients, without optimizer. All rows use fp32, TF32 off, eager attention.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from evaluation.checks.language_passes import MODES, WORKLOADS
from pipeline.answers.engine import engine
from pipeline.paths import datasets_dir
from pipeline.question.question import expand


def rows(datasets: Path, gpus: list[str]) -> pd.DataFrame:
    """The measured rows for which Steptime has a workload."""
    table = pd.read_parquet(datasets / "neusight" / "model_latency.parquet")
    return table[table["gpu"].isin(gpus) & table["model"].isin(WORKLOADS) & table["option"].fillna("").eq("")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--gpus", default="V100,P100,T4")
    parser.add_argument("--results", default="results", help="folder with fitted kernel models, used before packs")
    args = parser.parse_args()
    if args.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    errors: dict[str, list[float]] = {}
    print("gpu | model | mode | batch | measured ms | predicted ms | active ms | error % | bound")
    for row in rows(args.datasets, args.gpus.split(",")).itertuples():
        overrides = [
            f"gpu={row.gpu}", f"model={row.model}", f"batch_size={row.batch_size}", f"model.mode={MODES[row.mode]}",
            "model.optimizer=none", f"model.seq_len={row.seq_len}",
        ]  # fmt: skip
        found = engine(args.results).predict_one(expand(overrides)[0]).whole()
        error = found.predicted_us / row.e2e_latency_us - 1
        errors.setdefault(row.gpu, []).append(100 * error)
        times = [value / 1e3 for value in (row.e2e_latency_us, found.predicted_us, found.active_us)]
        middle = " | ".join(f"{value:.1f}" for value in times)
        print(
            f"{row.gpu} | {row.model} | {row.mode} | {row.batch_size} | {middle} | {100 * error:+.1f} | {found.bound}"
        )
    print("\n| GPU | rows | mean error % | mean absolute error % | worst % |\n|---|---|---|---|---|")
    for name, found in [*errors.items(), ("all", [error for each in errors.values() for error in each])]:
        size = [abs(error) for error in found]
        print(
            f"| {name} | {len(found)} | {sum(found) / len(found):+.1f} | {sum(size) / len(size):.1f} | {max(size):.1f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
