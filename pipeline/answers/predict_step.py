"""One predicted step from its parts: graph, device calls, kernel models and overheads.

Intervals: kernel times are drawn around their predictions with the width that the kernel models claim and what a whole
step errs beyond them, host times with a width by the kind of their evidence, and every draw is walked along the critical
path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import FAMILIES, Law
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.prediction import Prediction
from pipeline.settings import PredictSettings
from pipeline.simulate.critical_path import Form, simulate
from pipeline.simulate.cuda_graph import as_cuda_graphs
from pipeline.simulate.program import build_program
from pipeline.simulate.timeline import Timeline

Floats = npt.NDArray[np.float64]

HOST_SIGMA = {"measured": 0.05, "shared": 0.15, "transferred": 0.30}
"""Standard deviation of log host time by evidence. Overheads shared between workloads of calibrated hosts came out
within 10 to 16 %, those of another host within 41 % (DESIGN section 3, lesson 9)."""

FAMILY_SHARE = {"gemm": 0.9, "bmm": 0.9, "conv2d": 0.2}
OTHER_SHARE = 0.4
"""Share of a kernel's log-variance that all calls of its family have in common, because the errors of one model lean one
way: by how much sums over a family are off on GPUs that no model has seen (`benchmarks/kernels/shared_errors.py`)."""

STEP_GROWTH = 1.5
"""What all kernels of a step err together, over a kernel's own width: operators of whole models, measured in another run on
the cards of the packs, are off by this much as sums (the same command). A card's clocks differ from run to run."""

STEP_MOST = 0.10
"""The most that it comes to, as a standard deviation of log time: what a step has beyond its kernels, libraries that fuse
or add operators. Mean errors of published steps, by workload, on the cards that constants were set on; 0.07 since BERT's
steps are predicted with the optimizers that ran (`benchmarks/steps/published.py` prints it), and kept."""

COMPUTED_IN = ("fp32", "tf32", "bf16", "fp16")
"""Dtypes of products and convolutions whose rates GPU files state and models know."""

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
    """Name under which the overheads know this very workload, if they do."""
    settings: PredictSettings = PredictSettings()


def evaluate(
    subject: Subject,
    gpu: GpuSpec,
    graph: pd.DataFrame,
    calls: pd.DataFrame,
    kernels: KernelPredictor,
    overheads: OverheadModel,
    measured_us: float | None = None,
) -> tuple[Prediction, Timeline]:
    """Predict one step.

    Args:
        subject: names, memory and settings.
        gpu: the device, for its memory.
        graph: operators, `graph` schema.
        calls: device calls, `calls` schema.
        kernels: kernel models of the device.
        overheads: host overheads.
        measured_us: an unprofiled measurement to show beside the prediction; it plays no part in it.

    Returns:
        The prediction, and the timeline of its central draw.
    """
    form: Form = "published" if subject.settings.critical_path == "published" else "full"
    draws = subject.settings.draws
    predicted = kernels.predict(calls)
    program = build_program(graph, calls, overheads, workload=subject.workload)
    if subject.settings.cuda_graph:
        program, measured_us = as_cuda_graphs(program), None  # what was measured launched kernel by kernel
    central = predicted["kernel_us"].to_numpy(float)
    timeline = simulate(program, central, form=form)
    random = np.random.default_rng(subject.settings.seed)
    times = draw_kernel_times(calls, predicted, draws, random)
    host = draw_host_scale(program.host_evidence, draws, random)
    steps = simulate(program, times, form=form, host_scale=host).step_us
    step = float(timeline.step_us[0])
    low, high = np.percentile(steps, [10, 90])
    ran = ~np.isnan(timeline.device_start[:, 0])
    busy = pd.DataFrame({"us": np.where(ran, central, 0.0), "family": calls["family"].astype(object).to_numpy()})
    busy["evidence"] = predicted["evidence"].astype(object).to_numpy()
    busy["name"] = calls["node_id"].map(graph.set_index("node_id")["name"]).astype(object).to_numpy()
    lost = busy[beyond_the_models(calls) | ~predicted["modelled"].to_numpy(bool)]
    total = float(busy["us"].sum()) or 1.0
    prediction = Prediction(
        gpu=gpu.name,
        model=subject.model,
        variant=subject.variant,
        batch_size=subject.batch_size,
        predicted_us=step,
        active_us=float(timeline.active_us[0]),
        host_us=float(timeline.host_us[0]),
        p10_us=float(min(low, step)),
        p90_us=float(max(high, step)),
        memory_bytes=subject.memory_bytes,
        fits=subject.memory_bytes <= gpu.memory_bytes,
        evidence=_sums(busy, "evidence", 1 / total),
        host_evidence={kind: float(share) for kind, share in program.host_evidence.items() if share > 0},
        unmodelled_share=float(lost["us"].sum()) / total,
        families=_sums(busy, "family"),
        unmodelled=_sums(lost, "name"),
        bound=timeline.bound,
        measured_us=measured_us,
        overrides=subject.overrides,
        calls=timeline.to_frame(calls, predicted),
    )
    return prediction, timeline


