"""Phase of every event: forward, loss, backward, optimizer, data loading, communication."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipeline.trace import nesting as tree
from pipeline.trace.kineto_fields import BACKWARD_PREFIX, LOADER_MARKER, OPTIMIZER_PREFIX
from pipeline.trace.linked_trace import Trace

Ints = npt.NDArray[np.int64]

PHASES = ("forward", "loss", "backward", "optimizer", "data", "communication")
FORWARD, LOSS, BACKWARD, OPTIMIZER, DATA, COMMUNICATION = range(6)

_PHASE_RULES: tuple[tuple[int, Callable[[str], bool]], ...] = (
    (LOSS, lambda name: "loss" in name.lower() and name.startswith("aten::")),
    (OPTIMIZER, lambda name: name.startswith(OPTIMIZER_PREFIX) or name.startswith("## optimizer")),
    (BACKWARD, lambda name: name.startswith(BACKWARD_PREFIX)),
    (DATA, lambda name: name.startswith(LOADER_MARKER)),
    (COMMUNICATION, lambda name: name.startswith(("nccl:", "c10d::", "record_param_comms", "gloo:"))),
)
"""Rules from a name to the phase of the event and of everything inside it. Later rules have priority."""


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
    rule = np.zeros(len(trace.vocabulary["name"]), np.int8)  # of each name, 0 where none applies
    for number, (_, test) in enumerate(_PHASE_RULES, 1):
        rule[np.flatnonzero([test(text) for text in trace.vocabulary["name"]])] = number
    codes = np.array([FORWARD, *(code for code, _ in _PHASE_RULES)])
    out[rows] = codes[tree.highest(parent, rule[name[rows]])]
    out[device] = np.where(launch >= 0, out[launch], FORWARD)
    collective = np.array(["nccl" in text or "rccl" in text for text in trace.vocabulary["name"]], np.bool_)
    out[device[collective[name[device]]]] = COMMUNICATION
    return out
