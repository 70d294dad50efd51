"""Several ranks of one job, simulated together: a collective ends when its slowest rank has arrived and moved its part.

Ranks with equal work are one role, of which one rank is simulated; roles meet in collectives:
    end = latest arrival over the roles + time of the transfer
The measured duration of a collective on one rank includes its wait for the other ranks. The rank with the shortest duration arrived
last, so the shortest is taken as the time of the transfer. Predicted durations have no waits: the transfer takes as long as that of
the rank that moves most.
Arrivals depend on earlier meetings. All roles are simulated in repeated passes until no meeting moves. Each pass settles at least
one more meeting of those that depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeline.arrays import Array, Ints
from pipeline.errors import InputError
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Program
from pipeline.simulate.timeline import Timeline

CONVERGED_US = 0.01
"""Passes end when no meeting moves by more than this time, in µs."""


@dataclass(frozen=True)
class Role:
    """Ranks with equal work.

    Attributes:
        program: what each of them runs.
        kernel_us: times of its device calls, shape (calls,) or (draws, calls); those of collectives as measured, or of the transfer
            alone.
        meetings: number of the meeting of each call with other roles, -1 for none, shape (calls,); empty for no meetings.
        begin_us: when its step begins, on a clock that all roles share.
        host_scale: factor on its host times, a number or one per draw.
    """

    program: Program
    kernel_us: Array
    meetings: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    begin_us: float = 0.0
    host_scale: Array | float = 1.0


def simulate_ranks(roles: Sequence[Role], waits_inside: bool = True) -> list[Timeline]:
    """One timeline of each role.

    Args:
        roles: all ranks of a job; a single role meets nobody.
        waits_inside: whether times of collectives are measured, and hold the wait for the other ranks.

    Raises:
        InputError: the roles do not take part in the same meetings.
    """
    calls = [np.flatnonzero(role.meetings >= 0) for role in roles]
    met = [role.meetings[own] for role, own in zip(roles, calls, strict=True)]
    count = 1 + max((int(numbers.max(initial=-1)) for numbers in met), default=-1)
    sides = np.bincount(np.concatenate(met), minlength=count)
    if len(roles) > 1 and (sides < 2).any():
        raise InputError(
            f"the ranks have different numbers of collectives ({sorted(map(len, met))}); give"
            " traces of the same step"
        )
    # shape (calls, draws)
    times = [np.array(np.atleast_2d(role.kernel_us), float).T for role in roles]
    shape = count, times[0].shape[1]
    transfer, ends = np.full(shape, np.inf if waits_inside else 0.0), np.zeros(shape)
    least_or_most = np.minimum if waits_inside else np.maximum
    for values, own, numbers in zip(times, calls, met, strict=True):
        least_or_most.at(transfer, numbers, values[own])
    for values, own, numbers in zip(times, calls, met, strict=True):
        values[own] = transfer[numbers]
    timelines: list[Timeline] = []
    for _ in range(count + 1):
        timelines = [
            simulate(role.program, values.T, host_scale=role.host_scale)
            for role, values in zip(roles, times, strict=True)
        ]
        arrival, before = np.full(shape, -np.inf), ends
        starts = [t.device_start[own] for t, own in zip(timelines, calls, strict=True)]
        for role, start, numbers in zip(roles, starts, met, strict=True):
            np.maximum.at(arrival, numbers, start + role.begin_us)
        ends = arrival + transfer
        for i, role in enumerate(roles):
            times[i][calls[i]] = ends[met[i]] - role.begin_us - starts[i]
        if np.abs(ends - before).max(initial=0.0) <= CONVERGED_US:
            break
    return timelines
