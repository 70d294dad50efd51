"""A profiler trace and an execution trace of the same run, operator by operator.

Both record the same host events. Where both carry the record function id they join by it; older pairs lack it and join
by order: the k-th occurrence of a name here is its k-th occurrence there. How much matched is part of the answer, since
a pair of different runs joins by order without complaint.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.trace.columns import MISSING
from pipeline.trace.fields import Category
from pipeline.trace.load import Trace

BY_ID, BY_ORDER = "record function id", "order"


@dataclass(frozen=True)
class Joined:
    """Which execution-trace node describes which event.

    Attributes:
        pairs: one row per match: `event_id`, `node_id`.
        how: `record function id` or `order`.
        share_of_events: share of the profiler's ops that found a node.
        share_of_nodes: share of the execution trace's operators that found an event.
    """

    pairs: pd.DataFrame
    how: str
    share_of_events: float
    share_of_nodes: float


def join_execution_trace(trace: Trace, path: str | Path) -> Joined:
    """Match the operators of a trace with the nodes of an execution trace (schemas 1.0.1 to 1.1.1).

    Raises:
        TraceError: the execution trace is missing, cut off, or none.
    """
    from pipeline.graph.execution_trace import read_execution_trace

    nodes = _operators(read_execution_trace(path))
    events = _events(trace)
    joined = events.merge(nodes, on=["rf_id", "name"])
    how = BY_ID
    if not len(joined):
        how = BY_ORDER
        joined = _numbered(events).merge(_numbered(nodes), on=["name", "occurrence"])
    return Joined(
        pairs=joined[["event_id", "node_id"]].reset_index(drop=True),
        how=how,
        share_of_events=len(joined) / len(events) if len(events) else 0.0,
        share_of_nodes=len(joined) / len(nodes) if len(nodes) else 0.0,
    )


def _events(trace: Trace) -> pd.DataFrame:
    rows: npt.NDArray[np.int64] = np.flatnonzero(trace.is_category(Category.OP))
    ids = trace.columns["record_function_id"][rows]
    known = pd.Series(ids).where(ids != MISSING).astype("Int64")
    frame = pd.DataFrame({"event_id": rows, "name": trace.names[rows], "rf_id": known})
    return frame


def _operators(raw: list[dict[str, Any]]) -> pd.DataFrame:
    """Nodes that stand for host events (an execution trace also holds its root and process nodes), in host order."""
    rows = [(int(node["id"]), str(node["name"]), int(node["rf_id"])) for node in raw if node.get("rf_id")]
    frame = pd.DataFrame(rows, columns=["node_id", "name", "rf_id"]).sort_values("rf_id", ignore_index=True)
    return frame.astype({"rf_id": "Int64", "name": object})


def _numbered(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(occurrence=frame.groupby("name").cumcount()).drop(columns="rf_id")
