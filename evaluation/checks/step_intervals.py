"""The errors of a predicted step, and its interval from plain draws: what the benchmarks of intervals compare with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.answers.gpu_figures import gpu_of
from pipeline.answers.host_overheads import overhead_model
from pipeline.answers.kernel_models import available_models, kernel_predictor
from pipeline.answers.predict_point import graph_of
from pipeline.answers.predict_step import StepParts
from pipeline.answers.step_errors import HOST, StepErrors, keyed_normals
from pipeline.config import Point, method_label
from pipeline.graph.graph_cache import calls_of
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import assemble
from pipeline.simulate.step_draws import step_times
from pipeline.simulate.timeline import Timeline

Ints = npt.NDArray[np.int64]


def step_of(point: Point) -> tuple[StepErrors, Timeline, Ints]:
    """Errors and timeline of a point that is predicted from shipped models, and the distinct call of each device call.

    Raises:
        SteptimeError: the step cannot be made, or the GPU does not exist.
    """
    gpu, config, variant = gpu_of(point.settings.gpu), point.settings.model, method_label(point.settings.kernels)
    graph = graph_of(config, point.batch_size)
    parts = StepParts.of(graph.table, calls_of(graph, config.plain(), point.batch_size, gpu))
    overheads = overhead_model(point.gpu, point.settings.overheads, None, point.workload)
    program = assemble(parts.sequence, overheads, len(parts.which), workload=point.workload)
    predicted = kernel_predictor(gpu, variant, available_models(point.gpu, variant, None)).predict(parts.calls)
    timeline = simulate(program, predicted["kernel_us"].to_numpy(float)[parts.which])
    return StepErrors.of(parts.sources, predicted, program.host_evidence), timeline, parts.which


def plain_interval(errors: StepErrors, timeline: Timeline, which: Ints, draws: int, seed: int) -> tuple[float, float]:
    """p10 and p90 of the step time in µs from draws of all errors; arguments are those of `step_interval`."""
    normals = keyed_normals(errors.sources.names, draws, seed)
    steps = step_times(timeline.program, errors.times(normals), which, np.exp(errors.host * normals[HOST]))
    low, high = np.percentile(steps, [10, 90])
    return float(low), float(high)
