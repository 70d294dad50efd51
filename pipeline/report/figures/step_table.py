"""The table of predicted steps that figures and pages draw from. `steptime predict` loads it, so it needs little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from pipeline.prediction import Prediction


def steps(points: Iterable[Prediction]) -> pd.DataFrame:
    """One row per predicted point.

    Args:
        points: predictions, of a `summary` table (`Prediction.all_of`) or in memory.

    Returns:
        A table of these columns.
        Point: gpu, workload (model, variant and batch size as one label), model_variant, batch_size.
        Times: predicted_us, active_us, idle_us, host_us, kernels_us (sum of all kernels), p10_us, p90_us, measured_us.
        Other results: samples_per_s, fits, bound, device_evidence, host_evidence, unmodelled_share.
    """
    rows = [
        {
            "gpu": p.gpu, "workload": p.label, "model_variant": p.label.rpartition(" b")[0],
            "batch_size": p.batch_size,
            "predicted_us": p.predicted_us, "active_us": p.active_us, "idle_us": p.idle_us, "host_us": p.host_us,
            "kernels_us": sum(p.families_us.values()) or np.nan, "p10_us": p.p10_us, "p90_us": p.p90_us,
            "measured_us": np.nan if p.measured_us is None else p.measured_us, "samples_per_s": p.samples_per_s,
            "fits": p.fits, "bound": p.bound, "device_evidence": shares(p.evidence),
            "host_evidence": shares(p.host_evidence), "unmodelled_share": p.unmodelled_share,
        }
        for p in points
    ]  # fmt: skip
    return pd.DataFrame(rows)


def shares(kinds: Mapping[str, float]) -> str:
    """Shares as text such as `pack 92 %, roofline 8 %`, largest first."""
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in ordered if share >= 0.005)
