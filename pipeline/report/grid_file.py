"""Answers of a large grid as a parquet file, written while the grid is predicted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pipeline.answers.predict_grid import Answer
from pipeline.schemas import RowGroups

ROWS_IN_GROUP = 1000
"""Rows that are written at a time. A group of 1,000 rows takes about 100 kB in the file."""


def write_answers(answers: Iterable[Answer], path: Path) -> dict[str, int]:
    """Write a `grid` table, with rows in the order in which points are done.

    Returns:
        The number of points, and of points without a prediction.

    Raises:
        SteptimeError: the file cannot be written.
    """
    counts = {"points": 0, "unpredicted": 0}
    rows: list[dict[str, object]] = []
    with RowGroups(path, "grid") as file:
        for answer in answers:
            counts["points"] += 1
            counts["unpredicted"] += answer.prediction is None
            rows.append(_row(answer))
            if len(rows) == ROWS_IN_GROUP:
                file.add(_group(rows))
                rows.clear()
        if rows:
            file.add(_group(rows))
    return counts


def _row(answer: Answer) -> dict[str, object]:
    """One row of a `grid` table."""
    if answer.prediction is not None:
        return answer.prediction.summary_values()
    point = answer.point
    names = {"gpu": point.gpu, "model": point.model, "variant": point.variant, "batch_size": point.batch_size}
    return names | {"overrides": json.dumps(point.overrides), "unpredicted": answer.reason}


def _group(rows: list[dict[str, object]]) -> pd.DataFrame:
    """Rows as a table; numbers that some rows lack stay whole numbers."""
    table = pd.DataFrame(rows)
    return table.astype({name: "Int64" for name in ("largest_batch", "memory_bytes") if name in table})
