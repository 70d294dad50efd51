"""Links device events to their launches, by correlation id, within the process that uses the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.trace.kineto_fields import MISSING

Ints = npt.NDArray[np.int64]

OWNED_SHARE = 0.9
"""A process uses a device if its calls match at least this share of the device events that the ids of all processes
match. The share does not refer to all events of the device. Profilers lose launches (a fifth of them in two ranks of
v100x8_dlrm), and their ids match calls of other processes by chance."""


def launches(
    device_correlation: Ints, device_start: Ints, host_correlation: Ints, host_start: Ints, device: Ints, process: Ints
) -> Ints:
    """Row of the runtime call that launched each device event; -1 where no call carries its correlation id.

    Each process counts its ids from 1, so in a file of several ranks an id alone is ambiguous. Every device is assigned
    to the process whose launches precede its events most closely.

    Args:
        device_correlation: ids of the device events.
        device_start: their starts.
        host_correlation: ids of the runtime calls.
        host_start: their starts.
        device: device of each device event.
        process: process of each runtime call.
    """
    processes = distinct(process)
    if len(processes) < 2:
        return _within(device_correlation, device_start, host_correlation, host_start)
    out = np.full(len(device_correlation), -1, np.int64)
    for gpu in distinct(device):
        rows = np.flatnonzero(device == gpu)
        of_any = _within(device_correlation[rows], device_start[rows], host_correlation, host_start)
        best = (np.inf, of_any)
        for own in processes:
            hosts = np.flatnonzero(process == own)
            found = _within(device_correlation[rows], device_start[rows], host_correlation[hosts], host_start[hosts])
            linked = found >= 0
            if linked.any() and linked.sum() >= OWNED_SHARE * (of_any >= 0).sum():
                launch = hosts[np.maximum(found, 0)]
                delay = float(np.median(np.abs(device_start[rows] - host_start[launch])[linked]))
                best = min(best, (delay, np.where(linked, launch, -1)), key=lambda pair: pair[0])
        out[rows] = best[1]
    return out


def distinct(values: Ints) -> Ints:
    """The distinct values in order. `np.unique` without counts loads numpy.ma: 3 MB and as long as 3 MB of trace."""
    return np.unique(values, return_counts=True)[0]


def _within(device_correlation: Ints, device_start: Ints, host_correlation: Ints, host_start: Ints) -> Ints:
    """Launches by id only.

    If several calls have the same id (damaged files), the latest one that began before the device event is used. One
    call may launch many device events (CUDA graphs).
    """
    rows = np.flatnonzero(host_correlation != MISSING)
    rows = rows[np.lexsort((host_start[rows], host_correlation[rows]))]
    out = np.full(len(device_correlation), -1, np.int64)
    if not len(rows):
        return out
    ids = np.append(host_correlation[rows], [MISSING, MISSING])
    first = np.searchsorted(ids[:-2], device_correlation)
    found = (ids[first] == device_correlation) & (device_correlation != MISSING)
    for row in np.flatnonzero(found & (ids[first + 1] == device_correlation)):  # rare: an id that occurs more than once
        last = int(np.searchsorted(ids[:-2], device_correlation[row], side="right"))
        stamps = host_start[rows[first[row] : last]]
        first[row] += max(int(np.searchsorted(stamps, device_start[row], side="right")) - 1, 0)
    out[found] = rows[first[found]]
    return out
