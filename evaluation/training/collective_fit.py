"""Fit the bandwidth curves of collectives to public NCCL times, write them, and compare them with measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.training.write_packs import record_file, write_by_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.bandwidth import fit_curve
from pipeline.kernels.collective_bandwidth import FAMILY, CollectiveModel, Curves, MeasuredCurves, link_gb_per_s
from pipeline.kernels.physics import bus_factor
from pipeline.kernels.work import Array, Dims

MAX_COLLECTIVE_LOG_LOSS = 3.0
"""Bound of the fit: the low bandwidth of a curve is at least 5 % of its peak. NCCL's protocols for small buffers are
that slow."""


def fit_curves(samples: pd.DataFrame, gpu: GpuSpec) -> Curves:
    """Curves by operation and ranks.

    Args:
        samples: op, ranks, bytes, kernel_us.
        gpu: its link bandwidth is the start value of the peak in the search.
    """
    curves: Curves = {}
    d = Dims(samples)
    size = samples["bytes"].to_numpy(dtype=np.float64) * bus_factor(d)[1]
    time = samples["kernel_us"].to_numpy(dtype=np.float64)
    for op, ranks in samples[["op", "ranks"]].drop_duplicates().itertuples(index=False):
        rows = ((samples["op"] == op) & (samples["ranks"] == ranks)).to_numpy()
        start = float(time[rows].min())
        fitted = fit_curve(
            size[rows],
            time[rows],
            start,
            link_gb_per_s(gpu),
            offset=False,
            max_log_loss=MAX_COLLECTIVE_LOG_LOSS,
        )
        curves.setdefault(str(op), {})[int(ranks)] = fitted.curve
    return curves


def write_curves(path: Path, curves: Sequence[MeasuredCurves], provenance: Mapping[str, Any]) -> None:
    """Write the curves of several GPUs and fabrics as JSON, atomically."""
    plain: dict[str, dict[str, Any]] = {}
    for measured in curves:
        plain.setdefault(measured.gpu.name, {})[measured.fabric] = {
            op: {str(n): curve.to_json() for n, curve in by.items()} for op, by in measured.curves.items()
        }
    write_by_gpu(path, plain, provenance)
    record_file(path)


def predicted_over_measured(model: CollectiveModel, samples: pd.DataFrame) -> Array:
    """Predicted over measured time of collectives, shape (rows,)."""
    calls = samples.assign(family=FAMILY)
    return np.asarray(model.predict(calls).kernel / samples["kernel_us"].to_numpy(dtype=np.float64))
