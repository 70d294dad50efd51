"""One predicted step from its parts: graph, device calls, kernel models and overheads.

The interval comes from the errors of kernel and host times (`step_errors`): the step is simulated for many draws of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.dtype_notes import asks_tf32, dtype_notes
from pipeline.answers.kernel_predictor import KernelPredictor, distinct_calls
from pipeline.answers.step_errors import ErrorSources, StepErrors, paired_draws, step_interval
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import FAMILIES, Law
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.prediction import Prediction
from pipeline.settings import PredictSettings
from pipeline.simulate.break_even import device_bound_from
from pipeline.simulate.compiled_walk import load_if_it_pays
from pipeline.simulate.critical_path import Form, simulate
from pipeline.simulate.cuda_graph import as_cuda_graphs
from pipeline.simulate.program import assemble, step_sequence
from pipeline.simulate.step_program import Program, StepSequence
from pipeline.simulate.timeline import Timeline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MODELLED_DTYPES = ("fp32", "tf32", "bf16", "fp16")
"""Dtypes of matrix products and convolutions whose rates are in the GPU files and whose kernels have models."""


@dataclass(frozen=True)
class Subject:
    """What is predicted: names for the result, and the step's memory need in bytes."""

    model: str
    variant: str
    batch_size: int
    memory_bytes: int
    overrides: tuple[str, ...] = ()
    workload: str | None = None
    """Name of this workload in the overhead statistics, if they have its observations."""
    settings: PredictSettings = field(default_factory=PredictSettings)
    host: str = ""
    """The host that the overheads belong to, for people."""
    warnings: tuple[str, ...] = ()
    """What the capture of the step reported."""


@dataclass(frozen=True)
class StepParts:
    """What a prediction needs of a captured step and its device calls.

    Attributes:
        sequence: items and actions of the step.
        calls: distinct calls, `calls` schema.
        which: row of `calls` for each device call, shape (calls,).
        names: name of the operator of each device call, shape (calls,).
        asks_tf32: whether an operator computes in TF32 where the GPU has it.
        sources: sources of error of the distinct calls.
        substitute: whether the time of each distinct call is only a substitute (`has_substitute_time`).
    """

    sequence: StepSequence
    calls: pd.DataFrame
    which: Ints
    names: npt.NDArray[np.object_]
    asks_tf32: bool
    sources: ErrorSources
    substitute: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, graph: pd.DataFrame, calls: pd.DataFrame) -> StepParts:
        """From operators (`graph` schema) and device calls (`calls` schema).

        Raises:
            TableError: a call names a node that the graph does not have.
        """
        distinct, which = distinct_calls(calls)
        names = calls["node_id"].map(graph.set_index("node_id")["name"]).astype(object).to_numpy()
        return cls(
            step_sequence(graph, calls), distinct, which, names, asks_tf32(graph), ErrorSources.of(distinct),
            has_substitute_time(distinct),
        )  # fmt: skip


PLAIN_WALKS = 2_600
"""Draws whose time equals that of the walks that look for a faster host (`device_bound_from`), in code that is not compiled:
thirteen walks, each with the fixed cost of 200 draws."""


def load_walk_if_it_pays(steps: Iterable[tuple[StepParts, Subject]]) -> None:
    """Load the compiled walk where it pays for these steps."""
    load_if_it_pays(sum(len(parts.which) * (subject.settings.draws + PLAIN_WALKS) for parts, subject in steps))


def predict_from_parts(
    subject: Subject,
    gpu: GpuSpec,
    graph: pd.DataFrame,
    calls: pd.DataFrame,
    kernels: KernelPredictor,
    overheads: OverheadModel,
    measured_us: float | None = None,
) -> tuple[Prediction, Timeline]:
    """Predict one step, with its times by operator and device call.

    Args:
        subject: names, memory and settings.
        gpu: the device, for its memory.
        graph: operators, `graph` schema.
        calls: device calls, `calls` schema.
        kernels: kernel models of the device.
        overheads: host overheads.
        measured_us: an unprofiled measurement to show beside the prediction; it does not change the prediction.

    Returns:
        The prediction, and the timeline of its central draw.
    """
    step = StepParts.of(graph, calls)
    predicted = kernels.predict(step.calls)
    program = assemble(step.sequence, overheads, len(step.which), workload=subject.workload)
    prediction, timeline = predict_step(subject, gpu, step, predicted, kernels.folders, program, measured_us)
    table = timeline.to_frame(calls, predicted.iloc[step.which])
    return replace(prediction, calls=table), timeline


