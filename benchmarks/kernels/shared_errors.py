"""Correlation of kernel errors within a step, which sets the intervals of steps (`pipeline/answers/step_errors.py`).

    python benchmarks/kernels/shared_errors.py [DATASETS_DIR] [--folds FOLDS]

The script prints three tables:

1. Operators of public language models, summed over each pass and compared with the packs of the same GPU. They were
   measured one by one, in another run than the packs' samples (NeuSight's `model_op_latency`). `over_width` is the log
   error divided by the standard deviation that single kernels claim.
2. With `--folds` (the folder that `python -m evaluation.training.build_models --folds` writes), each GPU is left out of the
   cross-GPU models. The table gives the log error of a family's summed samples. It is divided by the standard deviation
   of the family's interval, as the other GPUs give it. Its mean square is the part of the variance that calls share.
3. A check: the number of public whole passes inside p10 to p90. They set no constant.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.checks.language_passes import predict_passes
from evaluation.checks.surfer_pairs import CASE_COLUMNS, MODELLED_FAMILIES, model_calls
from evaluation.training.build_models import interval_of_a_new_gpu
from evaluation.training.left_out_gpu import folds, left_out_rows, log_residuals
from pipeline.answers.step_errors import NORMAL_P90
from pipeline.answers.who_answers import kernel_predictor
from pipeline.datasets.neusight import read_samples
from pipeline.hardware.find_gpu import load_gpu
from pipeline.paths import datasets_dir
from pipeline.transfer.gpu_features import COVERED_FAMILIES


def pack_errors(datasets: Path) -> pd.DataFrame:
    """One row per pass: `gpu`, `log_error` of the sum of its operators against the pack, and `over_width`."""
    folder = datasets / "neusight"
    calls = model_calls(pd.read_parquet(folder / "model_op_latency.parquet"))
    passes = pd.read_parquet(folder / "model_latency.parquet")
    layers = (
        passes.assign(gpu=passes["gpu"].astype(str)).drop_duplicates(CASE_COLUMNS).set_index(CASE_COLUMNS)["num_layer"]
    )
    rows = []
    for (gpu, *case), part in calls[calls["family"].isin(MODELLED_FAMILIES)].groupby(
        ["gpu", *CASE_COLUMNS], observed=True
    ):
        predictor = kernel_predictor(load_gpu(str(gpu)), "auto", None)
        found = predictor.predict(part)
        times = np.where(part["in_layer"], float(layers.loc[tuple(case)]), 1.0)
        predicted = times * found["predicted_us"].to_numpy(float)
        width = np.log(found["latency_p90_us"] / found["latency_p10_us"]).to_numpy(float) / (2 * NORMAL_P90)
        error = np.log(times @ part["latency_us"].to_numpy(float) / predicted.sum())
        rows.append({"gpu": gpu, "log_error": error, "over_width": error * predicted.sum() / (predicted @ width)})
    return pd.DataFrame(rows)


def family_levels(datasets: Path, cache: Path) -> pd.DataFrame:
    """One row per family and one column per left-out GPU: log error of summed samples over the width of single calls."""
    samples = read_samples(datasets)
    table = {}
    for family in COVERED_FAMILIES:
        residuals, level = {}, {}
        for fold in folds(samples, family, mlp_steps=0, cache=cache, probes=False):
            rows = left_out_rows(samples, fold)[2]
            _, latency = fold.utilisation.kernel_and_latency(rows, fold.destination)
            residuals[fold.destination.name] = log_residuals(samples, fold)
            level[fold.destination.name] = float(np.log(rows["latency_us"].sum() / latency.sum()))
        for gpu in level:
            low, high = interval_of_a_new_gpu({name: own for name, own in residuals.items() if name != gpu})
            level[gpu] /= (high - low) / (2 * NORMAL_P90)
        table[family] = level
    return pd.DataFrame(table).T


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--folds", type=Path, help="folder of models trained without each GPU")
    options = parser.parse_args()
    if options.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    middle = pack_errors(options.datasets).groupby("gpu").median()
    print(middle.round(3).to_string())
    print("root mean square:", middle.pow(2).mean().pow(0.5).round(2).to_dict())
    if options.folds:
        levels = family_levels(options.datasets, options.folds)
        print(levels.round(2).assign(share=levels.pow(2).mean(axis=1).round(2)).to_string())
        print(f"mean share: {levels.pow(2).mean(axis=1).mean():.2f}")
    passes = predict_passes(options.datasets)
    inside = (passes["p10_us"] <= passes["measured_us"]) & (passes["measured_us"] <= passes["p90_us"])
    checked = passes.assign(inside=100.0 * inside, width=passes["p90_us"] / passes["p10_us"]).groupby("gpu")
    print(
        checked.agg(passes=("inside", "size"), inside=("inside", "mean"), width=("width", "median"))
        .round(2)
        .to_string()
    )
    print(f"passes inside p10 to p90: {inside.sum()} of {len(passes)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
