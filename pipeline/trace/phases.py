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

_PHASE_RULES: tuple[tuple[int, tuple[str, ...]], ...] = (
    (LOSS, ("aten::",)),  # if "loss" is in the name, too
    (OPTIMIZER, (OPTIMIZER_PREFIX, "## optimizer")),
    (BACKWARD, (BACKWARD_PREFIX,)),
    (DATA, (LOADER_MARKER,)),
    (COMMUNICATION, ("nccl:", "c10d::", "record_param_comms", "gloo:")),
)
"""Prefixes of the names of a phase, which is that of the event and of everything inside it. Later rules have
priority."""

_RULE_OF = {prefix: number for number, (_, prefixes) in enumerate(_PHASE_RULES, 1) for prefix in prefixes}
_PREFIX = re.compile("|".join(map(re.escape, _RULE_OF)))


def _rule(name: str) -> int:
    """Number of the rule for a name, counted from 1; 0 where none applies."""
    found = _PREFIX.match(name)
    return _RULE_OF[found[0]] if found and (found[0] != "aten::" or "loss" in name.lower()) else 0


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
