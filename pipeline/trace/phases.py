"""Phase of every event: forward, loss, backward, optimizer, data loading, communication."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from pipeline.trace import nesting as tree
from pipeline.trace.kineto_fields import BACKWARD_PREFIX, LOADER_MARKER, OPTIMIZER_PREFIX
from pipeline.trace.linked_trace import Trace

Ints = npt.NDArray[np.int64]

PHASES = ("forward", "loss", "backward", "optimizer", "data", "communication")
FORWARD, LOSS, BACKWARD, OPTIMIZER, DATA, COMMUNICATION = range(6)

_PHASE_RULES = (
    (LOSS, r"aten::(?ais:.*loss)"),
    (OPTIMIZER, re.escape(OPTIMIZER_PREFIX) + "|## optimizer"),
    (BACKWARD, re.escape(BACKWARD_PREFIX)),
    (DATA, re.escape(LOADER_MARKER)),
    (COMMUNICATION, "nccl:|c10d::|record_param_comms|gloo:"),
)
"""Patterns of how a name begins, and the phase of the event and of everything inside it. Of the phases of several
enclosing events, the later rule has priority."""

_RULE = re.compile("|".join(f"({pattern})" for _, pattern in _PHASE_RULES))


def _rule(name: str) -> int:
    """Number of the rule for a name, counted from 1; 0 where none applies."""
    found = _RULE.match(name)
    return (found.lastindex or 0) if found else 0


def phases(trace: Trace, rows: Ints, parent: Ints, device: Ints, launch: Ints) -> Ints:
    """Code into `PHASES` per event, -1 for events that are neither host nor device work.

    Args:
        trace: the trace; names are read from it.
        rows: host events in nesting order.
        parent: for each of `rows` the position (in `rows`) of the event that encloses it, or -1.
        device: device events.
        launch: for each of `device` the event that launched it, or -1.
    """
    name = trace.columns["name"]
    out = np.full(len(trace), -1, np.int64)
    rule = np.array([_rule(text) for text in trace.vocabulary["name"]], np.int8)
    codes = np.array([FORWARD, *(code for code, _ in _PHASE_RULES)])
    out[rows] = codes.take(tree.highest(parent, rule.take(name.take(rows))))
    out[device] = np.where(launch >= 0, out[launch], FORWARD)
    collective = np.array(["nccl" in text or "rccl" in text for text in trace.vocabulary["name"]], np.bool_)
    out[device[collective[name[device]]]] = COMMUNICATION
    return out
