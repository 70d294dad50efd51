"""Errors with probes for every disjoint set of candidate calls: how much do they depend on the set?

python benchmarks/transfer/probe_sets.py --folds FOLDS [--family gemm] [--count 10]

`choose_probes` considers every n-th candidate. The tables of docs/transfer.md start at the first candidate. This script starts at
each of the first n candidates in turn.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from evaluation.training.left_out_gpu import PROBES, folds, left_out_rows, probe_candidates, probed_errors
from pipeline.datasets.neusight import read_samples
from pipeline.errors import InputError
from pipeline.paths import datasets_dir
from pipeline.transfer.probes import MAX_CANDIDATES, choose_probes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folds", type=Path, required=True, help="folder that `evaluation.training.build_models --folds` wrote"
    )
    parser.add_argument("--family", default="gemm")
    parser.add_argument("--count", type=int, default=PROBES)
    options = parser.parse_args()
    data = datasets_dir()
    if data is None:
        raise InputError("no public data: set STEPTIME_DATASETS to the folder that holds neusight/")
    samples = read_samples(data)
    rows = []
    for fold in folds(samples, options.family, mlp_steps=0, cache=options.folds):
        own, keys, target = left_out_rows(samples, fold)
        usable = probe_candidates(own, keys, fold)
        for first in range(max(1, -(-len(usable) // MAX_CANDIDATES))):
            probes = choose_probes(fold.utilisation, usable.iloc[first:], fold.destination, options.count)
            rows.append({"gpu": fold.destination.name, "set": first, **probed_errors(target, keys, fold, probes)})
    table = pd.DataFrame(rows)
    table["coverage"] *= 100
    found = {"": table.groupby("set").mean(numeric_only=True)}
    found |= {str(gpu): part.set_index("set").drop(columns="gpu") for gpu, part in table.groupby("gpu")}
    for gpu, part in found.items():
        print(gpu or f"mean over GPUs, {len(part)} sets")
        print(part.agg(["mean", "std", "min", "max"]).round(1).to_string())
    print(found[""]["mape"].round(1).to_dict())


if __name__ == "__main__":
    main()
