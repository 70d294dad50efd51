"""Error of each part of a measured point's prediction: the active time, and the step with several kinds of overheads."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.step_prediction import StepParts, predict_step
from pipeline.answers.who_answers import overhead_statistics, overheads_from
from pipeline.arrays import Array
from pipeline.kernels.family_model import find_families
from pipeline.measured.campaign_reader import profiled_kernel_us, read_traces
from pipeline.paths import CAMPAIGN
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.show.kernel_runs import TEST_PREDICTIONS
from pipeline.simulate.assembly import assemble
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.load import load_trace

ACTIVE = "device active time"
UNSEEN_ACTIVE = "device active time, without these shapes"
OWN_OVERHEADS = "step, overheads of this workload"
SHARED_OVERHEADS = "step, overheads of other models"
UNLIKE_OVERHEADS = "step, overheads of other kinds of models"
KERNEL_SUM = "sum of its kernels alone"
PARTS = (ACTIVE, UNSEEN_ACTIVE, OWN_OVERHEADS, SHARED_OVERHEADS, UNLIKE_OVERHEADS, KERNEL_SUM)
"""Names of the parts, as legends show them."""


NO_SHAPE = ("latency_us", "predicted_us", "kernel_us", "p10_us", "p90_us", "floor_us")
"""Columns of a table of test predictions that say nothing of a call's shape."""

COLUMNS = ["gpu", "workload", "part", "predicted_us", "measured_us"]


def error_parts(
    prediction: Prediction,
    active_us: float | None = None,
    own_us: float | None = None,
    shared_us: float | None = None,
    unlike_us: float | None = None,
    unseen_us: float | None = None,
) -> pd.DataFrame:
    """Rows of one point, in the order of `PARTS`.

    Parts without evidence are left out. The table is empty where no step was measured.

    Args:
        prediction: of the point.
        active_us: device active time that the profiler measured.
        own_us: the step predicted from this workload's own overheads; None stands for the prediction itself.
        shared_us: the step predicted only from overheads of other models.
        unlike_us: the same from other kinds of models (`kinds`).
        unseen_us: active time predicted by models that have not seen the shapes of its kernels.
    """
    step = prediction.measured_us
    if step is None:
        return pd.DataFrame(columns=COLUMNS)
    values = (
        (ACTIVE, prediction.active_us, active_us),
        (UNSEEN_ACTIVE, unseen_us, active_us),
        (OWN_OVERHEADS, prediction.predicted_us if own_us is None else own_us, step),
        (SHARED_OVERHEADS, shared_us, step),
        (UNLIKE_OVERHEADS, unlike_us, step),
        (KERNEL_SUM, sum(prediction.families_us.values()) or None, step),
    )
    rows = [
        (prediction.gpu, prediction.label, part, predicted, measured)
        for part, predicted, measured in values
        if predicted is not None and measured is not None
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def measured_active_us(evidence: Path, workload: str) -> float | None:
    """Median device active time of a workload's profiled iterations, without the first where there are several.

    Args:
        evidence: its trace, or the manifest of a campaign. A campaign without a trace of it gives the kernel time of
            its profile, which is the same on one stream.
        workload: `model/variant/b<batch>`.
    """
    if evidence.name != CAMPAIGN:
        return _median_active_us(evidence)
    for member in read_traces(evidence.parent):
        if member.workload == workload:
            with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
                return _median_active_us(member.extract(Path(scratch))[0])
    return profiled_kernel_us(evidence.parent, workload)


def _median_active_us(trace: Path) -> float | None:
    chosen = TraceSelection.of(load_trace(trace)).chosen
    values = [iteration.active_us for iteration in (chosen[1:] or chosen)]
    return float(np.median(values)) if values else None


def parts_of(
    prediction: Prediction, evidence: Path, step: MeasuredStep, observations: pd.DataFrame
) -> pd.DataFrame:
    """Rows of a point on a profiled host (see `error_parts`); only a step with a trace has overheads of its own.

    Args:
        prediction: of the point.
        evidence: its trace, or the manifest of its GPU's campaign.
        step: what its prediction was made from.
        observations: `overhead_samples` of the host, of all workloads.
    """
    traced, (model, *_) = observations["workload"], step.question.step_name.split("/")
    own_us, shared_us, unlike_us = (
        step.step_us(observations[rows])
        for rows in (
            traced == step.question.step_name,
            traced.str.partition("/")[0] != model,
            kinds(traced) != model.partition("_")[0],
        )
    )
    active_us = measured_active_us(evidence, step.question.step_name)
    unseen_us = step.unseen_active_us(prediction.active_us)
    parts = error_parts(prediction, active_us, own_us, shared_us, unlike_us, unseen_us)
    return parts if own_us is not None else parts[parts["part"] != OWN_OVERHEADS]


def kinds(workloads: pd.Series) -> pd.Series:
    """The kind of each workload's model, its name up to a `_`: all DLRMs are one, `resnet50` is another."""
    return workloads.str.extract("([^_/]*)", expand=False)


def unseen_factors(calls: pd.DataFrame, tested: pd.DataFrame) -> Array:
    """What a model of other shapes predicts over what the model predicts, for calls of one family; shape (rows,).

    Args:
        calls: the calls.
        tested: the model's samples with predictions of models that have not seen their shapes (`FittedFamily.test`). It is 1
            for calls of other shapes, and 1 for samples that no such model predicted.
    """
    names = [name for name in tested if name in calls and name not in NO_SHAPE]
    asked, known = (
        table[names].convert_dtypes().astype(object).fillna("").astype(str).agg("|".join, axis=1)
        for table in (calls, tested)
    )
    logs: pd.Series = (tested["predicted_us"] / tested["kernel_us"]).map(np.log)
    ratio = logs.groupby(known).mean()
    return np.asarray(np.exp(asked.map(ratio).fillna(0.0)), np.float64)


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step: the question, operators with device calls, and kernel models."""

    question: Question
    parts: StepParts
    kernels: KernelPredictor

    def step_us(self, observations: pd.DataFrame) -> float | None:
        """The step predicted from these observations (`overhead_samples` of the host); None if there are none."""
        question, name = self.question, self.question.step_name
        if observations.empty:
            return None
        own = (observations["workload"] == name).all()
        settings = replace(question.overheads, observations="own" if own else "pooled")
        overheads = overheads_from(
            overhead_statistics(observations, question.host.observations, settings),
            settings,
            question.host,
            name,
        )
        program = assemble(self.parts.sequence, overheads, len(self.parts.which), workload=name)
        folders = self.kernels.folders
        step = predict_step(question, self.parts, self.times, folders, program, with_interval=False)
        return step.prediction.predicted_us

    @cached_property
    def times(self) -> pd.DataFrame:
        """Predicted times of the distinct device calls."""
        return self.kernels.predict(self.parts.calls)

    def unseen_active_us(self, active_us: float) -> float | None:
        """The active time if each kernel whose shape was a sample took what models of the other shapes predict.

        None without tables of such predictions: packs ship none.
        """
        files = {
            name: path / TEST_PREDICTIONS
            for name, path in find_families(self.kernels.folders).items()
        }
        tested = {name: pd.read_parquet(file) for name, file in files.items() if file.is_file()}
        if not tested:
            return None
        launches = np.bincount(self.parts.which, minlength=len(self.parts.calls))
        us = launches * self.times["kernel_us"].to_numpy(float)
        unseen = us.copy()
        for family, rows in self.parts.calls.groupby("family").indices.items():
            if family in tested:
                unseen[rows] *= unseen_factors(self.parts.calls.iloc[rows], tested[str(family)])
        return active_us * float(unseen.sum() / us.sum())
