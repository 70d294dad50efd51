"""One predicted step from its parts: graph, device calls, kernel models and overheads.

Intervals: kernel times are drawn around their predictions, with the width that the kernel models state and the error
that all kernels of a step share. Host times are drawn with a width by the kind of their evidence. Every draw is walked
along the critical path. Each source of error draws from a generator of its own, whose key is the seed and the name of
the source. Other calls, their order and the last digits of predicted times therefore do not change what a source draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.dtype_notes import dtype_notes
from pipeline.answers.kernel_predictor import KernelPredictor, distinct_calls
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import FAMILIES, Law
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.prediction import Prediction
from pipeline.schemas import DIMS
from pipeline.settings import PredictSettings
from pipeline.simulate.break_even import device_bound_from
from pipeline.simulate.critical_path import Form, simulate
from pipeline.simulate.cuda_graph import as_cuda_graphs
from pipeline.simulate.program import assemble, step_sequence
from pipeline.simulate.step_draws import step_times
from pipeline.simulate.step_program import StepSequence
from pipeline.simulate.timeline import Timeline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

HOST_SIGMA = {"measured": 0.05, "shared": 0.15, "transferred": 0.30}
"""Standard deviation of log host time by evidence. Overheads shared between workloads of calibrated hosts were within
10 to 16 % of those measured, overheads of another host within 41 %."""

FAMILY_VARIANCE_SHARE = {"gemm": 0.9, "bmm": 0.9, "conv2d": 0.2}
OTHER_VARIANCE_SHARE = 0.4
"""Share of a kernel's log-variance that all calls of its family have in common, because the errors of one model have
the same sign. Set from the errors of sums over a family on held-out GPUs (`benchmarks/kernels/shared_errors.py`)."""

STEP_SIGMA_RATIO = 1.5
"""Ratio of the standard deviation that all kernels of a step share to that of one kernel (log time). A GPU's
clocks differ from run to run. Set from the errors of sums over whole models that were measured in another run on the
GPUs of the packs (`benchmarks/kernels/shared_errors.py`)."""

MAX_STEP_SIGMA = 0.10
"""Upper bound of that shared standard deviation (log time). It covers what a step has beyond its kernels: libraries
that fuse or add operators. Set from the mean errors by workload of the published steps that were used for tuning
(`benchmarks/steps/published.py` prints it). That figure has been 0.07 since BERT's steps are predicted with the
optimizers that ran; the bound was kept."""

MODELLED_DTYPES = ("fp32", "tf32", "bf16", "fp16")
"""Dtypes of matrix products and convolutions whose rates are in the GPU files and whose kernels have models."""

NORMAL_P90 = 1.2815515594457412
"""90th percentile of the standard normal distribution."""


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
        attributes: distinct attributes of the operators.
        keys: key of the launch of each distinct call (`launch_keys`).
        substitute: whether the time of each distinct call is only a substitute (`has_substitute_time`).
    """

    sequence: StepSequence
    calls: pd.DataFrame
    which: Ints
    names: npt.NDArray[np.object_]
    attributes: pd.DataFrame
    keys: list[str]
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
            step_sequence(graph, calls), distinct, which, names, graph[["attributes"]].drop_duplicates(),
            launch_keys(distinct), has_substitute_time(distinct),
        )  # fmt: skip


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
    prediction, timeline = predict_step(subject, gpu, step, predicted, kernels.folders, overheads, measured_us)
    table = timeline.to_frame(calls, predicted.iloc[step.which])
    return replace(prediction, calls=table), timeline


