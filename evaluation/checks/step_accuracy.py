"""How far predictions of published steps are from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline.kernels.estimate import EXTRAPOLATED
from pipeline.prediction import Prediction


def with_errors(rows: pd.DataFrame, found: Sequence[Prediction]) -> pd.DataFrame:
    """The rows with `predicted_us`, `p10_us`, `p90_us`, `error`, `inside` (of p10 to p90), `evidence`, `fits` and `bound`.

    Args:
        rows: published steps with `measured_us`.
        found: Steptime's prediction of each.
    """
    times = {
        name: [getattr(one, name) for one in found] for name in ("predicted_us", "p10_us", "p90_us")
    }
    rows = rows.assign(**times)
    return rows.assign(
        error=rows["predicted_us"] / rows["measured_us"] - 1.0,
        inside=rows["measured_us"].between(rows["p10_us"], rows["p90_us"]),
        evidence=[main_evidence(one.evidence) for one in found],
        fits=[one.fits for one in found],
        bound=[one.bound for one in found],
    )


def main_evidence(shares: Mapping[str, float]) -> str:
    """The kind of evidence of the largest part of device time, inside and outside the range of the samples."""
    parts = pd.Series(shares).groupby(lambda name: str(name).removesuffix(EXTRAPOLATED)).sum()
    return str(parts.idxmax())
