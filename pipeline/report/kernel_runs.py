"""Fit the kernel models of a GPU, and log each fit as an MLflow run: metrics, pictures, files, the champion."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.errors import SteptimeError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fit_gpu import FittedFamily, fit_gpu
from pipeline.report.figures.figure_data import ERROR_QUANTILES, METRICS, TEST_PREDICTIONS, error_quantiles
from pipeline.report.figures.kernel_errors import error_histogram, predicted_against_measured
from pipeline.report.mlflow_tracking import (
    KERNEL_MODELS,
    choose_champion,
    describe_kernel_models,
    log_run,
    register_model,
)
from pipeline.schemas import atomic_path, write_parquet

NO_SAMPLES = "no_samples.txt"
"""Marks the model folder of a family that the samples do not hold."""


def fit_and_track(
    samples: pd.DataFrame,
    gpu: str,
    settings: Mapping[str, Any],
    models: Sequence[Path],
    tracking: Path,
    workers: int = 1,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Fit every family that has samples, into its model folder, and track the fits.

    A variant that few samples or their errors turned into another one of the same fit is that one, tracked once.

    Args:
        samples: `samples` table of one GPU.
        gpu: its canonical name.
        settings: the `kernels` section of the configuration: name, variants, seed.
        models: one folder per family, named `<family>/<name>`; a family without samples gets a note instead.
        tracking: MLflow folder.
        workers: processes.
        provenance: what made the models, kept beside their test predictions.
    """
    fits: dict[tuple[str, str], FittedFamily] = {}

    def keep(fitted: FittedFamily) -> None:
        family, label, gmae = fitted.model.family, str(fitted.parameters["variant"]), fitted.metrics["gmae"]
        if (family, label) not in fits:
            judged = "a single sample, judged by nothing" if math.isnan(gmae) else f"GMAE {gmae:.2%} on unseen shapes"
            print(f"  {gpu} {family}: {label}, {judged}", flush=True)
        fits.setdefault((family, label), fitted)

    with tempfile.TemporaryDirectory(prefix="steptime_fit_") as scratch:
        best = fit_gpu(
            samples,
            load_gpu(gpu),
            scratch,
            variants=tuple(settings["variants"]),
            seed=int(settings["seed"]),
            workers=workers,
            on_fit=keep,
        )
        for folder in models:
            made = Path(scratch) / folder.parent.name
            _replace(made if made.is_dir() else None, folder)
    folders = {folder.parent.name: folder for folder in models}
    fits |= {(family, str(fitted.parameters["variant"])): fitted for family, fitted in best.items()}
    runs = {}
    for (family, _), fitted in fits.items():
        won = best[family] is fitted
        if won:
            _keep_errors(fitted, folders[family], provenance)
        name, run = _track(
            fitted, gpu, folders[family] if won else None, tracking, samples[samples["family"] == family]
        )
        if won:
            register_model(tracking, name, run, "model", {"gpu": gpu, "family": family})
            runs[name] = run
    for name, run in runs.items():  # once all are logged: a new run supersedes the one of its name
        choose_champion(tracking, name, run)
    describe_kernel_models(tracking)


def _keep_errors(fitted: FittedFamily, folder: Path, provenance: Mapping[str, Any] | None) -> None:
    """Write how good a model is into its folder: figures, the predictions behind them, and their quantiles."""
    with atomic_path(folder / METRICS) as part:
        part.write_text(json.dumps(fitted.metrics, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_parquet(fitted.test, folder / TEST_PREDICTIONS, provenance=provenance or {})
    with atomic_path(folder / ERROR_QUANTILES) as part:
        error_quantiles(fitted.test).to_csv(part, index=False, lineterminator="\n")


def _track(
    fitted: FittedFamily, gpu: str, folder: Path | None, tracking: Path, samples: pd.DataFrame
) -> tuple[str, str]:
    """Log one fit, with the model where it is its family's best (the one with a folder).

    Returns:
        The name under which such models are registered, and the run's id.
    """
    family, variant, test = fitted.model.family, str(fitted.parameters["variant"]), fitted.test
    dtypes = "-".join(fitted.model.scope.dtypes)
    kind = family if "fp32" in fitted.model.scope.dtypes else f"{family}-{dtypes}"
    title = f"{kind} on {gpu} ({variant})"
    seed, name = fitted.parameters["seed"], f"{gpu}-{kind}"
    # MLflow's charts show two places: 0.02 for errors of 1.9 and of 2.4 %
    percent = {f"{key}_percent": 100.0 * fitted.metrics[key] for key in ("gmae", "mape")}
    run = log_run(
        tracking,
        KERNEL_MODELS,
        f"{gpu} {kind} {variant}" + (f" seed {seed}" if seed else ""),
        params={**fitted.parameters, "samples": len(samples)},
        metrics=fitted.metrics | percent,
        tags={
            "gpu": gpu,
            "family": family,
            "dtype": dtypes,
            "variant": variant,
            "model": name,
            "samples": _fingerprint(samples),
            "champion": "no",
        },
        artifacts={"model": folder} if folder is not None else {},
        figures={
            "predicted_against_measured.png": predicted_against_measured(test, title),
            "error_histogram.png": error_histogram(test, title),
        },
    )
    return name, run


def _fingerprint(samples: pd.DataFrame) -> str:
    """Digest of samples: errors of two fits are compared where it is the same."""
    rows = pd.util.hash_pandas_object(samples.astype(str), index=False).to_numpy()
    return hashlib.sha256(rows.tobytes()).hexdigest()[:16]


def _replace(source: Path | None, target: Path) -> None:
    """Put a fitted folder in place of an earlier one; a note where there is none."""
    try:
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is not None:
            shutil.copytree(source, target)
        else:
            target.mkdir()
            (target / NO_SAMPLES).write_text("The samples hold no call of this family; physics predicts it.\n")
    except OSError as error:
        raise SteptimeError(f"{target}: cannot be written ({error.strerror or error})") from None
