"""Writes the files of one answer: prediction, timelines and summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.answers.engine import Answer
from pipeline.schemas import write_table
from pipeline.simulate.measured_rows import measured_events
from pipeline.simulate.perfetto import write_timeline


@dataclass(frozen=True)
class AnswerFiles:
    """Where the files of an answer go."""

    prediction: str
    timeline: str
    page: str
    summary: str


def write_answer(answer: Answer, paths: AnswerFiles, trace: str | None, provenance: Mapping[str, Any]) -> None:
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
    beside = measured_events(trace) if trace else []
    files = [paths.timeline, paths.page]
    write_timeline(answer.timeline, files, answer.calls, beside=beside, title=answer.question.title)
    write_table(prediction.calls, paths.prediction, "prediction", provenance)
    row = pa.table({key: [value] for key, value in prediction.summary_values().items()})
    write_table(row, paths.summary, "summary", provenance)
