"""Time of a million gemm predictions on one core: the shipped network, and boosted trees on the same features.

The network is that of the pack (`packs/V100/kernels/gemm`). The trees are
LightGBM with the settings of the variant `trees`. They are fitted here to arbitrary targets, because only their speed
matters. Run:
`OMP_NUM_THREADS=1 python benchmarks/kernels/prediction_speed.py [--rows 1000000]`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.trees import train_trees
from pipeline.paths import packs_dir


def sizes(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    dims = {name: np.exp(rng.uniform(np.log(8), np.log(8192), rows)).astype(np.int64) for name in ("M", "N", "K")}
    return pd.DataFrame({"family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "B": 1, **dims})


def seconds(function, *arguments) -> float:
    """Processor time of a call in seconds, so other work on the machine does not count."""
    started = time.process_time()
    function(*arguments)
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    gpu = load_gpu("V100")
    folder = packs_dir() / gpu.name / "kernels"
    predictor, model = load_predictor(gpu, [folder]), FittedModel.load(folder / "gemm", gpu)
    calls = sizes(rows)
    whole = seconds(predictor.predict, calls)
    features = model.features(calls)
    network = seconds(model.members[0].predict, features)
    sample = features[:20_000]
    trees = train_trees(sample, np.log(np.abs(sample).sum(axis=1) + 1.0), 0)
    boosted = seconds(trees.predict, features)
    print(f"{rows:,} gemm calls, one core, processor time")
    print(f"predictor, features and intervals included  {whole:8.1f} s  {whole / rows * 1e6:8.2f} us a call")
    print(f"network alone                               {network:8.1f} s")
    print(f"LightGBM on the same features               {boosted:8.1f} s  {boosted / network:8.1f} x the network")


if __name__ == "__main__":
    main()
