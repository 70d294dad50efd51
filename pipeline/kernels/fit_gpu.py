"""Fit the families of one GPU: clean and split samples, fit, evaluate and save models.

The module `fit_family` has the steps of one fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import InputError, UnknownNameError
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels import features
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import latency_floor as floors
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.effort import DEFAULT_EFFORT, effort_of
from pipeline.kernels.error_metrics import gmae_by_size, metrics
from pipeline.kernels.estimate import Floor
from pipeline.kernels.families import family, work_of
from pipeline.kernels.family_model import FittedModel, write_physics
from pipeline.kernels.fit_family import Fitter, typical_error, with_predictions
from pipeline.kernels.fit_workers import TrainingPool, run_jobs
from pipeline.kernels.samples import check_rates, clean_samples, families_of, split_by_shape

VARIANTS = ("auto", "process", "choice", "average", "trees", "mlp", "mlp_paper", "roofline")
"""Variants of kernel models:

- `process`: Gaussian processes.
- `average`: trees and networks, distilled.
- `choice`: as `average`, with the predicted kernel as an input.
- `trees`, `mlp`: one kind of member alone.
- `mlp_paper`: the published network, on sizes only.
- `roofline`: physics, scaled to the samples.
- `auto`: `process` for few samples. With more samples, `choice` for gemm if the samples name their kernels, else
  `average`. It takes `roofline` instead where that has the smaller error on unseen shapes.
"""

MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES = 5000
"""Largest number of samples for the variant `process`; with more, its covariance matrix would need more than 200 MB."""

DEFAULT_OFFSET_US = 13.5
"""Event offset in microseconds without element-wise samples; see `kernel_predictor.UNKNOWN_LATENCY_FLOOR`."""


@dataclass(frozen=True)
class FittedFamily:
    """A fitted model and its errors.

    Attributes:
        model: the model, ready to predict and to save.
        metrics: gmae, mape, coverage, ... of the held-out shapes, as fractions. Without held-out shapes they come from
            cross-validation; with a single sample they are NaN. Also `fit_s` (processor time of all processes) and
            `predict_us_per_row`.
        test: the rows of the metrics: dims, latency_us, predicted_us, p10_us, p90_us, floor_us.
        parameters: variant, seed and recipe, for tracking.
    """

    model: FittedModel
    metrics: dict[str, float]
    test: pd.DataFrame
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> float:
        """Error that ranks the variants of a family, smallest first: GMAE, or the mean log error for few samples."""
        if int(self.model.description["samples"]) > fitter.MAX_GAUSSIAN_PROCESS_SAMPLES:
            return self.metrics["gmae"]
        predicted, measured = (
            np.log(self.test[key].to_numpy(dtype=np.float64)) for key in ("predicted_us", "latency_us")
        )
        return typical_error(predicted, measured, few=True)

    def save(self, folder: str | Path) -> None:
        """Write the model's folder (see `FittedModel.save`)."""
        self.model.save(folder)


def fit_family(
    samples: pd.DataFrame,
    gpu: GpuSpec,
    name: str,
    variant: str = "auto",
    seed: int = 0,
    *,
    test_share: float = 0.0,
    effort: str = DEFAULT_EFFORT,
    memory: BandwidthCurve | None = None,
    offset_us: float = DEFAULT_OFFSET_US,
    evidence: str = "fitted",
    held_out: np.ndarray[Any, np.dtype[np.bool_]] | None = None,
    pool: Executor | None = None,
) -> FittedFamily:
    """Fit one family of one GPU.

    Args:
        samples: samples table, in the order of measurement; rows of other families are ignored.
        gpu: the device.
        name: the family.
        variant: one of `VARIANTS`.
        seed: of split, folds and weights; the same seed gives the same model on one machine.
        test_share: share of the family's shapes held out for the metrics.
        effort: name of one of `effort.EFFORTS`.
        memory: bandwidth curve fitted on this GPU's samples; if None, that of the spec.
        offset_us: microseconds that event timing adds to a kernel.
        evidence: label of the predictions: fitted, pack or measured.
        held_out: rows of `samples` to hold out, instead of a split by `test_share`.
        pool: processes that train members; if None, this thread trains them.

    Raises:
        UnknownNameError: no such family, variant or effort.
        TableError: no usable sample, or samples faster than the GPU (`samples.check_rates`).
        InputError: no training shape is left, or there are too many samples for the variant `process`.
    """
    family(name)
    if variant not in VARIANTS:
        raise UnknownNameError("kernel model variant", variant, list(VARIANTS))
    started, training_pool = time.thread_time(), TrainingPool(pool)
    own = (samples["family"] == name).to_numpy()
    table = samples[own].assign(held_out=False if held_out is None else held_out[own]).reset_index(drop=True)
    table = clean_samples(table, f"samples of {name}")
    check_rates(table, gpu, name)
    marked = table.pop("held_out").to_numpy(dtype=bool)
    test_mask = split_by_shape(table, test_share, seed) if held_out is None else marked
    train, test = table[~test_mask].reset_index(drop=True), table[test_mask].reset_index(drop=True)
    if train.empty:
        raise InputError(f"{name}: no shape is left for training; give more samples or a smaller test share")
    if variant == "process" and len(train) > MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES:
        raise InputError(
            f"{name}: {len(train)} samples, but the variant process takes at most "
            f"{MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES}; fit auto"
        )
    steps = Fitter(train, gpu, name, seed, memory, offset_us, training_pool, effort_of(effort))
    model, out_of_fold = steps.fit(variant)
    if not test.empty:
        scores = with_predictions(model, test)
    elif 1 < len(train) < fitter.MIN_GAUSSIAN_PROCESS_SAMPLES:
        scores = steps.with_leave_one_out_predictions(variant)
    else:
        scores = steps.with_out_of_fold_predictions(model, out_of_fold)
    fit_s = time.thread_time() - started + training_pool.spent_s
    rows = (test if not test.empty else train).head(2000)
    at = time.perf_counter()
    model.predict(rows)
    speed = (time.perf_counter() - at) / len(rows) * 1e6
    found = metrics(scores) | gmae_by_size(scores, work_of(name, scores).bytes)
    found |= {"fit_s": fit_s, "predict_us_per_row": speed}
    if test.empty and len(train) == 1:
        found |= dict.fromkeys(("gmae", "mape", "bias", "coverage", "above_floor_gmae"), float("nan"))
    description = _describe(table, train, test, found, evidence, seed, steps.notes)
    model = replace(model, description=description)
    parameters = {
        "gpu": gpu.name,
        "family": name,
        "variant": model.variant,
        "seed": seed,
        "effort": effort,
        **steps.notes,
    }
    return FittedFamily(model, found, scores, parameters)


