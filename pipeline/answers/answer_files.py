"""Writes answers: the files of one (prediction, timelines and summary), or a table of many."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.answers.engine import Answer
from pipeline.schemas import SCHEMAS, WRITTEN_AS, atomic_path, to_arrow, write_table
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.timeline_page import write_timeline
from pipeline.summary_rows import summary_values

ROWS_IN_GROUP = 1000
"""Rows that are written at a time. A group of 1,000 rows takes about 100 kB in the file."""


@dataclass(frozen=True)
class AnswerFiles:
    """Where the files of an answer go."""

    prediction: str
    timeline: str
    page: str
    summary: str


def write_answer(
    answer: Answer, paths: AnswerFiles, trace: str | None, provenance: Mapping[str, Any]
) -> None:
    """Write the files of an answer with its timeline.

    Args:
        answer: made with `detail`.
        paths: the files.
        trace: a profiler trace of the step, to draw below its predicted timeline.
        provenance: of the files.

    Raises:
        SteptimeError: there is no prediction, or a file cannot be written.
    """
    prediction = answer.whole()
    assert prediction.calls is not None and answer.timeline is not None
    beside = measured_events(trace) if trace else answer.other_rank
    files = [paths.timeline, paths.page]
    write_timeline(answer.timeline, files, answer.calls, beside=beside, title=answer.question.title)
    write_table(prediction.calls, paths.prediction, "prediction", provenance)
    row = pa.table({key: [value] for key, value in summary_values(prediction).items()})
    write_table(row, paths.summary, "summary", provenance)


def write_answers(answers: Iterable[Answer], path: Path) -> dict[str, int]:
    """Write a `grid` table, with rows in the order in which points are done.

    Returns:
        The number of points, and of points without a prediction.

    Raises:
        SteptimeError: the file cannot be written.
    """
    counts, todo = {"points": 0, "unpredicted": 0}, iter(answers)
    with atomic_path(path) as part, pq.ParquetWriter(part, SCHEMAS["grid"], **WRITTEN_AS) as file:
        while rows := [_row(answer) for answer in islice(todo, ROWS_IN_GROUP)]:
            counts["points"] += len(rows)
            counts["unpredicted"] += sum("unpredicted" in row for row in rows)
            table = pa.Table.from_pylist(rows, SCHEMAS["grid"])
            file.write_table(to_arrow(table, "grid", str(path)))
    return counts


def _row(answer: Answer) -> dict[str, object]:
    """One row of a `grid` table."""
    if answer.prediction is not None:
        return summary_values(answer.prediction)
    row = answer.as_row()
    return row | {"overrides": json.dumps(row["overrides"])}
