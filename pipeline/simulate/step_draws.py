"""Step times of many draws of kernel and host times.

`simulate` returns the whole timeline. An interval needs only the end of each draw, so this module runs the same recurrence
in compiled code that keeps one block of draws at a time. The results are equal to the last bit
(`tests/predict/test_step_draws.py`).
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.simulate.critical_path import Form, simulate
from pipeline.simulate.step_program import Kind, Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COMPILED_FROM = 30_000_000
"""Rows times draws from which compiled code pays in a process that has not loaded it: loading takes 0.5 s."""

BLOCK_VALUES = 4_000_000
"""Rows times draws that one plain simulation holds per array: 32 MB in each of about ten arrays. With smaller blocks a
language model takes longer: the plain walk takes 5 µs per row, whatever the number of draws."""

DRAWS_AT_ONCE = 32
"""Draws that the compiled walk keeps at a time: the clocks of a step of 10,000 rows then fit in a core's cache."""

_LAUNCH, _SYNC = int(Kind.LAUNCH), int(Kind.SYNC)


def step_times(program: Program, times: Floats, which: Ints, host_scale: Floats, form: Form = "full") -> Floats:
    """Step time of each draw in µs, shape (draws,).

    Args:
        program: the step.
        times: drawn times of distinct calls, µs, shape (distinct, draws).
        which: row of `times` for each device call, shape (calls,).
        host_scale: factor on host times, shape (draws,).
        form: form of the critical path, as in `simulate`.
    """
    draws = times.shape[1]
    if form == "full" and program.fills is None and _use_compiled(len(program) * draws):
        return _compiled_steps(program, times, which, host_scale)
    size = max(BLOCK_VALUES // max(len(program), 1), 64)
    blocks = [slice(begin, begin + size) for begin in range(0, draws, size)]
    return np.concatenate(
        [
            simulate(program, times[:, block][which].T, form=form, host_scale=host_scale[block]).step_us
            for block in blocks
        ]
    )


def _use_compiled(values: int) -> bool:
    return "numba" in sys.modules or (values >= COMPILED_FROM and find_spec("numba") is not None)


def _compiled_steps(program: Program, times: Floats, which: Ints, host_scale: Floats) -> Floats:
    p = program
    further = np.zeros(len(p), np.bool_) if p.further is None else p.further
    names, thread = np.unique(p.thread, return_inverse=True)
    steps = np.empty(times.shape[1])
    _compiled()(
        len(names), p.kind, thread, p.previous, p.lead_us + p.gap_us, p.api_us, p.tail_us, p.call, p.stream, p.blocking, further,
        p.latency_us, p.kernel_gap_us, p.wait_offsets, p.wait_calls, p.backlog_us, float(p.sync_return_us),
        int(p.queue_depth), np.ascontiguousarray(times), np.asarray(which, np.int64),
        np.ascontiguousarray(host_scale, np.float64), steps,
    )  # fmt: skip
    return steps


@cache
def _compiled() -> Any:
    """The compiled walk; numba stores the machine code beside this file, or in the user's cache folder."""
    from numba import njit

    return njit(cache=True, nogil=True)(_walk)


def _walk(  # type: ignore[no-untyped-def]
    threads, kind, thread, previous, host, api, tail, call, stream, blocking, further, latency, kernel_gap,
    wait_offsets, wait_calls, backlog, sync_return, queue_depth, times, which, host_scale, steps,
):  # fmt: skip
    """The full form of `critical_path` for blocks of draws; see there for the recurrence. It fills `steps`."""
    rows, calls, draws = len(kind), len(which), len(steps)
    width = min(DRAWS_AT_ONCE, draws)
    end, device_start, device_end = np.empty((rows, width)), np.empty((calls, width)), np.empty((calls, width))
    clock, stream_end = np.empty((threads, width)), np.empty((len(backlog), width))
    begin, ready, done, last = np.empty(width), np.empty(width), np.empty(width), np.empty(width)
    stream_call, launched = np.empty(len(backlog), np.int64), np.empty(rows, np.int64)
    ran = np.empty(calls, np.bool_)
    for first in range(0, draws, width):
        n = min(width, draws - first)
        scale = host_scale[first : first + n]
        clock[:] = 0.0
        last[:] = 0.0
        ran[:] = False
        for s in range(len(backlog)):
            stream_call[s] = -1
            stream_end[s] = backlog[s]
        count = 0
        for i in range(rows):
            own = thread[i]
            for d in range(n):
                before = end[previous[i], d] if previous[i] >= 0 else 0.0
                begin[d] = max(before + host[i] * scale[d], clock[own, d])
            if kind[i] == _LAUNCH:
                c, s = call[i], stream[i]
                if queue_depth > 0 and count >= queue_depth and not further[i]:
                    oldest = launched[count - queue_depth]
                    for d in range(n):
                        begin[d] = max(begin[d], device_start[oldest, d])
                for d in range(n):
                    ready[d] = begin[d] + latency[i]
                    done[d] = begin[d] + api[i] * scale[d]
                if stream_call[s] >= 0 or backlog[s] > 0:
                    for d in range(n):
                        ready[d] = max(ready[d], stream_end[s, d] + kernel_gap[i])
                for w in range(wait_offsets[i], wait_offsets[i + 1]):
                    if ran[wait_calls[w]]:
                        for d in range(n):
                            ready[d] = max(ready[d], device_end[wait_calls[w], d] + kernel_gap[i])
                for d in range(n):
                    device_start[c, d] = ready[d]
                    device_end[c, d] = ready[d] + times[which[c], first + d]
                    stream_end[s, d] = device_end[c, d]
                    last[d] = max(last[d], device_end[c, d])
                stream_call[s] = c
                ran[c] = True
                if not further[i]:
                    launched[count] = c
                    count += 1
                if blocking[i]:
                    back = 0.0 if latency[i] == 0.0 else sync_return
                    for d in range(n):
                        done[d] = max(done[d], device_end[c, d] + back)
            else:
                for d in range(n):
                    done[d] = begin[d] + api[i] * scale[d]
                if kind[i] == _SYNC:
                    if wait_offsets[i] < wait_offsets[i + 1]:
                        for w in range(wait_offsets[i], wait_offsets[i + 1]):
                            for d in range(n):
                                done[d] = max(done[d], device_end[wait_calls[w], d] + sync_return)
                    else:
                        for s in range(len(backlog)):
                            if (stream[i] < 0 or stream[i] == s) and (stream_call[s] >= 0 or backlog[s] > 0):
                                for d in range(n):
                                    done[d] = max(done[d], stream_end[s, d] + sync_return)
            for d in range(n):
                end[i, d] = done[d] + tail[i] * scale[d]
                clock[own, d] = end[i, d]
                last[d] = max(last[d], end[i, d])
        for d in range(n):
            steps[first + d] = last[d]
