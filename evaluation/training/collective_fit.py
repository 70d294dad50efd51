"""Fit the curves of collectives to public NCCL times, write them, and compare them with measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.published.aiconfigurator import COLLECTIVES, read_collectives
from evaluation.published.nccl_times import SEND_RECV, read_send_recv, read_v100, tables
from evaluation.training.write_packs import record_file, write_by_gpu
from pipeline.arrays import Array
from pipeline.hardware.clusters import NVSWITCH, PCIE, load_cluster
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.collective_bandwidth import (
    FAMILY,
    PYTORCH_US,
    CollectiveModel,
    Curves,
    MeasuredCurves,
    TimeCurve,
    measured_curves,
)
from pipeline.kernels.collective_formulas import START_US, bus_share, hops

OCTAVES = 2.0
"""Distance of the sizes at which a curve bends. The public sizes are an octave apart, and measured once or twice: a bend at
each would repeat their noise."""

SMALLEST_BYTES = 64 * 1024
"""Curves that begin above it get a start from the formula: they do not show how long small buffers take."""


def fit_curve(size: Array, time_us: Array, start_us: float = 0.0) -> TimeCurve:
    """The curve with the least squared relative errors that never falls.

    Args:
        size: bytes that a rank sends, shape (points,).
        time_us: their times, shape (points,).
        start_us: time without bytes, for sizes that begin above `SMALLEST_BYTES`.
    """
    from scipy.optimize import nnls

    low, high = np.log2([size.min(), size.max()])
    knots = 2.0 ** np.append(np.arange(low, high - OCTAVES / 2.0, OCTAVES), high)
    # each column is what one step up from knot to knot adds
    steps = [
        np.ones_like(size),
        *(np.interp(size, knots, np.arange(len(knots)) >= i) for i in range(1, len(knots))),
    ]
    rises, _ = nnls(np.column_stack(steps) / time_us[:, None], np.ones_like(time_us))
    us = np.cumsum(rises)
    if size.min() > SMALLEST_BYTES:
        knots, us = np.append(0.0, knots), np.append(min(start_us, us[0]), us)
    return TimeCurve(tuple(map(float, knots)), tuple(map(float, us)))


def fit_curves(samples: pd.DataFrame, start_us: Mapping[int, float] | None = None) -> Curves:
    """Curves by operation and ranks.

    Args:
        samples: op, ranks, bytes, kernel_us.
        start_us: times without bytes by ranks, for samples that begin above `SMALLEST_BYTES`.
    """
    curves: Curves = {}
    for op, ranks in samples[["op", "ranks"]].drop_duplicates().itertuples(index=False):
        rows = samples[(samples["op"] == op) & (samples["ranks"] == ranks)]
        size = rows["bytes"].to_numpy(np.float64) * bus_share(op, np.array([float(ranks)]))
        start = (start_us or {}).get(ranks, 0.0)
        curves.setdefault(op, {})[int(ranks)] = fit_curve(
            size, rows["kernel_us"].to_numpy(np.float64), start
        )
    return curves


def write_curves(
    path: Path, curves: Sequence[MeasuredCurves], provenance: Mapping[str, Any]
) -> None:
    """Write the curves of several GPUs and fabrics as JSON, atomically."""
    plain: dict[str, dict[str, Any]] = {}
    for measured in curves:
        by_fabric = plain.setdefault(measured.gpu.name, {})
        for op, by_ranks in measured.curves.items():
            by_op = by_fabric.setdefault(measured.fabric, {}).setdefault(op, {})
            by_op |= {str(ranks): curve.to_json() for ranks, curve in by_ranks.items()}
    write_by_gpu(path, plain, provenance)
    record_file(path)


def predicted_over_measured(model: CollectiveModel, samples: pd.DataFrame) -> Array:
    """Predicted over measured time of collectives, shape (rows,); benchmarks of NCCL run without PyTorch."""
    calls = samples.assign(family=FAMILY)
    without = np.where(samples["op"] == "all_reduce", PYTORCH_US, 0.0)
    measured_us = samples["kernel_us"].to_numpy(dtype=np.float64)
    return np.asarray((model.predict(calls).kernel - without) / measured_us)


def fitted_curves(
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda samples: samples,
) -> list[MeasuredCurves]:
    """Curves of all measured GPUs. What is not at hand of the published tables beside the package keeps its shipped curves.

    Args:
        rows: which rows of a GPU's samples are used; all of them unless a check leaves some out.
    """
    curves = [
        MeasuredCurves(load_gpu(gpu), fabric_of(gpu), fit_curves(rows(read_collectives(gpu))))
        for gpu in COLLECTIVES
    ]
    if tables() is None:
        known = {(entry.gpu.name, entry.fabric, op) for entry in curves for op in entry.curves}
        for entry in measured_curves():
            rest = {
                op: by
                for op, by in entry.curves.items()
                if (entry.gpu.name, entry.fabric, op) not in known
            }
            curves += [replace(entry, curves=rest)] if rest else []
        return curves
    mesh = load_cluster("dgx1-v100")
    start = {
        n: START_US + float(hops("all_reduce", np.array([n]))[0]) * mesh.latency_us
        for n in range(2, 9)
    }
    curves.append(
        MeasuredCurves(
            load_gpu("V100-SXM2-32GB"), mesh.fabric, fit_curves(rows(read_v100()), start)
        )
    )
    for gpu in SEND_RECV:
        curves.append(
            MeasuredCurves(load_gpu(gpu), NVSWITCH, fit_curves(rows(read_send_recv(gpu))))
        )
    return curves


def fabric_of(gpu: str) -> str:
    """What joined the GPUs of the package's tables: NVLink behind switches where the card has it, else PCIe."""
    return NVSWITCH if load_gpu(gpu).nvlink_gb_per_s else PCIE
