"""Build of the shipped cross-GPU models: train on every GPU with samples, with intervals from leaving each out.

python -m pipeline.transfer.build --out packs/transfer [--family gemm] [--published-mlp]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.errors import InputError
from pipeline.paths import datasets_dir, packs_dir
from pipeline.transfer.evaluate import direct_errors, folds, log_residuals, pair_errors
from pipeline.transfer.features import COVERED
from pipeline.transfer.mlp import DIMS, PUBLISHED, SHIPPED, train_mlp
from pipeline.transfer.train import train_utilisation

NEWEST = {"A100-PCIE-40GB", "A100-PCIE-80GB", "T4"}
"""GPUs whose hosts stand for an unknown modern one: the newest of the set, with nearly equal floors."""


def build_family(samples: pd.DataFrame, family: str, out: Path, evaluate: bool = True) -> pd.DataFrame:
    """Train and save one family's models; errors over all ordered pairs (empty where `evaluate` is off)."""
    source = {"source": ", ".join(sorted(samples["source"].astype(str).unique()))}
    model = train_utilisation(samples, family, provenance=source)
    hosts = {gpu: floors for gpu, floors in model.gpu_floors_us.items() if gpu in NEWEST} or model.gpu_floors_us
    model = replace(model, floors_us={str(op): float(v) for op, v in pd.DataFrame(hosts).median(axis=1).items()})
    errors = []
    if evaluate:
        residuals, direct = [], {}
        for fold in folds(samples, family):
            errors.append(pair_errors(samples, fold))
            residuals.append(log_residuals(samples, fold))
            direct[fold.destination.name] = direct_errors(samples, fold)
        # every GPU counts equally in the interval
        low, high = (float(np.mean([np.quantile(r, q) for r in residuals])) for q in (0.1, 0.9))
        model = replace(
            model, log_p10=min(low, -0.02), log_p90=max(high, 0.02), provenance={**model.provenance, "left_out": direct}
        )
    model.save(out / f"{family}.safetensors")
    if family in DIMS:
        train_mlp(samples, family, SHIPPED).save(out / f"mlp_{family}.safetensors")
    return pd.concat(errors, ignore_index=True) if errors else pd.DataFrame()


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: train, save, and print the errors."""
    from pipeline.datasets.neusight import read_samples

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=packs_dir() / "transfer")
    parser.add_argument("--family", action="append", choices=COVERED)
    parser.add_argument("--errors", type=Path, help="write the pair errors here as CSV")
    parser.add_argument("--published-mlp", action="store_true", help="train the 8 x 1024 networks instead")
    options = parser.parse_args(arguments)
    data = datasets_dir()
    if data is None:
        raise InputError("no public data: set STEPTIME_DATASETS to the folder that holds neusight/")
    samples = read_samples(data)
    found = []
    for family in options.family or COVERED:
        if options.published_mlp:
            if family in DIMS:
                train_mlp(samples, family, PUBLISHED, steps=20000, rate=3e-4).save(
                    options.out / f"mlp_{family}.safetensors"
                )
            continue
        errors = build_family(samples, family, options.out)
        print(errors.groupby("method")["mape"].mean().round(1).to_dict(), flush=True)
        found.append(errors)
    if options.errors and found:
        pd.concat(found, ignore_index=True).to_csv(options.errors, index=False)


if __name__ == "__main__":
    main()