def predict_step(
    subject: Subject,
    gpu: GpuSpec,
    step: StepParts,
    predicted: pd.DataFrame,
    folders: tuple[str, ...],
    program: Program,
    measured_us: float | None = None,
    keep_draws: bool = False,
) -> tuple[Prediction, Timeline]:
    """Predict one step from predicted kernel times.

    Args:
        subject: names, memory and settings.
        gpu: the device, for its memory.
        step: operators and device calls.
        predicted: what the kernel models predict for `step.calls`.
        folders: folders that these models were read from.
        program: `step.sequence` with host times.
        measured_us: as for `predict_from_parts`.
        keep_draws: whether the prediction holds the step time of each of `paired_draws`.

    Returns:
        The prediction without its `calls`, and the timeline of its central draw.
    """
    settings = subject.settings
    form: Form = "published" if settings.critical_path == "published" else "full"
    if settings.cuda_graph:
        program, measured_us = as_cuda_graphs(program), None  # the measured step launched each kernel separately
    kernel_us = predicted["kernel_us"].to_numpy(float)
    central = kernel_us[step.which]
    timeline = simulate(program, central, form=form)
    errors = StepErrors.of(step.sources, predicted, program.host_evidence)
    low, high = step_interval(errors, timeline, step.which, settings.draws, settings.seed, form)
    step_us = float(timeline.step_us[0])
    ran = ~np.isnan(timeline.device_start[:, 0])
    busy = np.where(ran, central, 0.0)
    total = float(busy.sum()) or 1.0
    by_call = np.asarray(np.bincount(step.which, weights=busy, minlength=len(kernel_us)), np.float64)
    lost = step.substitute | ~predicted["modelled"].to_numpy(bool)
    unmodelled = lost[step.which]
    prediction = Prediction(
        gpu=gpu.name,
        model=subject.model,
        variant=subject.variant,
        batch_size=subject.batch_size,
        predicted_us=step_us,
        active_us=float(timeline.active_us[0]),
        host_us=float(timeline.host_us[0]),
        p10_us=min(low, step_us),
        p90_us=max(high, step_us),
        memory_bytes=subject.memory_bytes,
        fits=subject.memory_bytes <= gpu.memory_bytes,
        evidence=_sums(by_call, predicted["evidence"].to_numpy(object), 1 / total),
        host_evidence={kind: float(share) for kind, share in program.host_evidence.items() if share > 0},
        unmodelled_share=float(by_call[lost].sum()) / total,
        families_us=_sums(by_call, step.calls["family"].to_numpy(object)),
        unmodelled_us=_sums(busy[unmodelled], step.names[unmodelled]),
        bound=timeline.bound,
        host=subject.host,
        device_bound_from=device_bound_from(program, central, form) if timeline.bound == "host" else None,
        measured_us=measured_us,
        overrides=subject.overrides,
        models_from=folders,
        warnings=(*subject.warnings, *dtype_notes(gpu, step.asks_tf32, step.calls)),
        draws_us=paired_draws(errors, program, step.which, settings.draws, settings.seed, form) if keep_draws else None,
    )
    return prediction, timeline


def kernel_times(kernels: KernelPredictor, steps: Sequence[StepParts]) -> dict[int, pd.DataFrame]:
    """Times of the distinct calls of each step, by the `id` of the step, from one table of the calls of all steps."""
    distinct = list({id(each): each for each in steps}.values())
    found = kernels.predict(pd.concat([each.calls for each in distinct], ignore_index=True))
    ends = np.cumsum([len(each.calls) for each in distinct])
    return {id(each): found.iloc[end - len(each.calls) : end] for each, end in zip(distinct, ends, strict=True)}


def has_substitute_time(calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Calls whose times are only substitutes, shape (calls,).

    - Operators that the map does not know are timed by their bytes.
    - Arithmetic in dtypes without a modelled rate (fp64, complex, integers) is timed as fp32.
    """
    unknown = (calls["family"] == "other") & (calls["op"] == "unknown")
    computed = calls["family"].map(lambda name: name in FAMILIES and FAMILIES[name].law is Law.COMPUTE)
    foreign = computed.astype(bool) & calls["dtype"].notna() & ~calls["dtype"].isin(MODELLED_DTYPES)
    return np.asarray(unknown | foreign, dtype=bool)


def _sums(us: Floats, keys: npt.NDArray[np.object_], factor: float = 1.0) -> dict[str, float]:
    """Device time by key, largest first, keys without time left out."""
    codes, names = pd.factorize(keys)
    sums = np.bincount(codes, weights=us, minlength=len(names)) * factor
    order = np.argsort(-sums, kind="stable")
    return {str(names[place]): float(sums[place]) for place in order if sums[place] > 0}
