"""Logs overhead statistics as MLflow runs: one per GPU and estimator, with the table of T1 to T5."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd

from pipeline.overheads.overhead_model import HOST_TYPES
from pipeline.question.settings import OverheadSettings, plain
from pipeline.show.tracking import OVERHEADS, log_run


def track_overheads(
    observations: pd.DataFrame,
    statistics: pd.DataFrame,
    gpu: str,
    settings: OverheadSettings,
    label: str,
    folder: Path,
) -> None:
    """Log a host's overhead statistics as an MLflow run.

    Args:
        observations: `overhead_samples` table.
        statistics: `overheads` table computed from the observations.
        settings: settings of the statistics.
        label: label of these settings (`Question.overheads_label`).
        folder: MLflow folder.
    """
    metrics: dict[str, float] = {"observations": len(observations)}
    for name in HOST_TYPES:
        values = observations.loc[observations["type"] == name, "value_us"]
        if len(values):
            metrics |= {
                f"{name}_mean_us": float(values.mean()),
                f"{name}_median_us": float(values.median()),
            }
    # the host's scale is applied when a point is predicted
    fitted = plain(settings, without=("host_scale",))
    workloads = sorted(set(observations["workload"].astype(str)))
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "overheads.csv"
        statistics.to_csv(table, index=False)
        log_run(
            folder,
            OVERHEADS,
            f"{gpu} {label}",
            params={**fitted, "label": label, "workloads": ", ".join(workloads)},
            metrics=metrics,
            tags={"gpu": gpu, "estimator": settings.estimator},
            made_by="workflow/scripts/overhead_statistics.py",
            artifacts={"statistics": table},
        )
