"""The steps of one family's fit: floor, drift, members, calibration, and errors of out-of-fold predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.errors import InputError
from pipeline.families import family
from pipeline.families.chip import BandwidthCurve
from pipeline.families.dims import Dims
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels import latency_floor as floors
from pipeline.kernels import session_drift as drift
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.estimate import Floor, Quantiles, fit_quantiles
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.features import Scope
from pipeline.kernels.learned_variants import FOLDS, NETWORK_FOLDS, Problem, fit_member
from pipeline.kernels.physics import Physics
from pipeline.kernels.samples import assign_folds

MAX_GAUSSIAN_PROCESS_SAMPLES = 1000
"""Largest number of samples for which `auto` uses Gaussian processes. Networks take longer, and their error is as large or
larger (docs/kernels.md#how-good-are-fits-of-few-samples)."""

MIN_TREE_SAMPLES = 20
"""Smallest number of samples for trees and networks. With fewer, physics keeps the default interval."""

MIN_GAUSSIAN_PROCESS_SAMPLES = 8
"""Smallest number of samples for Gaussian processes; with fewer, their median ratio scales physics (`roofline`)."""

EQUAL_LOG_RANGE = 1e-9
"""Range of log times below which all samples count as equal, so that the model is a constant."""

UNCALIBRATED_SPREAD = 1.6
"""Factor up and down of the interval where there are too few samples to calibrate it."""


def with_predictions(model: FittedModel, test: pd.DataFrame) -> pd.DataFrame:
    """Held-out rows with their predictions; `FittedFamily.metrics` is computed from this table."""
    estimate = model.predict(test)
    dims = [dim for dim in family(model.family).dims if dim in test.columns]
    return test[["op", "phase", "dtype", *dims, "latency_us"]].assign(
        predicted_us=estimate.latency,
        kernel_us=estimate.kernel,
        p10_us=estimate.latency_p10,
        p90_us=estimate.latency_p90,
        floor_us=model.floor.of(Dims(test).op),
    )


class Fitter:
    """The steps of one fit, on shared training rows."""

    def __init__(
        self,
        train: pd.DataFrame,
        gpu: GpuSpec,
        name: str,
        seed: int,
        memory: BandwidthCurve | None,
        offset_us: float,
    ) -> None:
        self.train, self.gpu, self.name, self.seed = train, gpu, name, seed
        self.memory, self.offset_us = memory, offset_us
        self.notes: dict[str, Any] = {}
        physics = Physics.of(gpu)
        if memory is not None:
            physics = physics.calibrate(memory, "fitted")
        self.measured, self.timed = floors.kernel_times(train)
        floor = floors.estimate_floor(train, physics, offset_us)
        scope = Scope.of(name, train, family(name).dims)
        uncalibrated = Quantiles.constant(UNCALIBRATED_SPREAD)
        self.base = FittedModel(
            family=name,
            gpu=gpu,
            variant="roofline",
            scope=scope,
            floor=Floor(0.0, 0.0, {}) if self.timed else floor,
            memory=physics.memory,
            latency_quantiles=uncalibrated,
            kernel_quantiles=uncalibrated,
        )
        self.clamped = scope.clamp(train)[0]
        self.base = replace(self.base, prior_scale=self._prior_scale(physics))
        self.folds = assign_folds(train, FOLDS, seed)

    def _prior_scale(self, physics: Physics) -> float:
        """Median ratio of measured kernel times to physics, over the shortest samples above the floor."""
        ops = Dims(self.train).op
        expected = physics.reference_us(self.name, self.clamped)
        floor = self.base.floor.of(ops)
        shown = (self.measured > floors.ABOVE_FLOOR * floor) & np.isfinite(expected)
        if not shown.any():
            return 1.0
        ratio = (self.measured - self.base.floor.offset_us)[shown] / expected[shown]
        # the shortest tenth above the floor, at least 20 samples, is most similar to kernels under the floor
        order = np.argsort(self.measured[shown])[: max(20, int(0.1 * shown.sum()))]
        return float(np.clip(np.median(ratio[order]), 0.05, 20.0))

    def fit(self, variant: str) -> tuple[FittedModel, Array]:
        """Fit the model; also return out-of-fold predictions of the log time without drift, shape (rows,)."""
        log_measured, rows = np.log(self.measured), len(self.train)
        if rows > 1 and np.ptp(log_measured) < EQUAL_LOG_RANGE:
            floor = Floor(self.base.floor.offset_us, float(self.measured[0]), {})
            model = replace(self.base, variant="constant", inputs="constant", floor=floor)
            return model, log_measured
        baseline = self.base.baseline(self.clamped)
        label = variant
        if variant == "auto":
            label = "process" if rows <= MAX_GAUSSIAN_PROCESS_SAMPLES else "mlp"
        few = label == "process"
        too_few = rows < (MIN_GAUSSIAN_PROCESS_SAMPLES if few else MIN_TREE_SAMPLES)
        if variant == "roofline" or too_few or not np.all(np.isfinite(baseline)):
            return self._roofline(baseline, log_measured)
        disturbed, clean = self.without_drift(baseline)
        raw = label == "mlp_paper"
        base = replace(self.base, variant=label, inputs="raw" if raw else self.base.inputs)
        start = np.zeros(rows) if raw else baseline
        problem = Problem(base.features(self.clamped), clean - start, self.folds)
        outcome = fit_member(label, problem, self.seed)
        out_of_fold = outcome.out_of_fold + start
        predicted = np.isfinite(out_of_fold)
        if variant == "auto":
            by_physics, by_member = (
                typical_error(log_time[predicted], clean[predicted], few)
                for log_time in (baseline, out_of_fold)
            )
            if by_physics <= by_member:
                return self._roofline(baseline, log_measured)
        self.notes |= outcome.notes
        model = replace(base, member=outcome.member)
        return self.calibrate(model, out_of_fold, clean, disturbed), out_of_fold

    def without_drift(self, baseline: Array) -> tuple[drift.Drift, Array]:
        """The session's drift, and log times without it, shape (rows,)."""
        disturbed = drift.Drift(np.zeros(len(baseline)), 0.0)
        if not self.timed:
            inputs = self.base.features(self.clamped)
            disturbed = drift.estimate_drift(
                inputs, baseline, self.measured, self.folds % 3, self.seed
            )
        self.notes["disturbance_us"] = round(disturbed.typical_us, 2)
        return disturbed, np.log(
            np.maximum(self.measured - disturbed.extra_us, 0.2 * self.measured)
        )

    def calibrate(
        self, model: FittedModel, out_of_fold: Array, clean: Array, disturbed: drift.Drift
    ) -> FittedModel:
        """Set intervals, and the typical drift of latencies, of a model with members.

        Args:
            model: a model with members, not yet calibrated.
            out_of_fold: out-of-fold predictions of the log time, shape (rows,); NaN where there are none.
            clean: log times without drift, shape (rows,).
            disturbed: the drift of the session.
        """
        predicted = np.isfinite(out_of_fold)
        log_time, clean, few = out_of_fold[predicted], clean[predicted], model.variant == "process"
        extra = drift.best_extra(
            np.exp(log_time),
            np.exp(clean - log_time),
            disturbed,
            self.seed,
        )
        latency = np.exp(log_time) + np.interp(log_time, *extra)
        measured = np.exp(clean) + disturbed.extra_us[predicted]
        return replace(
            model,
            extra=extra,
            kernel_quantiles=fit_quantiles(log_time, clean - log_time, few),
            latency_quantiles=fit_quantiles(log_time, np.log(measured / latency), few),
        )

    def _roofline(self, baseline: Array, log_measured: Array) -> tuple[FittedModel, Array]:
        """Scale physics to the samples; with enough samples, the interval comes from its residuals."""
        finite = np.isfinite(baseline)
        if not finite.any():
            raise InputError(
                f"{self.name}: the samples have neither dims nor bytes, so their work is unknown"
            )
        residual = (log_measured - baseline)[finite]
        model = self.base
        if len(residual) >= MIN_TREE_SAMPLES:
            quantiles = fit_quantiles(baseline[finite], residual)
            model = replace(model, latency_quantiles=quantiles, kernel_quantiles=quantiles)
        return model, baseline

    def with_out_of_fold_predictions(self, model: FittedModel, out_of_fold: Array) -> pd.DataFrame:
        """Training rows with their out-of-fold predictions, in the form of `with_predictions`.

        A network predicts some folds only; with many samples every variant is judged on these, to be comparable.
        """
        predicted = np.isfinite(out_of_fold)
        if len(self.train) > MAX_GAUSSIAN_PROCESS_SAMPLES:
            predicted &= np.isin(self.folds, np.unique(self.folds)[:NETWORK_FOLDS])
        out_of_fold = out_of_fold[predicted]
        latency = np.exp(out_of_fold) + np.interp(out_of_fold, *model.extra)
        low, high = (np.exp(q) for q in model.latency_quantiles.at(out_of_fold))
        table = with_predictions(model, self.train[predicted])
        bounds = {"p10_us": latency * low, "p90_us": latency * high}
        return table.assign(latency_us=self.measured[predicted], predicted_us=latency, **bounds)

    def with_leave_one_out_predictions(self, variant: str) -> pd.DataFrame:
        """Each training row with the prediction of a model of the other rows, in the form of `with_predictions`.

        With so few rows, a fit only scales physics by their median ratio. Every row changes that ratio.
        """
        tables = []
        for row in range(len(self.train)):
            others = self.train.drop(index=row).reset_index(drop=True)
            fitter = Fitter(others, self.gpu, self.name, self.seed, self.memory, self.offset_us)
            tables.append(with_predictions(fitter.fit(variant)[0], self.train.iloc[[row]]))
        return pd.concat(tables, ignore_index=True)


def typical_error(predicted: Array, measured: Array, few: bool) -> float:
    """GMAE of log times, or their mean log error for few rows, where one small error dominates a geometric mean."""
    return (
        float(np.mean(np.abs(predicted - measured)))
        if few
        else gmae(np.exp(predicted), np.exp(measured))
    )