def predict_step(
    subject: Subject,
    gpu: GpuSpec,
    step: StepParts,
    predicted: pd.DataFrame,
    folders: tuple[str, ...],
    overheads: OverheadModel,
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
        overheads: host overheads.
        measured_us: as for `predict_from_parts`.
        keep_draws: whether the prediction holds the step time of each draw.

    Returns:
        The prediction without its `calls`, and the timeline of its central draw.
    """
    form: Form = "published" if subject.settings.critical_path == "published" else "full"
    draws, seed = subject.settings.draws, subject.settings.seed
    program = assemble(step.sequence, overheads, len(step.which), workload=subject.workload)
    if subject.settings.cuda_graph:
        program, measured_us = as_cuda_graphs(program), None  # the measured step launched each kernel separately
    central = predicted["kernel_us"].to_numpy(float)[step.which]
    timeline = simulate(program, central, form=form)
    kernel_draws = draw_kernel_times(step.calls, predicted, draws, seed, step.keys)
    host_scale = draw_host_scale(program.host_evidence, draws, seed)
    steps = step_times(program, kernel_draws.times, kernel_draws.which[step.which], host_scale, form)
    step_us = float(timeline.step_us[0])
    low, high = np.percentile(steps, [10, 90])
    ran = ~np.isnan(timeline.device_start[:, 0])
    busy = np.where(ran, central, 0.0)
    lost = (step.substitute | ~predicted["modelled"].to_numpy(bool))[step.which]
    total = float(busy.sum()) or 1.0
    prediction = Prediction(
        gpu=gpu.name,
        model=subject.model,
        variant=subject.variant,
        batch_size=subject.batch_size,
        predicted_us=step_us,
        active_us=float(timeline.active_us[0]),
        host_us=float(timeline.host_us[0]),
        p10_us=float(min(low, step_us)),
        p90_us=float(max(high, step_us)),
        memory_bytes=subject.memory_bytes,
        fits=subject.memory_bytes <= gpu.memory_bytes,
        evidence=_sums(busy, predicted["evidence"].to_numpy(object)[step.which], 1 / total),
        host_evidence={kind: float(share) for kind, share in program.host_evidence.items() if share > 0},
        unmodelled_share=float(busy[lost].sum()) / total,
        families_us=_sums(busy, step.calls["family"].to_numpy(object)[step.which]),
        unmodelled_us=_sums(busy[lost], step.names[lost]),
        bound=timeline.bound,
        host=subject.host,
        device_bound_from=device_bound_from(program, central, form) if timeline.bound == "host" else None,
        measured_us=measured_us,
        overrides=subject.overrides,
        models_from=folders,
        warnings=(*subject.warnings, *dtype_notes(gpu, step.attributes, step.calls)),
        draws_us=steps if keep_draws else None,
    )
    return prediction, timeline


def has_substitute_time(calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Calls whose times are only substitutes, shape (calls,).

    - Operators that the map does not know are timed by their bytes.
    - Arithmetic in dtypes without a modelled rate (fp64, complex, integers) is timed as fp32.
    """
    unknown = (calls["family"] == "other") & (calls["op"] == "unknown")
    computed = calls["family"].map(lambda name: name in FAMILIES and FAMILIES[name].law is Law.COMPUTE)
    foreign = computed.astype(bool) & calls["dtype"].notna() & ~calls["dtype"].isin(MODELLED_DTYPES)
    return np.asarray(unknown | foreign, dtype=bool)


@dataclass(frozen=True)
class KernelDraws:
    """Drawn times of a step's calls; calls of equal key and prediction are stored once."""

    times: Floats
    """Microseconds, shape (distinct calls, draws)."""
    which: Ints
    """Row of each call in `times`, shape (calls,)."""


def draw_kernel_times(
    calls: pd.DataFrame, predicted: pd.DataFrame, draws: int, seed: int, keys: Sequence[str] | None = None
) -> KernelDraws:
    """Log-normal draws of kernel times.

    Three errors add up in log time:

    - Calls of one family share a part of their variance (`FAMILY_VARIANCE_SHARE`). The three directions of a
      convolution are one family here, because one library computes them by the same methods.
    - The rest is independent for each call and has mean one, so that it averages out over a step. Calls with the same
      launch (`launch_keys`) share it, because a model has the same error for a shape in every launch.
    - All kernels of a step share one error: `STEP_SIGMA_RATIO` times a kernel's standard deviation, at most
      `MAX_STEP_SIGMA`.

    Args:
        calls: a `calls` table.
        predicted: what the kernel models predict for it.
        draws: number of draws.
        seed: of the draws.
        keys: `launch_keys(calls)`, if they are known.
    """
    low, high = predicted["p10_us"].to_numpy(float), predicted["p90_us"].to_numpy(float)
    table = pd.DataFrame(
        {"key": launch_keys(calls) if keys is None else keys, "centre": predicted["kernel_us"].to_numpy(float)}
    )
    table["width"] = np.log(np.maximum(high, 1e-9) / np.maximum(low, 1e-9)) / (2 * NORMAL_P90)
    names = calls["family"].astype(str).to_numpy(object)
    table["family"] = ["conv2d" if name.startswith("conv2d") else name for name in names]
    which = np.asarray(table.groupby(["key", "centre", "width"], sort=False).ngroup(), dtype=np.int64)
    table = table[~pd.Series(which).duplicated().to_numpy()]
    centre = table["centre"].to_numpy(float)
    sigma = np.where(centre > 0, np.clip(table["width"].to_numpy(float), 0.0, 1.5), 0.0)
    share = table["family"].map(FAMILY_VARIANCE_SHARE).fillna(OTHER_VARIANCE_SHARE).to_numpy(float)
    group, families = pd.factorize(table["family"])
    alike, launches = pd.factorize(table["key"])
    common = np.sqrt(share) * sigma
    width = np.sqrt(1 - share) * sigma
    step = np.minimum(STEP_SIGMA_RATIO * sigma, MAX_STEP_SIGMA)
    # in place: a language model has a million values
    log_error = keyed_normals([f"family {name}" for name in families], draws, seed)[group]
    log_error *= common[:, None]
    own = keyed_normals([f"launch {key}" for key in launches], draws, seed)[alike]
    own *= width[:, None]
    own -= (width**2 / 2)[:, None]
    log_error += own
    log_error += np.multiply(step[:, None], keyed_normals(["step"], draws, seed), out=own)
    np.exp(log_error, out=log_error)
    log_error *= centre[:, None]
    return KernelDraws(log_error, which)


def draw_host_scale(evidence: Mapping[str, float], draws: int, seed: int) -> Floats:
    """Log-normal factors on all host times, shape (draws,), with a width set by the mix of evidence."""
    sigma = sum(share * HOST_SIGMA.get(kind, max(HOST_SIGMA.values())) for kind, share in evidence.items())
    return np.asarray(np.exp(sigma * keyed_normals(["host"], draws, seed)[0]))


def launch_keys(calls: pd.DataFrame) -> list[str]:
    """A key for each call from what a kernel model reads: family, op, phase, dtype, sizes and attributes.

    Calls without sizes (operators that the map does not know) are distinguished by their bytes.
    """
    words = [name for name in ("family", "op", "phase", "dtype", "attributes") if name in calls]
    sizes = [name for name in DIMS if name in calls]
    traffic = [name for name in ("bytes_read", "bytes_written") if name in calls]
    present = {name: calls[name].notna().to_numpy() for name in (*words, *sizes, *traffic)}
    named, sized, moved = (
        [_stated(calls[name], present[name], form) for name in names if present[name].any()]
        for names, form in ((words, "{}={}"), (sizes, "{}={:.0f}"), (traffic, "{}={:.0f}"))
    )
    keys = []
    for row in range(len(calls)):
        told = [column[row] for column in sized if column[row]] or [column[row] for column in moved if column[row]]
        keys.append(";".join([*(column[row] for column in named if column[row]), *told]))
    return keys


def _stated(column: pd.Series, present: npt.NDArray[np.bool_], form: str) -> list[str]:
    """The values of a column with its name; empty where a value is missing."""
    values = zip(column.astype(object).tolist(), present.tolist(), strict=True)
    return [form.format(column.name, value) if known else "" for value, known in values]


def keyed_normals(keys: Sequence[str], draws: int, seed: int) -> Floats:
    """Standard normal draws, shape (keys, draws); a key's row depends on the seed and the key alone.

    Each row holds the same values, the middles of `draws` equally likely ranges, each in a different order (a
    Latin hypercube). Percentiles of a sum over many keys vary less from seed to seed than with independent draws.
    The array cannot be changed, because the draws of the keys that were asked for last are kept.
    """
    return _keyed_normals(tuple(keys), draws, seed)


@lru_cache(maxsize=32)
def _keyed_normals(keys: tuple[str, ...], draws: int, seed: int) -> Floats:
    values = _normal_quantiles(draws)
    found = np.empty((len(keys), draws))
    for row, key in zip(found, keys, strict=True):
        digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=16).digest()
        generator = np.random.Generator(np.random.Philox(key=np.frombuffer(digest, "<u8")))
        row[:] = generator.permutation(values)
    found.setflags(write=False)
    return found


@lru_cache(maxsize=4)
def _normal_quantiles(count: int) -> Floats:
    """Quantiles of the standard normal distribution at the middles of `count` equally likely ranges."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((place + 0.5) / count) for place in range(count)])


def _sums(us: Floats, keys: npt.NDArray[np.object_], factor: float = 1.0) -> dict[str, float]:
    """Device time by key, largest first, keys without time left out."""
    sums = pd.Series(us).groupby(keys).sum().sort_values(ascending=False) * factor
    return {str(name): float(value) for name, value in sums.items() if value > 0}
