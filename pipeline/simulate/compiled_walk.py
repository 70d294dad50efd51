"""The critical path in compiled code (numba): the full form of `critical_path`, for blocks of draws.

The recurrence and its results are those of `critical_path`, to the last bit (`tests/simulate/test_step_draws.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeline.arrays import Array, Ints
from pipeline.simulate.program import BACKLOG, NO_CALL, Kind, Program
from pipeline.simulate.timeline import compiled

BESIDE_COLLECTIVES = 1.189
"""Factor on the time of kernels while a collective runs beside them: it takes SMs and memory bandwidth. Kernels beside
collectives are 18.9 % slower in the mean and 40 % at most in measurements of training steps on several GPUs."""

DRAWS_AT_ONCE = 64
"""Draws that the compiled walk keeps at a time. With 32, loops over them are too short for vectors; with 128, the clocks of a
large step no longer fit in a core's cache."""

SLOWED = 1.0 - 1.0 / BESIDE_COLLECTIVES
"""Part of a kernel's time beside collectives that it loses to them."""

_ADDED = BESIDE_COLLECTIVES - 1.0
_LAUNCH, _SYNC = int(Kind.LAUNCH), int(Kind.SYNC)
_NO_CALL, _BACKLOG = NO_CALL, BACKLOG


class Walked(NamedTuple):
    """Times in µs of the block of draws that was walked last, and what each row and call waited for in its first draw.

    `timeline.Timeline` explains each array.
    """

    row_start: Array
    row_end: Array
    device_start: Array
    device_end: Array
    launch_cause: Ints
    host_cause: Ints
    device_cause: Ints


def walk(
    program: Program, times: Array, which: Ints, host_scale: Array, carried_us: Array
) -> tuple[Array, Array, Walked]:
    """Step time and host time of each draw in µs, shape (draws,), and the times of the last block.

    Args:
        program: the step.
        times: drawn times of distinct calls, µs, shape (distinct, draws).
        which: row of `times` for each device call, shape (calls,).
        host_scale: factor on host times, shape (draws,).
        carried_us: as of `timeline.Timeline`, shape (draws,).
    """
    p, draws = program, times.shape[1]
    further = np.zeros(len(p), np.bool_) if p.further is None else p.further
    names, thread = np.unique(p.thread, return_inverse=True)
    width, calls = min(DRAWS_AT_ONCE, draws), len(which)
    block = Walked(
        np.empty((len(p), width)),
        np.empty((len(p), width)),
        np.full((calls, width), np.nan),
        np.full((calls, width), np.nan),
        *(np.full(count, NO_CALL, np.int64) for count in (len(p), len(p), calls)),
    )
    steps, hosts = np.empty(draws), np.empty(draws)
    compiled(_walk)(
        len(names),
        p.kind,
        thread,
        p.previous,
        p.lead_us + p.gap_us,
        p.api_us,
        p.tail_us,
        p.call,
        p.stream,
        p.blocking,
        further,
        p.latency_us,
        p.kernel_gap_us,
        p.wait_offsets,
        p.wait_calls,
        p.backlog_us,
        float(p.sync_return_us),
        int(p.queue_depth),
        int(p.collectives),
        np.ascontiguousarray(times),
        np.asarray(which, np.int64),
        np.ascontiguousarray(host_scale, np.float64),
        np.ascontiguousarray(carried_us, np.float64),
        steps,
        hosts,
        *block,
    )
    return steps, hosts, block


