"""A linked trace: events as columns, with the iterations that they belong to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.arrays import Flags, Ints, Texts
from pipeline.readable import html_table
from pipeline.trace.kineto_fields import MISSING

if TYPE_CHECKING:
    import pandas as pd


LINKS = frozenset({"iteration", "parent", "top", "op", "launch"})
"""Columns of positions, where -1 means none."""


UNNAMED = "unknown"
"""Device of a trace that does not name its GPU."""

PREDICT_INSTEAD = (
    "predict the step with the shapes that it ran with, which needs no trace: steptime predict"
    " gpu=NAME model=NAME batch_size=N, or predict(model=your_module, batch=...)"
)
"""What to do with a trace of a CPU alone, to know the step on a GPU."""


def absent(column: str) -> int:
    """The number that means absent in an integer column."""
    return -1 if column in LINKS else MISSING


def first_after_warm_up(count: int) -> int:
    """Index of the first iteration that counts. With three or more iterations, the first is warm-up."""
    return 1 if count >= 3 else 0


@dataclass(repr=False)
class Trace:
    """A linked trace.

    Attributes:
        path: the file.
        device: name of the GPU, `cpu` if no work ran on a GPU.
        process: the process whose steps count, if several ran operators.
        marker: the marker of the iterations; empty if there is none and the trace is one iteration.
        opens: start of each iteration's window, ns.
        closes: end of each iteration's window, ns.
        columns: int64 arrays, one per column, in event order; text as int32 codes into `vocabulary`.
        vocabulary: per text column an array of its texts.
        metadata: everything in the file outside the event array.
        notes: what was unusual in the file and how it was read, one sentence each.
    """

    path: Path
    device: str
    marker: str
    opens: Ints
    closes: Ints
    columns: dict[str, Ints]
    vocabulary: dict[str, Texts]
    metadata: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    process: int = 0

    def __len__(self) -> int:
        return len(self.columns["ts_ns"])

    def __str__(self) -> str:
        count, by = len(self.opens), f" by {self.marker}" if self.marker else ""
        plural = "" if count == 1 else "s"
        return (
            f"{self.path}: {count} iteration{plural}{by} on {self.device or 'no device'},"
            f" {len(self):,} events"
        )

    def __repr__(self) -> str:
        return f"<Trace: {self}>"

    def _repr_html_(self) -> str:
        rows = [
            ("device", self.device or "none"),
            ("iterations", f"{len(self.opens)}"),
            ("marker", self.marker or "none"),
            ("events", f"{len(self):,}"),
            *(("note", note) for note in self.notes),
        ]
        return html_table(str(self.path), rows)

    @property
    def after_warm_up(self) -> Flags:
        """Whether each iteration is used for overhead statistics, shape (iterations,)."""
        return np.arange(len(self.opens)) >= first_after_warm_up(len(self.opens))

    def is_category(self, *categories: str) -> Flags:
        """Which events belong to one of the categories."""
        return self.texts_in("category", set(categories))

    def texts_in(self, column: str, texts: set[str] | frozenset[str]) -> Flags:
        """Which events have one of the texts in a text column."""
        return self.where(column, texts.__contains__)

    def where(self, column: str, holds: Callable[[str], object]) -> Flags:
        """Which events have a text in a column for which something holds; it is asked once for each distinct text."""
        hits = np.array([holds(text) for text in self.vocabulary[column]] + [False], bool)
        return hits.take(self.columns[column])

    def by_correlation(self, events: Ints, values: Ints) -> dict[int, int]:
        """A value of each of some events, by their correlation ids."""
        return dict(zip(self.columns["correlation"][events].tolist(), values.tolist(), strict=True))

    def names_begin_with(self, *prefixes: str) -> Ints:
        """Events whose name begins with one of some prefixes, ascending."""
        return np.flatnonzero(self.where("name", lambda name: name.startswith(prefixes)))

    @cached_property
    def names(self) -> Texts:
        """Name of every event."""
        out: Texts = self.vocabulary["name"][self.columns["name"]]
        return out

    @cached_property
    def end_ns(self) -> Ints:
        """End of every event, ns."""
        return self.columns["ts_ns"] + self.columns["dur_ns"]

    @property
    def iterations(self) -> pd.DataFrame:
        """One row per iteration: `iteration`, `start_ns`, `end_ns` of its window."""
        import pandas as pd

        return pd.DataFrame(
            {"iteration": np.arange(len(self.opens)), "start_ns": self.opens, "end_ns": self.closes}
        )

    @cached_property
    def events(self) -> pd.DataFrame:
        """All events as an `events` table (pipeline/schemas.py); text columns are categorical."""
        import pandas as pd

        from pipeline.schemas import SCHEMAS  # loads Arrow, which reading a trace does not need

        table: dict[str, Any] = {"event_id": np.arange(len(self), dtype=np.int64)}
        for column in SCHEMAS["events"].names[1:]:
            values = self.columns[column]
            if column in self.vocabulary:
                texts = pd.Index(self.vocabulary[column], dtype=object)
                table[column] = pd.Categorical.from_codes(values, texts)
            else:
                is_absent = values == absent(column)
                table[column] = pd.array(values, dtype="Int64") if is_absent.any() else values
                if is_absent.any():
                    table[column][is_absent] = pd.NA
        return pd.DataFrame(table)
