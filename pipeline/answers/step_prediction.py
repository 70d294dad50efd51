"""One predicted step from its parts: graph, device calls, kernel models and overheads.

The interval comes from the errors of kernel and host times (`step_errors`): the step is simulated for many draws of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.arithmetic import arithmetic_of, model_flops
from pipeline.answers.drawn_step import DrawnStep
from pipeline.answers.kernel_predictor import (
    KernelPredictor,
    distinct_calls,
    substitute_spread,
)
from pipeline.answers.step_errors import ErrorSources, StepErrors, interval
from pipeline.answers.step_notes import (
    asks_tf32,
    dtype_notes,
    lower_bound_notes,
    unmeasured_notes,
)
from pipeline.answers.who_answers import host_name
from pipeline.arrays import Array, Flags, Ints, Texts
from pipeline.graph.gpu_memory import needed_bytes
from pipeline.graph.table import Graph, Memory
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import clock_notes
from pipeline.prediction import Drawn, Prediction
from pipeline.prediction_parts import PARALLEL, SeveralGpus, lacking_models
from pipeline.question.question import Question
from pipeline.question.settings import PredictSettings
from pipeline.question.several_gpus import Ranks
from pipeline.simulate.assembly import StepSequence, step_sequence
from pipeline.simulate.critical_path import load_if_it_pays
from pipeline.simulate.program import Program
from pipeline.simulate.program_changes import device_bound_from
from pipeline.simulate.ranks import Role, simulate_ranks
from pipeline.simulate.timeline import Timeline


@dataclass(frozen=True)
class StepParts:
    """What a prediction needs of a captured step and its device calls.

    Attributes:
        graph: the captured step.
        sequence: items and actions of the step.
        all_calls: device calls, `calls` schema.
        calls: distinct calls, as of `distinct_calls`.
        which: number of the distinct call that each device call is, shape (calls,).
        asks_tf32: whether an operator computes in TF32 where the GPU has it.
        substitute: whether the time of each distinct call is only a substitute (`substitute_spread`).
        model_flops: FLOPs that the model needs, by dtype, the largest first.
        computed: what the code of the step computes with (`Graph.computed`); the dtype is that of most FLOPs.
    """

    graph: Graph
    sequence: StepSequence
    all_calls: pd.DataFrame
    calls: pd.DataFrame
    which: Ints
    asks_tf32: bool
    substitute: Flags
    model_flops: Mapping[str, float]
    computed: Mapping[str, str]

    @classmethod
    def of(cls, graph: Graph, calls: pd.DataFrame) -> StepParts:
        """From a captured graph and its device calls (`calls` schema).

        Raises:
            TableError: a call names a node that the graph does not have.
        """
        operators = graph.table
        distinct, which = distinct_calls(calls)
        flops, computed = model_flops(operators, calls), graph.computed
        if (
            "dtype" in computed
            and flops
            and not {computed["dtype"], next(iter(flops))} <= {"default", "fp32", "tf32"}
        ):
            computed = {**computed, "dtype": next(iter(flops))}
        return cls(
            graph,
            step_sequence(operators, calls),
            calls,
            distinct,
            which,
            asks_tf32(operators),
            substitute_spread(distinct) > 1.0,
            flops,
            computed,
        )

    @property
    def memory(self) -> Memory:
        """Memory need of the step."""
        return self.graph.memory

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the capture of the step reported."""
        return self.graph.warnings

    @property
    def parameters(self) -> Mapping[str, int]:
        """Number of parameters that each module holds itself, by its path."""
        return self.graph.parameters

    @cached_property
    def names(self) -> Texts:
        """Name of the operator of each device call, shape (calls,)."""
        return self._of_calls("name")

    @cached_property
    def modules(self) -> Texts:
        """Path of the module of each device call, shape (calls,); None outside modules."""
        return self._of_calls("module")

    @cached_property
    def item_modules(self) -> Texts:
        """Path of the module of each item of `sequence`, shape (items,); None outside modules."""
        operators = self.graph.table
        module_of = pd.Series(operators["module"].to_numpy(object), operators["node_id"])
        return module_of.reindex(self.sequence.items.node).to_numpy(object)

    def _of_calls(self, column: str) -> Texts:
        operators = self.graph.table
        row = pd.Index(operators["node_id"]).get_indexer(self.all_calls["node_id"])
        values: Texts = operators[column].to_numpy(object)[row]
        return values

    @cached_property
    def families(self) -> Texts:
        """Kernel family of each distinct call, shape (distinct calls,)."""
        return self.calls["family"].to_numpy(object)

    @cached_property
    def kinds(self) -> frozenset[tuple[str, str, str]]:
        """Family, operation and dtype of the calls."""
        return frozenset(zip(self.families, self.calls["op"], self.calls["dtype"], strict=True))

    @cached_property
    def sources(self) -> ErrorSources:
        """Sources of error of the distinct calls."""
        return ErrorSources.of(self.calls)

    def shown_calls(self, predicted: pd.DataFrame) -> pd.DataFrame:
        """All device calls with their modules, and p10, p90 and evidence of their predicted times."""
        columns = {
            name: predicted[name].to_numpy()[self.which]
            for name in ("p10_us", "p90_us", "evidence")
        }
        return self.all_calls.assign(module=self.modules, **columns)


