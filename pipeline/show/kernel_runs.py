"""Fits the kernel models of a GPU and logs each fit as an MLflow run: metrics, files, the champion."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.family_model import FittedModel, read_description
from pipeline.kernels.fit_gpu import FittedFamily, fit_gpu
from pipeline.kernels.samples import CALL_COLUMNS, check_calls, with_families
from pipeline.model_files import file_digest, list_model_folders, write_json
from pipeline.schemas import atomic_path, unwritable, write_parquet
from pipeline.show.tracking import (
    current_models,
    log_run,
    register_model,
    write_pyfunc,
)

METRICS = "metrics.json"
TEST_PREDICTIONS = "test_predictions.parquet"
"""File of a model folder with its held-out rows: measured and predicted latency."""

ERROR_QUANTILES = "error_quantiles.csv"
QUANTILES = 201
"""Number of quantiles of the held-out errors that ship with a model, in place of the rows."""

DURATIONS = ("fit_s", "predict_us_per_row")
"""Metrics that differ in each fit: MLflow has them, files do not, so that the same fit leaves the same bytes."""

IN_PERCENT = ("gmae", "mape", "bias", "coverage")
"""Metrics that are shares."""

NO_SAMPLES = "no_samples.txt"
"""File that marks the model folder of a family that was not fitted."""


def fit_and_track(
    samples: pd.DataFrame,
    gpu: str,
    settings: Mapping[str, Any],
    models: Sequence[Path],
    tracking: Path,
    provenance: Mapping[str, Any],
    workers: int = 1,
) -> None:
    """Fit the families that have samples, into their model folders, and track the fits.

    Few samples, or their errors, can turn a variant into another variant of the same fit. Both are logged as one run.

    Args:
        samples: `samples` table of one GPU.
        gpu: its canonical name.
        settings: the `kernels` section of the configuration: variants, seed, and families if not all are fitted.
        models: one folder per family, named `<family>/<name>`; a family that is not fitted gets a note instead.
        tracking: MLflow folder.
        provenance: origin of the models, stored with their test predictions.
        workers: number of processes.
    """
    fits: dict[tuple[str, str], FittedFamily] = {}

    def keep(fitted: FittedFamily) -> None:
        family, gmae = fitted.model.family, fitted.metrics["gmae"]
        label = str(fitted.parameters["variant"])
        if (family, label) not in fits:
            known = f"GMAE {gmae:.2%} on unseen shapes"
            judged = "a single sample, error unknown" if math.isnan(gmae) else known
            print(f"  {gpu} {family}: {label}, {judged}", flush=True)
        fits.setdefault((family, label), fitted)

    with tempfile.TemporaryDirectory(prefix="steptime_fit_") as scratch:
        best = fit_gpu(
            samples,
            load_gpu(gpu),
            scratch,
            variants=tuple(settings["variants"]),
            seed=int(settings["seed"]),
            families=settings.get("families"),
            workers=workers,
            on_fit=keep,
        )
        for folder in models:
            fitted_folder = Path(scratch) / folder.parent.name
            _replace(fitted_folder if fitted_folder.is_dir() else None, folder)
    fits |= {(family, str(fitted.parameters["variant"])): fitted for family, fitted in best.items()}
    folders = {folder.parent.name: folder for folder in models}
    for family, fitted in best.items():
        _keep_errors(fitted, folders[family], provenance)
    _track_all(list(fits.values()), best, gpu, tracking, samples, provenance)


def _track_all(
    fits: Sequence[FittedFamily],
    best: Mapping[str, FittedFamily],
    gpu: str,
    tracking: Path,
    samples: pd.DataFrame,
    provenance: Mapping[str, Any],
) -> None:
    """Log every fit, then register the best of each family and choose the champions."""
    runs = {}
    for fitted in fits:
        family = fitted.model.family
        run = _track(fitted, gpu, tracking, samples[samples["family"] == family], provenance)
        if best[family] is fitted:
            runs[run] = family, fitted.model.scope.dtypes
    # only when all are logged: a new run supersedes the earlier run of its name
    for run, (family, dtypes) in runs.items():
        register_model(tracking, _name(gpu, family, dtypes), run, {"gpu": gpu, "family": family})


def log_shipped_models(tracking: Path) -> int:
    """Log the shipped models as champions, with their stored errors, except where a model of that name was fitted here.

    Returns:
        How many were logged.
    """
    known, logged = current_models(tracking), 0
    for folder in [path for path in list_model_folders() if (path / METRICS).is_file()]:
        about = read_description(folder)
        if about["variant"] == "curve":  # of bandwidth, not a model
            continue
        owner = about["gpu"], about["family"], about["scope"]["dtypes"]
        digest = f"shipped {file_digest(folder / METRICS)[:8]}"
        earlier = known.get(_name(*owner), set())
        if any(each == digest or not each.startswith("shipped") for each in earlier):
            continue
        run = _log(
            tracking,
            owner,
            "shipped",
            folder,
            {key: about[key] for key in ("variant", "seed", "samples", "split")},
            json.loads((folder / METRICS).read_text(encoding="utf-8")),
            {
                "variant": f"{about['variant']} (shipped)",
                "champion": "yes",
                "samples": digest,
                "source": ", ".join(about["source"]),
            },
            "packs",
        )
        tags = {key: about[key] for key in ("gpu", "family")}
        register_model(tracking, _name(*owner), run, tags)
        logged += 1
    return logged


def _name(gpu: str, family: str, dtypes: Sequence[str]) -> str:
    """Name of a registered model: its GPU and its family, with the dtypes if they are not fp32."""
    return f"{gpu}-{family}" if "fp32" in dtypes else f"{gpu}-{family}-{'-'.join(dtypes)}"


def _keep_errors(fitted: FittedFamily, folder: Path, provenance: Mapping[str, Any]) -> None:
    """Write a model's errors into its folder: figures, the test predictions, and the quantiles of their errors."""
    errors = {key: value for key, value in fitted.metrics.items() if key not in DURATIONS}
    write_json(folder / METRICS, errors)
    write_parquet(fitted.test, folder / TEST_PREDICTIONS, provenance=provenance)
    with atomic_path(folder / ERROR_QUANTILES) as part:
        error_quantiles(fitted.test).to_csv(part, index=False, lineterminator="\n")


