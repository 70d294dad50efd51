"""Fit the kernel models of a GPU, and log each family as an MLflow run: metrics, pictures, files, the champion."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.errors import SteptimeError
from pipeline.report.tracking import log_run, register_champion

if TYPE_CHECKING:
    from pipeline.kernels.fit import FittedFamily

NO_SAMPLES = "no_samples.txt"
"""Marks the model folder of a family that the samples do not hold."""


def fit_and_track(samples: pd.DataFrame, gpu: str, settings: Mapping[str, Any], models: Sequence[Path], tracking: Path) -> None:
    """Fit every family that has samples, into its model folder, and track the fits.

    Args:
        samples: `samples` table of one GPU.
        gpu: its canonical name.
        settings: the `kernels` section of the configuration; `name` is the variant.
        models: one folder per family, named `<family>/<variant>`; a family without samples gets a note instead.
        tracking: MLflow folder.
    """
    from pipeline.hardware.spec import load_gpu
    from pipeline.kernels.fit import fit_gpu

    fitted: list[FittedFamily] = []
    with tempfile.TemporaryDirectory(prefix="steptime_fit_") as scratch:
        fit_gpu(samples, load_gpu(gpu), Path(scratch), variant=str(settings["name"]), on_fit=fitted.append)
        for folder in models:
            made = Path(scratch) / folder.parent.name
            _replace(made if made.is_dir() else None, folder)
    for each in fitted:
        folder = next(path for path in models if path.parent.name == each.family)
        track(each, gpu, str(settings["name"]), folder, tracking)


def track(fitted: FittedFamily, gpu: str, variant: str, folder: Path, tracking: Path) -> None:
    """Log one fitted family; the choice of `auto` is registered with the alias `champion`."""
    from pipeline.report.figures.kernels import error_histogram, predicted_against_measured

    family, test = fitted.family, fitted.test_predictions
    title = f"{family} on {gpu}"
    figures = {}
    if len(test):
        figures = {
            "predicted_against_measured.png": predicted_against_measured(test, title),
            "error_histogram.png": error_histogram(test, title),
        }
    run = log_run(
        tracking,
        "kernel models",
        f"{gpu} {family} {variant}",
        params={"gpu": gpu, "family": family, "variant": variant, **fitted.params},
        metrics=fitted.metrics,
        tags={"gpu": gpu, "family": family, "variant": variant},
        artifacts={"model": folder},
        figures=figures,
    )
    if variant == "auto":
        register_champion(tracking, f"{gpu}-{family}", run, "model", {"gpu": gpu, "family": family})
    with (folder / "metrics.json").open("w", encoding="utf-8") as file:
        json.dump(fitted.metrics, file, indent=1, sort_keys=True)


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