PLAIN_WALKS = 5_600
"""Draws whose time equals that of the walks that look for a faster host (`device_bound_from`), in code that is not compiled:
two walks for each of fourteen hosts, each with the fixed cost of 200 draws."""


def load_walk_if_it_pays(steps: Iterable[tuple[StepParts, PredictSettings]]) -> None:
    """Load the compiled walk where it pays for these steps."""
    load_if_it_pays(
        sum(len(parts.which) * (settings.draws + PLAIN_WALKS) for parts, settings in steps)
    )


@dataclass(frozen=True)
class SimulatedStep:
    """A predicted step with its timeline and, where it has an interval, the errors of its times.

    `shown`: the number of the piece or role whose timeline it is; `other`: the number of another role, with its timeline.
    """

    prediction: Prediction
    timeline: Timeline
    drawn: Drawn | None
    shown: int = 0
    other: tuple[int, Timeline] | None = None


def predict_step(
    question: Question,
    step: StepParts,
    predicted: pd.DataFrame,
    folders: tuple[str, ...],
    program: Program,
    measured_us: float | None = None,
    with_interval: bool = True,
) -> SimulatedStep:
    """Predict one step from predicted kernel times.

    Args:
        question: what is asked.
        step: operators and device calls.
        predicted: what the kernel models predict for `step.calls`.
        folders: folders that these models were read from.
        program: `step.sequence` with host times, as section `predict` has it run.
        measured_us: an unprofiled measurement to show beside the prediction; it does not change the prediction.
        with_interval: whether errors are drawn. Without them, p10 and p90 are the step time, and it is not known from which
            host on the device is the limit.
    """
    if question.predict.cuda_graph:  # the measured step launched each kernel separately
        measured_us = None
    central_us = predicted["kernel_us"].to_numpy(float)[step.which]
    (timeline,) = simulate_ranks([Role(program, central_us)])
    drawn = _drawn_step(question, step, predicted, program) if with_interval else None
    ran = ~np.isnan(timeline.device_start[:, 0])
    prediction = answered(
        question,
        step,
        device_time([(step, predicted, np.where(ran, central_us, 0.0))]),
        drawn,
        **memory_fields(question.gpu, needed_bytes(step.memory, question.gpu)),
        **timeline_fields(timeline, program, central_us if with_interval else None),
        arithmetic=arithmetic_of(question.gpu, step.model_flops),
        measured_us=measured_us,
        several=_several(question, timeline),
        models_from=folders,
    )
    return SimulatedStep(prediction, timeline, drawn)


def answered(
    question: Question,
    step: StepParts,
    device: Mapping[str, Any],
    drawn: Drawn | None,
    predicted_us: float,
    **fields: Any,
) -> Prediction:
    """A prediction with its interval, from `fields` and those of `device_time`; without draws, p10 and p90 are the step time."""
    draws_us = drawn.step_us() if drawn else None
    low = high = predicted_us
    if draws_us is not None:
        low, high = interval(draws_us, predicted_us)
    return Prediction(
        **answer_fields(question, step, device),
        **device,
        **fields,
        predicted_us=predicted_us,
        p10_us=low,
        p90_us=high,
        draws_us=draws_us,
    )


def timeline_fields(
    timeline: Timeline, program: Program, central_us: Array | None
) -> dict[str, Any]:
    """Fields of a `Prediction` that a simulated step has; with the times of its calls also from which host on the GPU limits it."""
    faster = None
    if central_us is not None and timeline.bound == "host":
        faster = device_bound_from(program, central_us)
    return {
        "predicted_us": float(timeline.step_us[0]),
        "active_us": float(timeline.active_us[0]),
        "host_us": float(timeline.host_us[0]),
        "host_evidence": program.host_shares,
        "bound": timeline.bound,
        "device_bound_from": faster,
    }


def _drawn_step(
    question: Question, step: StepParts, predicted: pd.DataFrame, program: Program
) -> DrawnStep:
    """The step with the errors of its times."""
    settings, evidence = question.predict, program.host_evidence
    errors = StepErrors.of(step.sources, predicted, evidence, question)
    of = question.gpu.name, settings.draws, settings.seed, question.host.name
    return DrawnStep(errors, program, step.which, step.all_calls, *of)


def _unused_dtype(question: Question, step: StepParts) -> list[str]:
    """A sentence where the code of the step computes in another dtype than was asked for, if its capture did not say so."""
    asked, dtype = question.workload.get("dtype"), step.computed.get("dtype")
    warned = any(text.startswith("model.dtype") for text in step.warnings)
    known = dtype is None or warned or asked in (None, "default", dtype)
    return [] if known else [f"model.dtype={asked}: the step computes in {dtype}"]


