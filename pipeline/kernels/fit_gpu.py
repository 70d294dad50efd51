"""Fit the families of one GPU: clean and split samples, fit, evaluate and save models.

The module `fit_family` has the steps of one fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.errors import InputError, SteptimeError, UnknownNameError
from pipeline.families import family, work_of
from pipeline.families.chip import BandwidthCurve
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels import features
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import latency_floor as floors
from pipeline.kernels.error_metrics import gmae_by_size, metrics
from pipeline.kernels.estimate import Floor
from pipeline.kernels.family_model import FittedModel, write_physics
from pipeline.kernels.fit_family import Fitter, typical_error
from pipeline.kernels.samples import check_rates, clean_samples, families_of

VARIANTS = ("auto", "process", "trees", "mlp", "mlp_paper", "roofline")
"""Variants of kernel models:

- `process`: Gaussian processes.
- `mlp`, `trees`: a network, boosted trees.
- `mlp_paper`: the published network, on sizes only.
- `roofline`: physics, scaled to the samples.
- `auto`: `process` for few samples, `mlp` for more. It takes `roofline` instead where that has the smaller error on
  unseen shapes.
"""

MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES = 5000
"""Largest number of samples for the variant `process`; with more, its covariance matrix would need more than 200 MB."""

JUDGEMENTS = ("gmae", "mape", "bias", "coverage", "above_floor_gmae")
"""Figures that a single sample does not show."""

DEFAULT_OFFSET_US = 13.5
"""Event offset in microseconds without element-wise samples; see `kernel_predictor.UNKNOWN_LATENCY_FLOOR`."""


@dataclass(frozen=True)
class FittedFamily:
    """A fitted model and its errors.

    Attributes:
        model: the model, ready to predict and to save.
        metrics: gmae, mape, coverage, ... of cross-validation by shape, as fractions; NaN with a single sample. Also `fit_s`
            (processor time) and `predict_us_per_row`.
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
        times = self.test[["predicted_us", "latency_us"]].to_numpy(dtype=float)
        predicted, measured = np.log(times).T
        return typical_error(predicted, measured, few=True)

    def save(self, folder: str | Path) -> None:
        """Write the model's folder (see `FittedModel.save`)."""
        self.model.save(folder)


@dataclass(frozen=True)
class Task:
    """What is fitted: usable samples of one family, in the order of measurement, and what is known of its GPU.

    Attributes:
        samples: the samples.
        measured: names of their GPUs and sources.
        memory: bandwidth curve fitted on the GPU's samples; if None, that of the spec.
        offset_us: microseconds that event timing adds to a kernel.
    """

    gpu: GpuSpec
    name: str
    seed: int
    samples: pd.DataFrame
    measured: dict[str, list[str]]
    memory: BandwidthCurve | None
    offset_us: float

    @classmethod
    def of(
        cls,
        samples: pd.DataFrame,
        gpu: GpuSpec,
        name: str,
        seed: int,
        memory: BandwidthCurve | None,
        offset_us: float,
    ) -> Task:
        """Clean and check the samples of a family.

        Raises:
            UnknownNameError, TableError: as `fit_family`.
        """
        family(name)
        table = clean_samples(samples[samples["family"] == name], f"samples of {name}")
        check_rates(table, gpu, name)
        return cls(gpu, name, seed, table, _origin(table), memory, offset_us)

    def check(self, variant: str) -> None:
        """Refuse an unknown variant, and one that these samples are too many for."""
        if variant not in VARIANTS:
            raise UnknownNameError("kernel model variant", variant, list(VARIANTS))
        rows, most = len(self.samples), MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES
        if variant == "process" and rows > most:
            raise InputError(
                f"{self.name}: {rows} samples, but the variant process takes at most {most};"
                " fit auto"
            )


def _origin(samples: pd.DataFrame) -> dict[str, list[str]]:
    """Names of the GPUs and sources of samples, for `family.json`."""
    columns = {"measured_on": "gpu", "source": "source"}
    return {
        key: sorted(samples[column].astype(str).unique()) if column in samples.columns else []
        for key, column in columns.items()
    }


def fit_family(
    samples: pd.DataFrame,
    gpu: GpuSpec,
    name: str,
    variant: str = "auto",
    seed: int = 0,
    *,
    memory: BandwidthCurve | None = None,
    offset_us: float = DEFAULT_OFFSET_US,
) -> FittedFamily:
    """Fit one family of one GPU.

    Args:
        samples: samples table, in the order of measurement; rows of other families are ignored.
        gpu: the device.
        name: the family.
        variant: one of `VARIANTS`.
        seed: of folds and weights; the same seed gives the same model on one machine.
        memory: bandwidth curve fitted on this GPU's samples; if None, that of the spec.
        offset_us: microseconds that event timing adds to a kernel.

    Raises:
        UnknownNameError: no such family or variant.
        TableError: no usable sample, or samples faster than the GPU (`samples.check_rates`).
        InputError: there are too many samples for the variant `process`.
    """
    return _fit(Task.of(samples, gpu, name, seed, memory, offset_us), variant)


