"""Error of each part of a measured point's prediction: the active time, and the step with two kinds of overheads."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.step_prediction import StepParts, predict_step
from pipeline.answers.who_answers import overhead_statistics, overheads_from
from pipeline.measured.campaign_reader import profiled_kernel_us, read_traces
from pipeline.paths import CAMPAIGN
from pipeline.prediction import Prediction
from pipeline.question.question import Question
from pipeline.simulate.program import assemble
from pipeline.simulate.trace_selection import TraceSelection
from pipeline.trace.load import load_trace

ACTIVE = "device active time"
OWN_OVERHEADS = "step, overheads of this workload"
SHARED_OVERHEADS = "step, overheads of other workloads"
KERNEL_SUM = "sum of its kernels alone"
PARTS = (ACTIVE, OWN_OVERHEADS, SHARED_OVERHEADS, KERNEL_SUM)
"""Names of the parts, as legends show them."""

COLUMNS = ["gpu", "workload", "part", "predicted_us", "measured_us"]


def error_parts(
    prediction: Prediction,
    active_us: float | None = None,
    own_us: float | None = None,
    shared_us: float | None = None,
) -> pd.DataFrame:
    """Rows of one point, in the order of `PARTS`.

    Parts without evidence are left out. The table is empty where no step was measured.

    Args:
        prediction: of the point.
        active_us: device active time that the profiler measured.
        own_us: the step predicted from this workload's own overheads; None stands for the prediction itself.
        shared_us: the step predicted only from overheads of other workloads.
    """
    step = prediction.measured_us
    if step is None:
        return pd.DataFrame(columns=COLUMNS)
    values = (
        (ACTIVE, prediction.active_us, active_us),
        (OWN_OVERHEADS, prediction.predicted_us if own_us is None else own_us, step),
        (SHARED_OVERHEADS, shared_us, step),
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
    own_us = step.step_us(observations, own=True)
    active_us = measured_active_us(evidence, step.question.step_name)
    parts = error_parts(prediction, active_us, own_us, step.step_us(observations, own=False))
    return parts if own_us is not None else parts[parts["part"] != OWN_OVERHEADS]


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step: the question, operators with device calls, and kernel models."""

    question: Question
    parts: StepParts
    kernels: KernelPredictor

    def step_us(self, observations: pd.DataFrame, own: bool) -> float | None:
        """The step predicted from overheads of this workload only, or of all others; None if they were not profiled.

        Args:
            observations: `overhead_samples` of the host, of all workloads.
            own: True for this workload only, False for all others.
        """
        question, name = self.question, self.question.step_name
        chosen = observations[(observations["workload"] == name) == own]
        if chosen.empty:
            return None
        settings = replace(question.overheads, observations="own" if own else "pooled")
        overheads = overheads_from(
            overhead_statistics(chosen, question.host.observations, settings),
            settings,
            question.host,
            name,
        )
        program = assemble(self.parts.sequence, overheads, len(self.parts.which), workload=name)
        times = self.kernels.predict(self.parts.calls)
        folders = self.kernels.folders
        step = predict_step(question, self.parts, times, folders, program, with_interval=False)
        return step.prediction.predicted_us