def answer_fields(question: Question, step: StepParts, device: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Prediction` without times: what was asked, and what to know about the step.

    Args:
        question: what is asked.
        step: operators and device calls.
        device: the fields of `device_time`.
    """
    gpu, warnings = question.gpu, [*step.warnings, *_unused_dtype(question, step)]
    explicit_tf32 = step.asks_tf32 and question.workload.get("dtype") != "default"
    lacking = lacking_models(device["unmodelled_share"], device["unmodelled_us"])
    warnings += dtype_notes(gpu, explicit_tf32, step.kinds) + lower_bound_notes(lacking)
    return {
        "gpu": gpu.name,
        "model": question.model,
        "variant": question.variant,
        "batch_size": question.batch_size,
        "host": host_name(question.host, question.overheads),
        "overrides": question.overrides,
        "stated": question.stated,
        "own_price": question.own_price,
        "work": question.work,
        "asked": {**question.asked, **step.computed},
        "notes": (*question.notes, *clock_notes(gpu), *unmeasured_notes(gpu)),
        "warnings": tuple(warnings),
    }


def memory_fields(gpu: GpuSpec, need: int) -> dict[str, Any]:
    """Fields of a `Prediction` about its need of memory, in bytes."""
    fits = need <= gpu.usable_memory_bytes
    return {"memory_bytes": need, "fits": fits, "tight": gpu.tight_memory_bytes < need and fits}


def _several(question: Question, timeline: Timeline) -> SeveralGpus | None:
    """What is particular of a step on several GPUs, without its efficiency."""
    if question.ranks is None:
        return None
    return several_gpus(question.ranks, *timeline.communication_us)


def several_gpus(ranks: Ranks, communication_us: float, exposed_us: float) -> SeveralGpus:
    """What is particular of a step on several GPUs, from how they share it and the time of their exchange."""
    shared = {name: getattr(ranks.parallel, name) for name in PARALLEL}
    at = ranks.devices, ranks.nodes, ranks.cluster.name
    return SeveralGpus(*at, communication_us, exposed_us, dp=ranks.replicas, **shared)


def device_time(pieces: Sequence[tuple[StepParts, pd.DataFrame, Array]]) -> dict[str, Any]:
    """Device time by evidence (as shares), family and operator without a model, as fields of a `Prediction`.

    Args:
        pieces: steps, what is predicted for the distinct calls of each, and the device time of its calls in µs, shape (calls,).
    """
    sums, lost_us = list[Array](), list[Array]()
    evidence, families, lost, lost_names = ([] for _ in range(4))
    for step, predicted, times in pieces:
        substitute = step.substitute | ~predicted["modelled"].to_numpy(bool)
        sums.append(np.bincount(step.which, times, len(step.calls)).astype(float))
        evidence.append(predicted["evidence"].to_numpy(object))
        families.append(step.families)
        lost.append(substitute)
        if substitute.any():
            rows = substitute[step.which]
            lost_us.append(times[rows])
            lost_names.append(step.names[rows])
    us = np.concatenate(sums)
    total_us = float(us.sum()) or 1.0
    return {
        "evidence": _sums(us, np.concatenate(evidence), 1 / total_us),
        "unmodelled_share": float(us[np.concatenate(lost)].sum()) / total_us,
        "families_us": _sums(us, np.concatenate(families)),
        "unmodelled_us": _sums(np.concatenate(lost_us), np.concatenate(lost_names))
        if lost_us
        else {},
    }


def calls_of_all(steps: Iterable[StepParts]) -> tuple[pd.DataFrame, dict[int, Ints]]:
    """The distinct calls of several steps, and which of them the distinct calls of each step are, by the `id` of the step."""
    parts = {id(step): step for step in steps}
    table = pd.concat([step.calls for step in parts.values()], ignore_index=True)
    distinct, which = distinct_calls(table)
    ends = np.cumsum([len(step.calls) for step in parts.values()])
    return distinct, dict(zip(parts, np.split(which, ends[:-1]), strict=True))


def kernel_times(
    kernels: KernelPredictor, distinct: pd.DataFrame, rows: Mapping[int, Ints]
) -> dict[int, pd.DataFrame]:
    """Times of the calls of steps on one GPU, by the key of the step; `rows` are those of each step in `distinct`."""
    all_rows = np.concatenate(list(rows.values()))
    times = kernels.predict_distinct(distinct.iloc[np.unique(all_rows)]).loc[all_rows]
    ends = np.cumsum([len(own) for own in rows.values()])
    return {
        step: times.iloc[end - len(own) : end]
        for (step, own), end in zip(rows.items(), ends, strict=True)
    }


def _sums(us: Array, keys: Texts, factor: float = 1.0) -> dict[str, float]:
    """Device time by key, largest first, keys without time left out."""
    codes, names = pd.factorize(keys)
    sums = np.bincount(codes, weights=us, minlength=len(names)) * factor
    order = np.argsort(-sums, kind="stable")
    return {str(names[row]): float(sums[row]) for row in order if sums[row] > 0}