def _fit(task: Task, variant: str) -> FittedFamily:
    """Fit a family whose samples are clean. One thread: the number of processors changes no digit of the model."""
    from threadpoolctl import threadpool_limits

    task.check(variant)
    started, train, judged = time.thread_time(), task.samples, len(task.samples) > 1
    with threadpool_limits(limits=1):
        steps = Fitter(train, task.gpu, task.name, task.seed, task.memory, task.offset_us)
        model, out_of_fold = steps.fit(variant)
        if 1 < len(train) < fitter.MIN_GAUSSIAN_PROCESS_SAMPLES:
            scores = steps.with_leave_one_out_predictions(variant)
        else:
            scores = steps.with_out_of_fold_predictions(model, out_of_fold)
    figures = metrics(scores) | gmae_by_size(scores, work_of(task.name, scores).bytes)
    if not judged:
        figures |= dict.fromkeys(JUDGEMENTS, float("nan"))
    figures |= {"fit_s": time.thread_time() - started}
    rows, started = train.head(2000), time.perf_counter()
    model.predict(rows)
    figures |= {"predict_us_per_row": (time.perf_counter() - started) / len(rows) * 1e6}
    shown = {key: figures[key] for key in (*JUDGEMENTS, "rows") if key in figures}
    description = {
        "evidence": "fitted",
        "seed": task.seed,
        "samples": len(train),
        **task.measured,
        "feature_version": features.VERSION,
        "notes": steps.notes,
        "split": "cross-validation by shape" if judged else "none",
        "metrics": {key: round(value, 6) for key, value in shown.items() if np.isfinite(value)},
    }
    facts = {"gpu": task.gpu.name, "family": task.name, "variant": model.variant, "seed": task.seed}
    model = replace(model, description=description)
    return FittedFamily(model, figures, scores, {**facts, **steps.notes})


def calibrate_physics(
    samples: pd.DataFrame, gpu: GpuSpec
) -> tuple[BandwidthCurve | None, float, float | None]:
    """(memory curve, event offset, curve error) from element-wise samples; with too few, None for curve and error."""
    fit = floors.memory_curve(samples, gpu)
    if fit is None:
        return None, DEFAULT_OFFSET_US, None
    return fit.curve, fit.offset_us, fit.error


def fit_gpu(
    samples: pd.DataFrame,
    gpu: GpuSpec,
    out_dir: str | Path,
    families: Sequence[str] | None = None,
    variants: Sequence[str] = ("auto",),
    seed: int = 0,
    *,
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
        seed: as for `fit_family`.
        workers: number of processes; each fits one family at a time.
        on_fit: called in this process after every fit (for tracking).

    Raises:
        TableError, UnknownNameError, InputError: as `fit_family`.
        SteptimeError: a process was killed, most likely because memory ran out.
    """
    out_dir, wanted = Path(out_dir), families_of(samples, families)
    memory, offset_us, error = calibrate_physics(samples, gpu)
    # the longest fits start first, so that none runs alone at the end
    counts = samples["family"].value_counts()
    tasks = [
        Task.of(samples, gpu, name, seed, memory, offset_us)
        for name in sorted(wanted, key=lambda name: -counts[name])
    ]
    fits = [*product(tasks, variants)]
    for task, variant in fits:
        task.check(variant)
    best: dict[str, FittedFamily] = {}
    for fitted in _fit_all(fits, workers):
        name = fitted.model.family
        if name not in best or fitted.rank < best[name].rank:
            best[name] = fitted
            fitted.save(out_dir / name)
        if on_fit is not None:
            on_fit(fitted)
    if memory is not None and error is not None:
        write_physics(out_dir, gpu, memory, _common_floor(best, offset_us), error, samples)
    return best


def _fit_all(fits: Sequence[tuple[Task, str]], workers: int) -> Iterator[FittedFamily]:
    """Fits in several processes, as they are finished."""
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    parallel = Parallel(n_jobs=workers, return_as="generator_unordered")
    try:
        yield from parallel(delayed(_fit)(*each) for each in fits)
    except TerminatedWorkerError:
        raise SteptimeError(
            "a process of the fit was killed, most likely because memory ran out; fit with fewer"
            " workers"
        ) from None


def _common_floor(best: dict[str, FittedFamily], offset_us: float) -> Floor:
    """The floor of families without samples: the median of those that were fitted."""
    floors_us = [fitted.model.floor.default_us for fitted in best.values()]
    positive = [floor for floor in floors_us if floor > 0]
    return Floor(offset_us, float(np.median(positive)) if positive else 0.0, {})
