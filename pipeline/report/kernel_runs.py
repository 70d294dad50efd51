"""Fit the kernel models of a GPU, and log each fit as an MLflow run: metrics, pictures, files, the champion."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.errors import SteptimeError
from pipeline.report.tracking import KERNEL_MODELS, describe_kernel_models, log_run, register_champion

if TYPE_CHECKING:
    from pipeline.kernels.fit import FittedFamily

NO_SAMPLES = "no_samples.txt"
"""Marks the model folder of a family that the samples do not hold."""


def fit_and_track(
    samples: pd.DataFrame, gpu: str, settings: Mapping[str, Any], models: Sequence[Path], tracking: Path
) -> None:
    """Fit every family that has samples, into its model folder, and track the fits.

    Args:
        samples: `samples` table of one GPU.
        gpu: its canonical name.
        settings: the `kernels` section of the configuration: name, variants, seed, workers.
        models: one folder per family, named `<family>/<name>`; a family without samples gets a note instead.
        tracking: MLflow folder.
    """
    from pipeline.hardware.spec import load_gpu
    from pipeline.kernels.fit import fit_gpu

    fits: list[FittedFamily] = []

    def keep(fitted: FittedFamily) -> None:
        fits.append(fitted)
        label, gmae = fitted.parameters["variant"], fitted.metrics["gmae"]
        print(f"  {gpu} {fitted.model.family}: {label}, GMAE {gmae:.2%} on unseen shapes", flush=True)

    with tempfile.TemporaryDirectory(prefix="steptime_fit_") as scratch:
        best = fit_gpu(
            samples,
            load_gpu(gpu),
            scratch,
            variants=tuple(settings["variants"]),
            seed=int(settings["seed"]),
            workers=int(settings["workers"]),
            on_fit=keep,
        )
        for folder in models:
            made = Path(scratch) / folder.parent.name
            _replace(made if made.is_dir() else None, folder)
    folders = {folder.parent.name: folder for folder in models}
    for fitted in fits:
        champion = best[fitted.model.family] is fitted
        _track(fitted, gpu, folders[fitted.model.family] if champion else None, tracking)
    describe_kernel_models(tracking)


def _track(fitted: FittedFamily, gpu: str, folder: Path | None, tracking: Path) -> None:
    """Log one fit; the best of its family (the one with a folder) is registered with the alias `champion`."""
    from pipeline.report.figures.kernels import error_histogram, predicted_against_measured
    from pipeline.report.figures.tables import ERROR_QUANTILES, METRICS, TEST_PREDICTIONS, error_quantiles

    family, variant, test = fitted.model.family, str(fitted.parameters["variant"]), fitted.test
    dtypes = "-".join(fitted.model.scope.dtypes)
    kind = family if "fp32" in fitted.model.scope.dtypes else f"{family}-{dtypes}"
    title = f"{kind} on {gpu} ({variant})"
    if folder is not None:
        (folder / METRICS).write_text(json.dumps(fitted.metrics, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        test.to_parquet(folder / TEST_PREDICTIONS, index=False)
        error_quantiles(test).to_csv(folder / ERROR_QUANTILES, index=False, lineterminator="\n")
    run = log_run(
        tracking,
        KERNEL_MODELS,
        f"{gpu} {kind} {variant}",
        params=fitted.parameters,
        metrics=fitted.metrics,
        tags={
            "gpu": gpu,
            "family": family,
            "dtype": dtypes,
            "variant": variant,
            "champion": "yes" if folder is not None else "no",
        },
        artifacts={"model": folder} if folder is not None else {},
        figures={
            "predicted_against_measured.png": predicted_against_measured(test, title),
            "error_histogram.png": error_histogram(test, title),
        },
    )
    if folder is not None:
        register_champion(tracking, f"{gpu}-{kind}", run, "model", {"gpu": gpu, "family": family})


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
