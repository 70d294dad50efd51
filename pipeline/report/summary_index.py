"""Writes `results/summary.parquet`: one row for every grid point with a prediction under a results folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

from pipeline.errors import TableError
from pipeline.paths import Artifacts
from pipeline.schemas import read_checked, write_table
from pipeline.scripting import made_from


def refresh(root: str | Path) -> Path | None:
    """Collect all points' summaries in `summary.parquet`; return its path, or None if there are none yet.

    Unreadable summaries are left out, and a printed line reports this. They are damaged, of an older version, or being
    rewritten by another run; this run's own points are not among them.
    """
    pattern = Artifacts("").point("*", "*", "*", "*").lstrip("/") + "/summary.parquet"
    rows, read = [], []
    for path in sorted(Path(root).glob(pattern)):
        try:
            rows.append(read_checked(path, "summary"))
            read.append(path)
        except TableError as error:
            print(f"steptime: skipped in {root}/summary.parquet: {error}", file=sys.stderr)
    if not rows:
        return None
    target = Path(root) / "summary.parquet"
    write_table(pa.concat_tables(rows), target, "summary", {"points": len(rows), **made_from(read)})
    return target