def _track(
    fitted: FittedFamily,
    gpu: str,
    tracking: Path,
    samples: pd.DataFrame,
    provenance: Mapping[str, Any],
) -> str:
    """Log one fit with its model and its test predictions; returns the run's id."""
    variant, seed = str(fitted.parameters["variant"]), fitted.parameters["seed"]
    with tempfile.TemporaryDirectory(prefix="steptime_model_") as scratch:
        folder = Path(scratch) / "fitted"
        fitted.save(folder)
        _keep_errors(fitted, folder, provenance)
        return _log(
            tracking,
            (gpu, fitted.model.family, fitted.model.scope.dtypes),
            variant + (f" seed {seed}" if seed else ""),
            folder,
            {**fitted.parameters, "samples": len(samples)},
            fitted.metrics,
            {
                "variant": variant,
                "champion": "no",
                "samples": _fingerprint(samples),
                "source": ", ".join(sorted(samples["source"].astype(str).unique())),
            },
            "workflow/scripts/fit_kernels.py",
        )


def _log(
    tracking: Path,
    owner: tuple[str, str, Sequence[str]],
    label: str,
    folder: Path,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    made_by: str,
) -> str:
    """Log the model of a folder; returns the run's id.

    Errors are logged in percent, too: MLflow's charts show two decimal places, so that 1.9 % and 2.4 % would both be 0.02.

    Args:
        owner: GPU, family and dtypes.
        label: end of the run's name.
        tags: variant, whether it is the champion, digest and origin of the samples.
    """
    gpu, family, dtypes = owner
    name = _name(*owner)
    title = f"{gpu} {name.removeprefix(gpu)[1:]}"
    percent = {f"{key}_percent": 100.0 * metrics[key] for key in IN_PERCENT}
    of_model = {"gpu": gpu, "family": family, "dtype": "-".join(dtypes), "model": name}
    with tempfile.TemporaryDirectory(prefix="steptime_run_") as scratch:
        return log_run(
            tracking,
            f"{title} {label}",
            params=params,
            metrics={**metrics, **percent},
            tags={**of_model, **tags},
            made_by=made_by,
            model=write_pyfunc(folder, Path(scratch) / "model", __name__),
        )


@dataclass(frozen=True)
class TableModel:
    """A fitted model as `mlflow.pyfunc` gives it."""

    model: FittedModel

    def predict(self, calls: pd.DataFrame) -> pd.DataFrame:
        """Latencies of a table of calls, `op` and its dimensions, in microseconds, with p10 and p90.

        Raises:
            TableError: a row is no call of the model's family.
        """
        table, family = with_families(calls, "calls").reset_index(drop=True), self.model.family
        check_calls(table, "calls")
        if others := sorted(set(table["family"]) - {family}):
            raise TableError(f"calls: rows of {', '.join(others)}, but the model predicts {family}")
        estimate = self.model.predict(
            table[[name for name in CALL_COLUMNS if name in table.columns]]
        )
        times = {
            "predicted_us": estimate.latency,
            "p10_us": estimate.latency_p10,
            "p90_us": estimate.latency_p90,
            "kernel_us": estimate.kernel,
        }
        return pd.DataFrame(times, index=calls.index)


def _load_pyfunc(folder: str) -> TableModel:
    """What `mlflow.pyfunc.load_model` calls."""
    return TableModel(FittedModel.load(folder, load_gpu(read_description(folder)["gpu"])))


def _fingerprint(samples: pd.DataFrame) -> str:
    """Digest of samples: errors of two fits are compared only if it is the same."""
    rows = pd.util.hash_pandas_object(samples.astype(str), index=False).to_numpy()
    return hashlib.sha256(rows.tobytes()).hexdigest()[:16]


def _replace(source: Path | None, target: Path) -> None:
    """Replace an earlier folder by the fitted one; without a fitted folder, write a note (`NO_SAMPLES`)."""
    try:
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is not None:
            shutil.copytree(source, target)
        else:
            target.mkdir()
            (target / NO_SAMPLES).write_text(
                "Not fitted: no samples of this family, or kernels.families leaves it out.\n"
            )
    except OSError as error:
        raise unwritable(target, error) from None


def error_quantiles(test: pd.DataFrame) -> pd.DataFrame:
    """Quantiles of predicted / measured - 1 in percent, in a number that is small enough to ship with a model.

    Args:
        test: held-out calls with `latency_us` and `predicted_us`.

    Returns:
        One column `percent`, ascending, at equal steps of probability from 0 to 1.
    """
    error = 100 * (test["predicted_us"] / test["latency_us"] - 1).to_numpy(float)
    return pd.DataFrame({"percent": np.round(np.quantile(error, np.linspace(0, 1, QUANTILES)), 4)})