def beyond_the_models(calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Calls whose times are stand-ins, shape (calls,): operators that the map does not know, by their bytes; arithmetic in
    dtypes that no model has a rate for (fp64, complex, integers), as if in fp32.
    """
    unknown = (calls["family"] == "other") & (calls["op"] == "unknown")
    computed = calls["family"].map(lambda name: name in FAMILIES and FAMILIES[name].law is Law.COMPUTE)
    foreign = computed.astype(bool) & calls["dtype"].notna() & ~calls["dtype"].isin(COMPUTED_IN)
    return np.asarray(unknown | foreign, dtype=bool)


def draw_kernel_times(calls: pd.DataFrame, predicted: pd.DataFrame, draws: int, random: np.random.Generator) -> Floats:
    """Log-normal draws of kernel times in µs, shape (draws, calls).

    Three errors add up in log time. Calls of one family share a part of their variance (`FAMILY_SHARE`; the three
    directions of a convolution are one family here: one library computes them by the same means). The rest is each
    call's own, and of mean one, so that it cancels in the sum that a step is; calls that are predicted alike share it,
    because a model is wrong about a shape in the same way every time it is launched. And all kernels of a step share an
    error that no single kernel shows: `STEP_GROWTH` times a kernel's width, `STEP_MOST` at most.
    """
    centre = predicted["kernel_us"].to_numpy(float)
    low, high = predicted["p10_us"].to_numpy(float), predicted["p90_us"].to_numpy(float)
    width = np.log(np.maximum(high, 1e-9) / np.maximum(low, 1e-9)) / (2 * NORMAL_P90)
    sigma = np.where(centre > 0, np.clip(width, 0.0, 1.5), 0.0)
    names = calls["family"].astype(object)
    joint = names.where(~names.astype(str).str.startswith("conv2d"), "conv2d")
    share = joint.map(FAMILY_SHARE).fillna(OTHER_SHARE).to_numpy(float)
    group = pd.factorize(joint)[0]
    alike = calls.groupby([names, np.round(centre, 6)], sort=False, dropna=False).ngroup().to_numpy()
    family = np.sqrt(share) * sigma * random.standard_normal((draws, int(group.max(initial=-1)) + 1))[:, group]
    width = np.sqrt(1 - share) * sigma
    own = width * random.standard_normal((draws, int(alike.max(initial=-1)) + 1))[:, alike] - width**2 / 2
    step = np.minimum(STEP_GROWTH * sigma, STEP_MOST) * random.standard_normal((draws, 1))
    return np.asarray(centre * np.exp(family + own + step))


def draw_host_scale(evidence: Mapping[str, float], draws: int, random: np.random.Generator) -> Floats:
    """Log-normal factors on all host times, shape (draws,), as wide as the mix of evidence asks for."""
    sigma = sum(share * HOST_SIGMA.get(kind, max(HOST_SIGMA.values())) for kind, share in evidence.items())
    return np.asarray(np.exp(sigma * random.standard_normal(draws)))


def _sums(table: pd.DataFrame, key: str, factor: float = 1.0) -> dict[str, float]:
    """Device time by key, largest first, keys without time left out."""
    sums = table.groupby(key)["us"].sum().sort_values(ascending=False) * factor
    return {str(name): float(value) for name, value in sums.items() if value > 0}
