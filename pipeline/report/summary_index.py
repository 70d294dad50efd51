"""`results/summary.parquet`: every grid point that has a prediction under a results folder, one row each."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

from pipeline.errors import TableError
from pipeline.paths import Artifacts
from pipeline.schemas import read_table, write_table
from pipeline.scripting import made_from


def refresh(root: str | Path) -> Path | None:
    """Gather all points' summaries into `summary.parquet`; returns its path, or None where there are none yet.

    What cannot be read (damaged, of an older version, being made anew by another run) is left out, with a line that says
    so: this run's own points are not among them.
    """
    pattern = Artifacts("").point("*", "*", "*", "*").lstrip("/") + "/summary.parquet"
    rows, read = [], []
    for path in sorted(Path(root).glob(pattern)):
        try:
            rows.append(read_table(path, "summary"))
            read.append(path)
        except TableError as error:
            print(f"steptime: left out of {root}/summary.parquet: {error}", file=sys.stderr)
    if not rows:
        return None
    target = Path(root) / "summary.parquet"
    write_table(pd.concat(rows, ignore_index=True), target, "summary", {"points": len(rows), **made_from(read)})
    return target
