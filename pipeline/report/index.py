"""`results/summary.parquet`: every grid point that has a prediction under a results folder, one row each."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.paths import Artifacts
from pipeline.schemas import read_table, write_table


def refresh(root: str | Path) -> Path | None:
    """Gather all points' summaries into `summary.parquet`; returns its path, or None where there are none yet."""
    pattern = Artifacts("").point("*", "*", "*", "*").lstrip("/") + "/summary.parquet"
    rows = [read_table(path, "summary") for path in sorted(Path(root).glob(pattern))]
    if not rows:
        return None
    target = Path(root) / "summary.parquet"
    write_table(pd.concat(rows, ignore_index=True), target, "summary", {"points": len(rows)})
    return target
