"""Device events to their launches: by correlation id, within a process where ids repeat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.trace.columns import MISSING

Ints = npt.NDArray[np.int64]


def launches(device_correlation: Ints, device_start: Ints, host_correlation: Ints, host_start: Ints) -> Ints:
    """Row of the runtime call that launched each device event; -1 where no call carries its correlation id.

    Where several calls carry the same id (merged traces, damaged files), the latest that began before the device event
    is taken. One call may launch many device events (CUDA graphs).
    """
    rows = np.flatnonzero(host_correlation != MISSING)
    rows = rows[np.lexsort((host_start[rows], host_correlation[rows]))]
    out = np.full(len(device_correlation), -1, np.int64)
    if not len(rows):
        return out
    ids = host_correlation[rows]
    first = np.searchsorted(ids, device_correlation, side="left")
    last = np.searchsorted(ids, device_correlation, side="right") - 1
    found = (last >= first) & (device_correlation != MISSING)
    repeated = np.flatnonzero(found & (last > first))
    for row in repeated:  # rare: only where an id occurs more than once
        stamps = host_start[rows[first[row] : last[row] + 1]]
        last[row] = first[row] + max(int(np.searchsorted(stamps, device_start[row], side="right")) - 1, 0)
    out[found] = rows[last[found]]
    return out
