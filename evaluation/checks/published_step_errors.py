"""Errors of predicted steps against steps that others measured and published."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.prediction import Prediction

PYTORCH_2_GPUS = ("B200",)
"""GPUs that ran PyTorch 2. The others ran 1.13: its optimizers update one parameter at a time, and it fills gradients with
zeros, whereas later versions drop them."""


def with_errors(rows: pd.DataFrame, found: Sequence[Prediction], predicted_us: Sequence[float]) -> pd.DataFrame:
    """The rows with `predicted_us`, `p10_us`, `p90_us`, `error`, `inside` (of p10 to p90), `evidence` and `fits`.

    Args:
        rows: published steps with `measured_us`.
        found: Steptime's prediction of each.
        predicted_us: step times without parts that did not run there; p10 and p90 shrink in proportion.
    """
    rows = rows.assign(predicted_us=predicted_us)
    measured = rows["measured_us"].to_numpy()
    kept = rows["predicted_us"].to_numpy() / np.array([one.predicted_us for one in found])
    low, high = (kept * np.array([getattr(one, end) for one in found]) for end in ("p10_us", "p90_us"))
    main = [max(one.evidence, key=one.evidence.__getitem__) for one in found]
    inside = (low <= measured) & (measured <= high)
    fits = [one.fits for one in found]
    off = rows["predicted_us"] / measured - 1.0
    return rows.assign(error=off, inside=inside, p10_us=low, p90_us=high, evidence=main, fits=fits)
