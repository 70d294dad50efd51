"""Errors of whole models over all ordered pairs of the public GPUs.

python benchmarks/transfer/surfer.py --out surfer.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

from evaluation.checks.surfer_pairs import paper_surfer
from evaluation.training.write_packs import record_file
from pipeline.errors import InputError
from pipeline.paths import datasets_dir


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--folds", type=Path, help="folder that `evaluation.training.build_models --folds` wrote"
    )
    parser.add_argument("--quick", action="store_true", help="one network of 400 steps per family")
    options = parser.parse_args()
    data = datasets_dir()
    if data is None:
        raise InputError("no public data: set STEPTIME_DATASETS to the folder that holds neusight/")
    results = paper_surfer(data, 400 if options.quick else None, options.folds)
    results.to_csv(options.out, index=False)
    record_file(options.out, new=False)
    error = 100 * results["error"].abs()
    print(
        error.groupby([results["method"], results["destination"]])
        .mean()
        .unstack()
        .round(1)
        .to_string()
    )


if __name__ == "__main__":
    main()
