"""How far each part of a measured point's prediction is off: active time, and the step by whose overheads it uses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.evaluate import Subject, evaluate
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.predictor import KernelPredictor
from pipeline.prediction import Prediction

ACTIVE = "device active time"
OWN = "step, overheads of this workload"
SHARED = "step, overheads of other workloads"
KERNELS = "sum of its kernels alone"
PARTS = (ACTIVE, OWN, SHARED, KERNELS)
"""Parts as legends name them."""

COLUMNS = ["gpu", "workload", "part", "predicted_us", "measured_us"]


def label(prediction: Prediction) -> str:
    """A point's name in tables and figures: model, variant and batch size."""
    name = prediction.model if prediction.variant == "default" else f"{prediction.model} {prediction.variant}"
    return f"{name} b{prediction.batch_size}"


def error_parts(prediction: Prediction, active_us: float | None = None, shared_us: float | None = None) -> pd.DataFrame:
    """Rows of one measured point, in the order of `PARTS`; parts without evidence are left out.

    Args:
        prediction: with `measured_us`; of this workload's own overheads where its host was profiled with it.
        active_us: device active time as the profiler saw it.
        shared_us: the step predicted from overheads of other workloads alone.
    """
    step = prediction.measured_us
    if step is None:
        return pd.DataFrame(columns=COLUMNS)
    values = (
        (ACTIVE, prediction.active_us, active_us),
        (OWN, prediction.predicted_us, step),
        (SHARED, shared_us, step),
        (KERNELS, sum(prediction.families.values()) or None, step),
    )
    rows = [(prediction.gpu, label(prediction), part, predicted, measured)
            for part, predicted, measured in values if predicted is not None and measured is not None]  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)


def measured_active_us(trace: str | Path) -> float | None:
    """Mean device active time of a trace's iterations, the first left out where there are several."""
    from pipeline.predict.replay import Source
    from pipeline.trace.load import load_trace

    chosen = Source.of(load_trace(trace)).chosen
    values = [iteration.active_us for iteration in (chosen[1:] or chosen)]
    return float(np.mean(values)) if values else None


def step_with_others_overheads(
    point: Mapping[str, Any],
    gpu: GpuSpec,
    graph: pd.DataFrame,
    calls: pd.DataFrame,
    kernels: KernelPredictor,
    observations: pd.DataFrame,
) -> float | None:
    """The step predicted from overheads of the host's other workloads; None where only this one was profiled.

    Args:
        point: sections `overheads` and `predict` of the point's configuration, and its `workload` name.
        observations: `overhead_samples` of the host, of all workloads.
    """
    from pipeline.api import overhead_statistics, overheads_from

    others = observations[observations["workload"] != point["workload"]]
    if others.empty:
        return None
    overheads = overheads_from(overhead_statistics(others, gpu.name, point["overheads"]), point["overheads"])
    subject = Subject("", "", 0, 0, settings={**point["predict"], "draws": 1})
    return evaluate(subject, gpu, graph, calls, kernels, overheads)[0].predicted_us
