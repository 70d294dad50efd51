"""Predictions of the steps that Lin et al. (HiPC 2022) measured, in their training loop, from the shipped packs only.

The measured rows are for reports and figures only: no constant was chosen and no model was fitted with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from evaluation.published.published_busy import FILE as NOTEBOOK
from evaluation.published.published_busy import read_busy
from evaluation.published.published_lin2022 import KEYS, read_cnn, read_dlrm
from pipeline.answers.engine import engine
from pipeline.question.question import expand

CNN_LOOP: dict[str, object] = {"model.copies": "pageable", "model.foreach": False, "model.set_to_none": False}
"""Training loop of PyTorch 1.8: the host waits for copies, the optimizer updates one parameter at a time, and
gradients are zeroed."""

DLRM_LOOP: dict[str, object] = {**CNN_LOOP, "model.read_loss": "before_backward"}
"""Training loop of facebookresearch/dlrm of 2021: as `CNN_LOOP`, and it reads the loss before the backward pass."""


def predicted_dlrm(datasets: Path) -> pd.DataFrame:
    """The DLRM steps with predictions (see `_predicted`), and the paper's `published_error` where it is available.

    The paper's error of each step is in a notebook beside its code (`evaluation/published/published_busy.py`).

    Raises:
        TableError: a table is missing, or has other contents.
    """
    rows = _predicted(read_dlrm(datasets), DLRM_LOOP)
    if not (datasets / NOTEBOOK).is_file():
        return rows
    return rows.merge(read_busy(datasets)[[*KEYS, "published_error"]], on=list(KEYS), how="left")


def predicted_cnn(datasets: Path) -> pd.DataFrame:
    """The steps of convolutional networks with predictions (see `_predicted`) and the published errors.

    Raises:
        TableError: the table is missing, or has other contents.
    """
    return _predicted(read_cnn(datasets), CNN_LOOP)


def _predicted(rows: pd.DataFrame, loop: Mapping[str, object]) -> pd.DataFrame:
    """The rows with `predicted_us`, `p10_us`, `p90_us`, `error` (signed, relative) and `inside` (of p10 to p90)."""
    predictions = []
    for row in rows.itertuples():
        point = {"gpu": row.gpu, "model": row.model, "batch_size": row.batch_size, **loop}
        predictions.append(
            engine(None).predict_one(expand([f"{name}={value}" for name, value in point.items()])[0]).whole()
        )
    for name in ("predicted_us", "p10_us", "p90_us"):
        rows = rows.assign(**{name: [getattr(one, name) for one in predictions]})
    inside = (rows["p10_us"] <= rows["measured_us"]) & (rows["measured_us"] <= rows["p90_us"])
    return rows.assign(error=rows["predicted_us"] / rows["measured_us"] - 1.0, inside=inside)
