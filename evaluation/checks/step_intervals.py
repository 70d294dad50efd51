"""The errors of a predicted step, and its interval from plain draws: what the benchmarks of intervals compare with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.answers.engine import STEPS, AvailableModels
from pipeline.answers.step_errors import HOST, StepErrors, keyed_normals
from pipeline.answers.step_prediction import StepParts
from pipeline.question.question import Question
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import assemble
from pipeline.simulate.step_draws import step_times
from pipeline.simulate.timeline import Timeline

Ints = npt.NDArray[np.int64]


def step_of(question: Question) -> tuple[StepErrors, Timeline, Ints]:
    """Errors and timeline of a question that is answered from shipped models, and the distinct call of each device call.

    Raises:
        SteptimeError: the step cannot be made, or the GPU does not exist.
    """
    models = AvailableModels(None)
    parts = StepParts.of(STEPS.graph(question), STEPS.calls(question))
    program = assemble(parts.sequence, models.overheads(question), len(parts.which), workload=question.step_name)
    predicted = models.kernels(question).predict(parts.calls)
    timeline = simulate(program, predicted["kernel_us"].to_numpy(float)[parts.which])
    return StepErrors.of(parts.sources, predicted, program.host_evidence), timeline, parts.which


def plain_interval(errors: StepErrors, timeline: Timeline, which: Ints, draws: int, seed: int) -> tuple[float, float]:
    """p10 and p90 of the step time in µs from draws of all errors; arguments are those of `step_interval`."""
    normals = keyed_normals(errors.sources.names, draws, seed)
    steps = step_times(timeline.program, errors.times(normals), which, np.exp(errors.host * normals[HOST]))
    low, high = np.percentile(steps, [10, 90])
    return float(low), float(high)
