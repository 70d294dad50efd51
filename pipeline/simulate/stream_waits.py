"""Which calls of a captured step wait for calls of another stream: collectives for gradients, kernels for collectives."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from pipeline.graph.device_calls import COMMUNICATION_STREAM

WAIT = "c10d::wait"
"""The operator of a graph that makes the computing stream wait for collectives."""


def stream_waits(graph: pd.DataFrame, calls: pd.DataFrame) -> dict[int, tuple[int, ...]]:
    """Rows of `calls` that wait for rows of another stream.

    - A collective waits for what was launched before it: NCCL's stream waits for an event of the computing stream.
    - The first call after a wait waits for the last collective that the wait names. Earlier ones have ended before it.

    Args:
        graph: `graph` table in host order.
        calls: `calls` table in launch order.
    """
    communicates = calls["stream"].to_numpy(np.int64) == COMMUNICATION_STREAM
    if not communicates.any():
        return {}
    order = pd.Series(graph["order"].to_numpy(np.int64), graph["node_id"].to_numpy(np.int64))
    position = order.loc[calls["node_id"].to_numpy(np.int64)].to_numpy()
    computing, collectives = np.flatnonzero(~communicates), np.flatnonzero(communicates)
    waits: dict[int, tuple[int, ...]] = {}
    before = np.searchsorted(computing, collectives) - 1
    for row, last in zip(collectives.tolist(), before.tolist(), strict=True):
        if last >= 0:
            waits[row] = (int(computing[last]),)
    named = graph[graph["name"].str.startswith("nccl:") | (graph["name"] == WAIT)].sort_values("order")
    row_at = dict(zip(position[collectives].tolist(), collectives.tolist(), strict=True))
    row_of: dict[int, int] = {}
    for at, text in zip(named["order"].tolist(), named["attributes"].tolist(), strict=True):
        attributes = json.loads(text)
        if "collective" in attributes:
            row_of[attributes["collective"]] = row_at[at]
            continue
        after = np.searchsorted(position[computing], at)
        if after < len(computing) and attributes["awaits"] in row_of:
            waiting = int(computing[after])
            waits[waiting] = (*waits.get(waiting, ()), row_of[attributes["awaits"]])
    return waits