def _describe(
    table: pd.DataFrame, train: pd.DataFrame, test: pd.DataFrame, found: dict[str, float], evidence: str, seed: int,
    notes: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Provenance and figures for `family.json`."""
    measured_on = sorted(table["gpu"].astype(str).unique()) if "gpu" in table.columns else []
    sources = sorted(table["source"].astype(str).unique()) if "source" in table.columns else []
    keep = ("gmae", "mape", "bias", "coverage", "above_floor_gmae", "rows")
    return {
        "evidence": evidence, "seed": seed, "samples": len(train), "held_out": len(test), "measured_on": measured_on,
        "source": sources, "feature_version": features.VERSION, "notes": notes,
        "split": "held-out shapes" if len(test) else "cross-validation by shape" if len(train) > 1 else "none",
        "metrics": {key: round(found[key], 6) for key in keep if np.isfinite(found.get(key, np.nan))},
    }  # fmt: skip


def calibrate_physics(samples: pd.DataFrame, gpu: GpuSpec) -> tuple[BandwidthCurve | None, float, float | None]:
    """(memory curve, event offset, curve error) from element-wise samples; with too few, None for curve and error."""
    found = floors.memory_curve(samples, gpu)
    if found is None:
        return None, DEFAULT_OFFSET_US, None
    return found.curve, found.offset_us, found.error


def fit_gpu(
    samples: pd.DataFrame,
    gpu: GpuSpec,
    out_dir: str | Path,
    families: Sequence[str] | None = None,
    variants: Sequence[str] = ("auto",),
    seed: int = 0,
    *,
    test_share: float = 0.0,
    effort: str = DEFAULT_EFFORT,
    evidence: str = "fitted",
    workers: int = 1,
    on_fit: Callable[[FittedFamily], None] | None = None,
) -> dict[str, FittedFamily]:
    """Fit every family of one GPU and save the best variant of each under `out_dir/<family>/`.

    Args:
        samples: samples of that GPU, or of its sibling for families without samples of their own.
        gpu: the device.
        out_dir: receives one folder per family, and `copy` with the bandwidth curve where it can be fitted.
        families: families to fit; if None, all that have samples.
        variants: variants to fit; the one with the smallest `FittedFamily.rank` is saved.
        seed, test_share, effort, evidence: as for `fit_family`.
        workers: number of processes that train members of all families.
        on_fit: called in this process after every fit (for tracking).

    Raises:
        TableError, UnknownNameError, InputError: as `fit_family`.
        SteptimeError: as `run_jobs`.
    """
    out_dir = Path(out_dir)
    wanted = families_of(samples, families)
    held = split_by_shape(samples, test_share, seed) if test_share > 0 else np.zeros(len(samples), dtype=bool)
    memory, offset_us, error = calibrate_physics(samples[~held], gpu)

    def job(name: str, variant: str, pool: Executor | None) -> FittedFamily:
        own = (samples["family"] == name).to_numpy()
        return fit_family(
            samples[own], gpu, name, variant, seed, memory=memory, offset_us=offset_us, evidence=evidence,
            held_out=held[own], pool=pool, effort=effort,
        )  # fmt: skip

    # the longest fits start first, so that none runs alone at the end; families with a predicted kernel take longest
    counts = samples["family"].value_counts()
    ordered = sorted(wanted, key=lambda name: (name not in fitter.AUTO_CHOICE_FAMILIES, -counts[name]))
    jobs = [partial(job, name, variant) for name in ordered for variant in variants]
    best: dict[str, FittedFamily] = {}
    for fitted in run_jobs(jobs, workers):
        name = fitted.model.family
        if name not in best or fitted.rank < best[name].rank:
            best[name] = fitted
            fitted.save(out_dir / name)
        if on_fit is not None:
            on_fit(fitted)
    if memory is not None and error is not None:
        write_physics(out_dir, gpu, memory, _common_floor(best, offset_us), error, evidence, samples)
    return best


def _common_floor(best: dict[str, FittedFamily], offset_us: float) -> Floor:
    floors_us = [fitted.model.floor.default_us for fitted in best.values() if fitted.model.floor.default_us > 0]
    return Floor(offset_us, float(np.median(floors_us)) if floors_us else 0.0, {})
