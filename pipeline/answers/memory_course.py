"""Memory over the time of a step: what is alive by kind, against what PyTorch can use, and which module runs at the peak."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.graph.capture import record
from pipeline.question.question import Question
from pipeline.readable import gibibytes
from pipeline.simulate.timeline import Timeline


@dataclass(frozen=True)
class MemoryCourse:
    """Bytes that PyTorch has allocated while a step runs.

    Attributes:
        table: column `us` (time on the GPU), and bytes by kind: weights, optimizer, gradients, activations, temporaries.
        usable_bytes: what PyTorch can use.
        says: the peak in words.
    """

    table: pd.DataFrame
    usable_bytes: int
    says: str

    def drawn(self) -> dict[str, Any]:
        """What a timeline's page draws: times in ns, bytes by kind."""
        columns = {name: self.table[name].tolist() for name in KINDS}
        at = (1000 * self.table["us"]).round().astype(int).tolist()
        return {"at": at, "kinds": columns, "usable": self.usable_bytes, "says": self.says}


def memory_course(
    question: Question, timeline: Timeline, calls: pd.DataFrame
) -> MemoryCourse | None:
    """Memory over a step on one GPU; its operators run once more, without data. None where that is not followed.

    An operator stands where the call of its phase with the same share of calls before it ends: to within a few operators.

    Args:
        question: the step.
        timeline: its timeline.
        calls: its device calls.
    """
    if question.local or question.devices > 1 or question.workload.get("compile"):
        return None
    with warnings.catch_warnings(action="ignore"):  # the prediction has them
        _, memory, *_ = record(question.workload, question.batch_size)
    course = memory.course
    if course is None:
        return None
    program = timeline.program
    rows = np.flatnonzero(program.call >= 0)
    phase, call = program.items.phase[program.item[rows]], program.call[rows]
    place = np.full(len(course), -1)
    for name, numbers in course.groupby("phase").indices.items():
        own = np.flatnonzero(phase == name)
        if len(own):
            share = np.linspace(0, len(own) - 1, len(numbers))
            place[numbers] = own[np.rint(share).astype(int)]
    place = np.maximum.accumulate(place)
    ends = timeline.device_end[call, 0]
    us = np.maximum.accumulate(np.where(place < 0, 0.0, ends[place]))
    fixed = {"weights": memory.parameters, "optimizer": memory.optimizer}
    table = course.drop(columns="phase").assign(us=us, **fixed)
    total = table[KINDS].sum(axis=1)
    at = int(total.argmax())
    begun = "module" in calls and place[at] >= 0
    module = calls["module"].fillna("").iloc[call[place[at]]] if begun else ""
    says = f"{gibibytes(total[at])} at the peak, in {course['phase'].iloc[at] or 'the inputs'}"
    says += f" of {module}" if module else ""
    # the largest of the moments with one time
    most = total.groupby(us).idxmax()
    return MemoryCourse(table.loc[most, ["us", *KINDS]], question.gpu.usable_memory_bytes, says)


KINDS = ["weights", "optimizer", "gradients", "activations", "temporaries"]
"""What memory holds, in the order in which it is drawn from below."""
