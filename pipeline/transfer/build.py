"""Build of the shipped cross-GPU models: train on every GPU with samples, with intervals from leaving each out.

python -m pipeline.transfer.build --out packs/transfer [--family gemm] [--published-mlp]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import InputError
from pipeline.paths import datasets_dir, packs_dir
from pipeline.transfer.evaluate import Fold, direct_errors, folds, log_residuals, pair_errors
from pipeline.transfer.features import COVERED
from pipeline.transfer.mlp import DIMS, PUBLISHED, SHIPPED, train_mlp
from pipeline.transfer.train import train_utilisation
from pipeline.transfer.utilisation import UtilisationModel

Array = npt.NDArray[np.float64]

NEWEST = {"A100-PCIE-40GB", "A100-PCIE-80GB", "T4"}
"""GPUs whose hosts stand for an unknown modern one: the newest of the set, with nearly equal floors."""


def build_family(samples: pd.DataFrame, family: str, out: Path, cache: Path | None = None) -> pd.DataFrame:
    """Train and save one family's models; errors over all ordered pairs. `cache` keeps the left-out models."""
    source = {"source": ", ".join(sorted(samples["source"].astype(str).unique()))}
    model = train_utilisation(samples, family, provenance=source)
    if family in DIMS:
        train_mlp(samples, family, SHIPPED).save(out / f"mlp_{family}.safetensors")
    model, errors = finish(samples, model, folds(samples, family, cache=cache))
    model.save(out / f"{family}.safetensors")
    return errors


def finish(
    samples: pd.DataFrame, model: UtilisationModel, left_out: Iterable[Fold]
) -> tuple[UtilisationModel, pd.DataFrame]:
    """A trained model with floors for an unknown host, its interval, and errors of the models without each GPU.

    The interval holds the middle 80 % of the residuals of left-out GPUs, pooled with every GPU counting equally: it
    spans the differences between GPUs as well as those between shapes. `coverage` in the provenance is how much of each
    GPU falls into the interval that the other GPUs give.
    """
    hosts = {gpu: floors for gpu, floors in model.gpu_floors_us.items() if gpu in NEWEST} or model.gpu_floors_us
    errors, residuals, direct = [], {}, {}
    for fold in left_out:
        gpu = fold.destination.name
        errors.append(pair_errors(samples, fold))
        residuals[gpu] = log_residuals(samples, fold)
        direct[gpu] = direct_errors(samples, fold)
    low, high = pooled_interval(residuals)
    for gpu, own in residuals.items():
        others = pooled_interval({name: values for name, values in residuals.items() if name != gpu})
        direct[gpu]["coverage"] = float(np.mean((own >= others[0]) & (own <= others[1])))
    done = replace(
        model,
        floors_us={str(op): float(v) for op, v in pd.DataFrame(hosts).median(axis=1).items()},
        log_p10=low,
        log_p90=high,
        provenance={**model.provenance, "left_out": direct},
    )
    return done, pd.concat(errors, ignore_index=True)


def pooled_interval(residuals: Mapping[str, Array]) -> tuple[float, float]:
    """p10 and p90 of log residuals by GPU, every GPU counting equally; at least 2 % up and down."""
    levels = np.linspace(0.0, 1.0, 401)
    pooled = np.concatenate([np.quantile(values, levels) for values in residuals.values()])
    return min(float(np.quantile(pooled, 0.1)), -0.02), max(float(np.quantile(pooled, 0.9)), 0.02)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: train, save, and print the errors."""
    from pipeline.datasets.neusight import read_samples

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=packs_dir() / "transfer")
    parser.add_argument("--family", action="append", choices=COVERED)
    parser.add_argument("--errors", type=Path, help="write the pair errors here as CSV")
    parser.add_argument("--folds", type=Path, help="folder that keeps the models without each GPU, for the benchmarks")
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
        errors = build_family(samples, family, options.out, options.folds)
        print(errors.groupby("method")["mape"].mean().round(1).to_dict(), flush=True)
        found.append(errors)
    if options.errors and found:
        pd.concat(found, ignore_index=True).to_csv(options.errors, index=False)


if __name__ == "__main__":
    main()
