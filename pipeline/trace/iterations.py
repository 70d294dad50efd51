"""Training iterations in a trace: where each begins and ends (DESIGN section 13).

A window opens at a marker (`ProfilerStep#n`, else `Optimizer.zero_grad`, else the data loader's `__next__`). A
ProfilerStep closes itself; the other markers close at the next one, and what follows the last is no whole iteration.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.trace.fields import LOADER_MARKER, STEP_MARKER, ZERO_GRAD_MARKER

Ints = npt.NDArray[np.int64]


def windows(names: npt.NDArray[np.object_], start: Ints, end: Ints, span: tuple[int, int]) -> tuple[str, Ints, Ints]:
    """Marker and the (start, end) of each iteration, ns.

    Args:
        names: names of the annotations of the trace.
        start: their starts, ns.
        end: their ends, ns.
        span: start and end of the whole trace, the one iteration of a trace without a marker.
    """
    for marker in (STEP_MARKER, ZERO_GRAD_MARKER, LOADER_MARKER):
        rows = np.flatnonzero([name.startswith(marker) for name in names])
        if not len(rows):
            continue
        rows = rows[np.argsort(start[rows], kind="stable")]
        opens = start[rows]
        if marker == STEP_MARKER:
            return marker, opens, end[rows]
        rows = rows[np.concatenate(([True], opens[1:] >= np.maximum.accumulate(end[rows])[:-1]))]
        opens = start[rows]
        if len(opens) > 1:
            return marker, opens[:-1], opens[1:]
        return marker, opens, np.array([span[1] + 1], np.int64)
    return "", np.array([span[0]], np.int64), np.array([span[1] + 1], np.int64)


def assign(stamps: Ints, opens: Ints, closes: Ints) -> Ints:
    """Iteration of each stamp; -1 where it lies in none."""
    at = np.searchsorted(opens, stamps, side="right") - 1
    inside = (at >= 0) & (stamps < closes[np.maximum(at, 0)])
    return np.where(inside, at, -1)
