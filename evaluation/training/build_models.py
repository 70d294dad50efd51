"""Build of the shipped cross-GPU models: train on every GPU with samples; intervals come from leaving out each GPU.

python -m evaluation.training.build_models --out packs/transfer --errors errors.csv --folds FOLDER [--family gemm]

After an interruption the same command continues where it stopped: FOLDER keeps the models without each GPU, and errors
are written after each family. `--family` (repeatable) rebuilds some families and does not change the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from evaluation.training.left_out_gpu import (
    Fold,
    direct_errors,
    folds,
    left_out_errors,
    pair_errors,
    probe_errors,
)
from evaluation.training.prior_fit import learn_prior
from evaluation.training.published_networks import DIMS, PUBLISHED, train_published
from evaluation.training.utilisation_train import train_utilisation
from evaluation.training.write_packs import record_file
from pipeline.datasets.neusight import read_samples
from pipeline.errors import InputError
from pipeline.paths import datasets_dir, transfer_dir
from pipeline.schemas import atomic_path
from pipeline.transfer.gpu_features import COVERED_FAMILIES
from pipeline.transfer.utilisation import UtilisationModel

Array = npt.NDArray[np.float64]

QUANTILE_COUNT = 100
"""Number of quantiles that represent a distribution."""


def build_family(
    samples: pd.DataFrame, family: str, out: Path, cache: Path | None = None
) -> pd.DataFrame:
    """Train and save one family's models, and return the errors over all ordered pairs of GPUs.

    The folder `cache` keeps the models without each GPU.
    """
    source = {"source": ", ".join(sorted(samples["source"].astype(str).unique()))}
    model = train_utilisation(samples, family, provenance=source)
    model, errors = add_interval_and_prior(samples, model, folds(samples, family, cache=cache))
    model.save(out / f"{family}.safetensors")
    return errors


def add_interval_and_prior(
    samples: pd.DataFrame, model: UtilisationModel, left_out: Iterable[Fold]
) -> tuple[UtilisationModel, pd.DataFrame]:
    """Add the interval and the prior of probes to a trained model; also return errors of the models without each GPU.

    The interval is that of a new GPU, estimated from the residuals of left-out GPUs. `coverage` in the provenance is
    the share of each GPU's residuals inside the interval of the other GPUs. The prior of probes is fitted to the errors
    of the same models.
    """
    errors, direct, errors_left_out = [], {}, {}
    for fold in left_out:
        gpu = fold.destination.name
        errors.append(pair_errors(samples, fold))
        direct[gpu] = {**direct_errors(samples, fold), "probes": probe_errors(samples, fold)}
        errors_left_out[gpu] = left_out_errors(samples, fold.utilisation, gpu)
    residuals = {gpu: error for gpu, (_, error) in errors_left_out.items()}
    for gpu, own in residuals.items():
        others = {name: values for name, values in residuals.items() if name != gpu}
        low, high = interval_of_a_new_gpu(others)
        direct[gpu]["coverage"] = float(np.mean((own >= low) & (own <= high)))
    low, high = interval_of_a_new_gpu(residuals)
    provenance = {**model.provenance, "left_out": direct}
    prior = asdict(learn_prior(errors_left_out))
    done = replace(model, log_p10=low, log_p90=high, provenance=provenance, probe_prior=prior)
    return done, pd.concat(errors, ignore_index=True)


def interval_of_a_new_gpu(residuals: Mapping[str, Array]) -> tuple[float, float]:
    """p10 and p90 of the log residuals of a new GPU, at least 0.02 (about 2 %) away from 0.

    The residuals of a GPU are the sum of a level of the GPU and the variation between shapes. Levels have mean 0, and n
    GPUs estimate their spread, so the level of a new GPU follows Student's t with n degrees of freedom. The variation
    between shapes is pooled, with equal weight for every GPU. Plain pooled quantiles would limit a new GPU to the
    levels of the other GPUs. They cover 69 to 79 % of a left-out GPU's residuals instead of the nominal 80 %.
    """
    middle = (np.arange(QUANTILE_COUNT) + 0.5) / QUANTILE_COUNT
    levels = np.array([np.median(values) for values in residuals.values()])
    within = np.concatenate(
        [np.quantile(values, middle) - np.median(values) for values in residuals.values()]
    )
    between = stats.t(len(levels)).ppf(middle) * np.sqrt(np.mean(levels**2))
    both = (between[:, None] + within[None, :]).ravel()
    return min(
        float(np.quantile(both, 0.1)),
        -0.02,
    ), max(float(np.quantile(both, 0.9)), 0.02)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: train, save, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=transfer_dir())
    parser.add_argument("--family", action="append", choices=COVERED_FAMILIES)
    parser.add_argument(
        "--errors",
        type=Path,
        help="file for the errors of all pairs (CSV); rows of other families are kept",
    )
    parser.add_argument(
        "--folds",
        type=Path,
        help="folder for the models with each GPU left out, which the benchmarks use",
    )
    parser.add_argument(
        "--published-mlp", action="store_true", help="train the 8 x 1024 networks instead"
    )
    options = parser.parse_args(arguments)
    data = datasets_dir()
    if data is None:
        raise InputError("no public data: set STEPTIME_DATASETS to the folder that holds neusight/")
    samples = read_samples(data)
    for family in options.family or COVERED_FAMILIES:
        if options.published_mlp:
            if family in DIMS:
                network = train_published(samples, family, PUBLISHED)
                network.save(options.out / f"published_{family}.safetensors")
            continue
        errors = build_family(samples, family, options.out, options.folds)
        record_file(options.out / f"{family}.safetensors")
        print(
            errors.groupby("method")["mape"].mean().round(1).to_dict(),
            flush=True,
        )
        if options.errors:
            merge_errors(options.errors, errors)
            record_file(options.errors, new=False)


def merge_errors(path: Path, errors: pd.DataFrame) -> None:
    """Replace one family's errors in the table at a path; rows are in the order of `COVERED_FAMILIES`."""
    parts = [errors]
    if path.is_file():
        before = pd.read_csv(path)
        parts.append(before[~before["family"].isin(errors["family"])])
    order = {name: i for i, name in enumerate(COVERED_FAMILIES)}
    table = pd.concat(parts, ignore_index=True).sort_values(
        "family", key=lambda f: f.map(order), kind="stable"
    )
    with atomic_path(path) as part:
        table.to_csv(part, index=False)


if __name__ == "__main__":
    main()
