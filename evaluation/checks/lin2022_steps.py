"""Predictions of the steps that Lin et al. (HiPC 2022) measured, in their training loop, from the shipped packs only.

The measured rows are for reports and figures only: no constant was chosen and no model was fitted with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from evaluation.published.published_lin2022 import read_cnn, read_dlrm
from pipeline.answers.engine import engine
from pipeline.question.question import expand

CNN_LOOP: dict[str, object] = {"model.copies": "pageable", "model.foreach": False, "model.set_to_none": False}
"""Training loop of PyTorch 1.8: the host waits for copies, the optimizer updates one parameter at a time, and
gradients are zeroed. `config/experiment/paper_cnn.yaml` has the same."""

DLRM_LOOP: dict[str, object] = {**CNN_LOOP, "model.read_loss": "before_backward"}
"""Training loop of facebookresearch/dlrm of 2021: as `CNN_LOOP`, and it reads the loss before the backward pass.
`config/experiment/paper_dlrm.yaml` has the same."""


def predicted_dlrm(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """The DLRM steps (some rows of `read_dlrm`, or all) with predictions (see `_predicted`)."""
    return _predicted(read_dlrm() if rows is None else rows, DLRM_LOOP)


def predicted_cnn(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """The steps of convolutional networks (some rows of `read_cnn`, or all) with predictions (see `_predicted`)."""
    return _predicted(read_cnn() if rows is None else rows, CNN_LOOP)


def _predicted(rows: pd.DataFrame, loop: Mapping[str, object]) -> pd.DataFrame:
    """The rows with predictions.

    Returns:
        The columns of `rows`, `predicted_us`, `active_us`, `p10_us`, `p90_us`, `error` (signed, relative), `inside` (of
        p10 to p90), and `families_us` (device time by kernel family).
    """
    predictions = []
    for row in rows.itertuples():
        point = {"gpu": row.gpu, "model": row.model, "batch_size": row.batch_size, **loop}
        predictions.append(
            engine(None).predict_one(expand([f"{name}={value}" for name, value in point.items()])[0]).whole()
        )
    for name in ("predicted_us", "active_us", "p10_us", "p90_us", "families_us"):
        rows = rows.assign(**{name: [getattr(one, name) for one in predictions]})
    inside = (rows["p10_us"] <= rows["measured_us"]) & (rows["measured_us"] <= rows["p90_us"])
    return rows.assign(error=rows["predicted_us"] / rows["measured_us"] - 1.0, inside=inside)