def _walk(  # type: ignore[no-untyped-def]
    threads,
    kind,
    thread,
    previous,
    host,
    api,
    tail,
    call,
    stream,
    blocking,
    further,
    latency,
    kernel_gap,
    wait_offsets,
    wait_calls,
    backlog,
    sync_return,
    queue_depth,
    collectives,
    times,
    which,
    host_scale,
    carried,
    steps,
    hosts,
    start,
    end,
    device_start,
    device_end,
    launch_cause,
    host_cause,
    device_cause,
):
    """The full form of `critical_path` for blocks of draws; see there for the recurrence.

    It fills `steps` and the arrays of `Walked`. Loops over draws become vector code: what is the same for each draw is read
    before the loop, and the counter is unsigned, so that no index may count from the end of an array.
    """
    rows, calls, draws, width = len(kind), len(which), len(steps), end.shape[1]
    clock, stream_end = np.empty((threads, width)), np.empty((len(backlog), width))
    begin, ready, done = np.empty(width), np.empty(width), np.empty(width)
    host_end, last_end = np.empty(width), np.empty(width)
    stream_call, launched = np.empty(len(backlog), np.int64), np.empty(rows, np.int64)
    ran = np.empty(calls, np.bool_)
    for first in range(0, draws, width):
        n = np.uintp(min(width, draws - first))
        scale = host_scale[first : first + n]
        begun = np.uintp(first)
        clock[:] = host_end[:] = last_end[:] = 0.0
        ran[:] = False
        stream_call[:] = _BACKLOG
        for s in range(len(backlog)):
            for d in range(n):
                busy_until = backlog[s] + carried[begun + d]
                stream_end[s, d] = busy_until if busy_until > 0 else -np.inf
        count = 0
        for i in range(rows):
            own = thread[i]
            before, on_host, in_api, after = previous[i], host[i], api[i], tail[i]
            if before >= 0:
                for d in range(n):
                    begin[d] = max(end[before, d] + on_host * scale[d], clock[own, d])
            else:
                for d in range(n):
                    begin[d] = max(on_host * scale[d], clock[own, d])
            if kind[i] == _LAUNCH:
                c, s, late, gap = call[i], stream[i], latency[i], kernel_gap[i]
                row = which[c]
                if queue_depth > 0 and count >= queue_depth and not further[i]:
                    oldest = launched[count - queue_depth]
                    launch_cause[i] = oldest if device_start[oldest, 0] > begin[0] else _NO_CALL
                    for d in range(n):
                        begin[d] = max(begin[d], device_start[oldest, d])
                for d in range(n):
                    start[i, d] = begin[d]
                    ready[d] = begin[d] + late
                    done[d] = begin[d] + in_api * scale[d]
                cause = stream_call[s] if stream_end[s, 0] + gap > ready[0] else _NO_CALL
                for d in range(n):
                    ready[d] = max(ready[d], stream_end[s, d] + gap)
                for w in range(wait_offsets[i], wait_offsets[i + 1]):
                    waited = wait_calls[w]
                    if ran[waited]:
                        cause = waited if device_end[waited, 0] + gap > ready[0] else cause
                        for d in range(n):
                            ready[d] = max(ready[d], device_end[waited, d] + gap)
                for d in range(n):
                    device_start[c, d] = ready[d]
                    now = ready[d] + times[row, begun + d]
                    if s < collectives:
                        beside = 0.0
                        for o in range(collectives, len(backlog)):
                            beside = max(beside, stream_end[o, d] - ready[d])
                        now += min(times[row, begun + d] * _ADDED, beside * SLOWED)
                    device_end[c, d] = now
                    stream_end[s, d] = now
                    last_end[d] = max(last_end[d], now)
                device_cause[c] = cause
                stream_call[s] = c
                ran[c] = True
                if not further[i]:
                    launched[count] = c
                    count += 1
                if blocking[i]:
                    back = 0.0 if latency[i] == 0.0 else sync_return
                    host_cause[i] = c if device_end[c, 0] + back > done[0] else _NO_CALL
                    for d in range(n):
                        done[d] = max(done[d], device_end[c, d] + back)
            else:
                for d in range(n):
                    start[i, d] = begin[d]
                    done[d] = begin[d] + in_api * scale[d]
                if kind[i] == _SYNC:
                    cause = _NO_CALL
                    if wait_offsets[i] < wait_offsets[i + 1]:
                        for w in range(wait_offsets[i], wait_offsets[i + 1]):
                            waited = wait_calls[w]
                            cause = (
                                waited if device_end[waited, 0] + sync_return > done[0] else cause
                            )
                            for d in range(n):
                                done[d] = max(done[d], device_end[waited, d] + sync_return)
                    else:
                        for s in range(len(backlog)):
                            if stream[i] < 0 or stream[i] == s:
                                cause = (
                                    stream_call[s]
                                    if stream_end[s, 0] + sync_return > done[0]
                                    else cause
                                )
                                for d in range(n):
                                    done[d] = max(done[d], stream_end[s, d] + sync_return)
                    host_cause[i] = cause
            for d in range(n):
                now = done[d] + after * scale[d]
                end[i, d] = clock[own, d] = now
                host_end[d] = max(host_end[d], now)
        for d in range(n):
            hosts[begun + d] = host_end[d]
            steps[begun + d] = max(host_end[d], last_end[d] - carried[begun + d])
