"""Columns of a linked trace as an `events` table (`pipeline/schemas.py`) for Python users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.schemas import SCHEMAS
from pipeline.trace.kineto_fields import MISSING

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]

LINKS = frozenset({"iteration", "parent", "top", "op", "launch"})
"""Columns of positions, where -1 means none."""


def absent(column: str) -> int:
    """The number that means absent in an integer column."""
    return -1 if column in LINKS else int(MISSING)


def events_frame(columns: Mapping[str, Ints], vocabulary: Mapping[str, npt.NDArray[np.object_]]) -> pd.DataFrame:
    """All events as an `events` table; text columns are categorical."""
    import pandas as pd

    out: dict[str, Any] = {"event_id": np.arange(len(columns["ts_ns"]), dtype=np.int64)}
    for column in SCHEMAS["events"].names[1:]:
        values = columns[column]
        if column in vocabulary:
            out[column] = pd.Categorical.from_codes(values, pd.Index(vocabulary[column], dtype=object))
        else:
            gone = values == absent(column)
            out[column] = pd.array(values, dtype="Int64") if gone.any() else values
            if gone.any():
                out[column][gone] = pd.NA
    return pd.DataFrame(out)
