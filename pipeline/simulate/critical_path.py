"""The critical path (Lin et al., Algorithm 1) over many draws of kernel times at once.

As published, it has one host clock and one clock per stream. The full form adds what real steps need: threads,
waits between streams, waits of the host, blocking copies and the limit of the launch queue. It is the only form here;
`program_changes.as_published` gives a program for which it yields the published times.
Each quantity is a vector over draws, so a thousand draws take little more time than one.

The recurrence is written twice: here in NumPy, and in `compiled_walk` for many draws, with equal results to the last bit.
Loading compiled code takes 0.5 s, which is more than a third of the time of a known question.

For row i, which follows row p, with all times from the begin of the step:

    start[i]  = max(end[p] + lead + gap, end of the thread)        (and a free place in the launch queue)

    device[i] = max(start[i] + latency, stream + kernel gap, awaited calls + kernel gap)
    stream    = device[i] + kernel time        (longer while collectives run on another stream)
    end[i]    = start[i] + api (or the end of what the host waits for + return) + tail

A step of a loop is walked twice. What the device has not finished when the host ends, the next step finds on its streams. The first
walk finds nothing, the second what the first has left: the step takes until the host ends, or until as much is left again. One walk
is enough where the host ends last. Where streams wait for each other this is near, not exact: all are taken to be as late as the
last.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Array, Ints
from pipeline.errors import InputError
from pipeline.simulate.compiled_walk import BESIDE_COLLECTIVES, SLOWED, Walked, walk
from pipeline.simulate.program import BACKLOG, NO_CALL, Kind, Program
from pipeline.simulate.timeline import Timeline, is_loaded

COMPILED_FROM = 30_000_000
"""Rows times draws from which compiled code pays in a process that has not loaded it: loading takes 0.5 s."""

BLOCK_VALUES = 4_000_000
"""Rows times draws that one simulation in NumPy holds per array: 32 MB in each of about ten arrays. With smaller blocks a
language model takes longer: the walk takes 7 µs per row, whatever the number of draws."""


def load_if_it_pays(values: int) -> bool:
    """Load the compiled walk where it pays for this number of rows times draws, and say whether it is loaded.

    A process that has loaded it uses it for every step.
    """
    if not is_loaded() and values < COMPILED_FROM:
        return False
    import numba  # noqa: F401 - from now on `is_loaded`

    return True


def simulate(
    program: Program,
    kernel_us: npt.ArrayLike,
    *,
    host_scale: npt.ArrayLike = 1.0,
) -> Timeline:
    """Run a program with given kernel times.

    Args:
        program: the step.
        kernel_us: time of each device call, shape (calls,) or (draws, calls).
        host_scale: factor on host times, a number or one per draw.

    Raises:
        InputError: the kernel times do not fit the program, or are negative or not finite.
    """
    kernels = np.atleast_2d(np.asarray(kernel_us, float))
    if kernels.shape[1] != program.call_count:
        raise InputError(
            f"kernel times are for {kernels.shape[1]} calls; the program has {program.call_count}"
        )
    if kernels.size and not (np.isfinite(kernels).all() and kernels.min() >= 0):
        raise InputError("kernel times must be finite and not negative")
    times, scale = (
        np.ascontiguousarray(kernels.T),
        np.broadcast_to(np.asarray(host_scale, float), (kernels.shape[0],)),
    )
    nothing = np.zeros(len(kernels))
    alone = Timeline(program, kernels, nothing, *_walked(program, times, scale, nothing))
    if not program.loop or not (alone.step_us > alone.host_us).any():
        return alone
    # of what is left when the host ends, a picture shows as much as fills idle time: a busy device is never ahead of its work
    carried_us = np.maximum(alone.step_us - np.maximum(alone.host_us, alone.busiest_us), 0.0)
    return Timeline(program, kernels, carried_us, *_walked(program, times, scale, carried_us))


def _walked(program: Program, times: Array, scale: Array, carried_us: Array) -> Walked:
    if program.fills is None and times.shape[1] == 1 and load_if_it_pays(len(program)):
        return walk(program, times, np.arange(len(times)), scale, carried_us)[2]
    return _Walk(program, times, scale, carried_us).run()


def step_times(program: Program, times: Array, which: Ints, host_scale: Array) -> Array:
    """Step time of each draw in µs, shape (draws,).

    Args:
        program: the step.
        times: drawn times of distinct calls, µs, shape (distinct, draws).
        which: row of `times` for each device call, shape (calls,).
        host_scale: factor on host times, shape (draws,).
    """
    steps, hosts = step_ends(program, times, which, host_scale)
    if program.loop and (steps > hosts).any():  # the device works into the next step
        steps, _ = step_ends(program, times, which, host_scale, steps - hosts)
    return steps


def step_ends(
    program: Program,
    times: Array,
    which: Ints,
    host_scale: Array,
    carried_us: Array | None = None,
) -> tuple[Array, Array]:
    """Step time and host time of each draw of a step alone in µs, shape (draws,); arguments as of `step_times`.

    `carried_us`: time until the device has finished earlier work, shape (draws,); 0 if not given.
    """
    draws = times.shape[1]
    carried_us = np.zeros(draws) if carried_us is None else carried_us
    if program.fills is None and load_if_it_pays(len(program) * draws):
        return walk(program, times, which, host_scale, carried_us)[:2]
    size = max(BLOCK_VALUES // max(len(program), 1), 64)
    steps, hosts = np.empty(draws), np.empty(draws)
    for block in (slice(begin, begin + size) for begin in range(0, draws, size)):
        kernels, carried = times[:, block][which], carried_us[block]
        timeline = Timeline(
            program, kernels.T, carried, *_Walk(program, kernels, host_scale[block], carried).run()
        )
        steps[block], hosts[block] = timeline.step_us, timeline.host_us
    return steps, hosts


class _Walk:
    """The full form for all draws at once: times of rows and calls, clocks of threads and streams (draws last)."""

    def __init__(
        self, program: Program, times: Array, host_scale: Array, carried_us: Array
    ) -> None:
        draws, rows, calls, streams = (
            len(host_scale),
            len(program),
            program.call_count,
            len(program.streams),
        )
        self.p, self.times, self.scale = program, times, host_scale
        self.start, self.end = np.zeros((rows, draws)), np.zeros((rows, draws))
        self.device_start, self.device_end = (
            np.full((calls, draws), np.nan),
            np.full((calls, draws), np.nan),
        )
        busy_us = program.backlog_us[:, None] + carried_us
        self.stream_end = np.where(busy_us > 0, busy_us, -np.inf)
        self.stream_call = [BACKLOG] * streams
        self.filling: list[list[int]] = [[] for _ in range(streams)]
        self.launch_cause, self.host_cause = (
            np.full(rows, NO_CALL, np.int64),
            np.full(rows, NO_CALL, np.int64),
        )
        self.device_cause = np.full(calls, NO_CALL, np.int64)

    def run(self) -> Walked:
        p, scale = self.p, self.scale
        clock = dict.fromkeys(p.thread.tolist(), np.zeros(len(scale)))
        host, api, tail = p.lead_us + p.gap_us, p.api_us, p.tail_us
        kind, previous, thread = p.kind.tolist(), p.previous.tolist(), p.thread.tolist()
        further = [False] * len(p) if p.further is None else p.further.tolist()
        launched: list[int] = []
        for i in range(len(p)):
            before = self.end[previous[i]] if previous[i] >= 0 else 0.0
            self.start[i] = np.maximum(before + host[i] * scale, clock[thread[i]])
            if kind[i] == Kind.LAUNCH:
                if p.queue_depth and len(launched) >= p.queue_depth and not further[i]:
                    oldest = launched[-p.queue_depth]
                    _wait(self.start, self.launch_cause, i, self.device_start[oldest], oldest)
                self.end[i] = self.start[i] + api[i] * scale
                self._launch(i)
                if not further[i]:
                    launched.append(int(p.call[i]))
            else:
                self.end[i] = self.start[i] + api[i] * scale
                if kind[i] == Kind.SYNC:
                    self._synchronise(i)
            self.end[i] += tail[i] * scale
            clock[thread[i]] = self.end[i]
        return Walked(
            self.start,
            self.end,
            self.device_start,
            self.device_end,
            self.launch_cause,
            self.host_cause,
            self.device_cause,
        )

    def _launch(self, i: int) -> None:
        """Start the call of row i when all that it waits for is ready."""
        p, call, stream, gap = (
            self.p,
            int(self.p.call[i]),
            int(self.p.stream[i]),
            self.p.kernel_gap_us[i],
        )
        self.device_start[call] = self.start[i] + p.latency_us[i]
        _wait(
            self.device_start,
            self.device_cause,
            call,
            self.stream_end[stream] + gap,
            self.stream_call[stream],
        )
        for awaited in self._awaited(i):
            if not np.isnan(self.device_end[awaited, 0]):
                _wait(
                    self.device_start,
                    self.device_cause,
                    call,
                    self.device_end[awaited] + gap,
                    awaited,
                )
        if p.fills is not None and p.competes is not None and p.competes[call]:
            self._make_room(call, stream)
            if p.fills[call]:
                self.filling[stream].append(call)
        self.device_end[call] = self.device_start[call] + self.times[call]
        if 0 <= stream < p.collectives:
            until = self.stream_end[p.collectives :].max(axis=0)
            beside = np.maximum(until - self.device_start[call], 0.0) * SLOWED
            self.device_end[call] += np.minimum(
                self.times[call] * (BESIDE_COLLECTIVES - 1.0), beside
            )
        self.stream_end[stream], self.stream_call[stream] = self.device_end[call], call
        if p.blocking[i]:
            back = 0.0 if p.latency_us[i] == 0.0 else p.sync_return_us
            _wait(self.end, self.host_cause, i, self.device_end[call] + back, call)

    def _make_room(self, call: int, stream: int) -> None:
        """Delay a kernel while a kernel of another stream fills the device, until the last blocks of that kernel run.

        Only the kernel that runs at that moment counts. Kernels queued behind it have no priority over this one.
        """
        begin = self.device_start[call].copy()
        for other, filling in enumerate(self.filling):
            for full in reversed(filling if other != stream else []):
                if (self.device_end[full] <= begin).all():
                    break  # kernels launched before it have ended, too
                runs = (self.device_start[full] <= begin) & (begin < self.device_end[full])
                _wait(
                    self.device_start,
                    self.device_cause,
                    call,
                    np.where(runs, self.device_end[full], 0.0),
                    full,
                )

    def _synchronise(self, i: int) -> None:
        """Let the host wait for the calls that row i names, else for its stream or for all streams."""
        p, awaited = self.p, self._awaited(i)
        for call in awaited:
            _wait(self.end, self.host_cause, i, self.device_end[call] + p.sync_return_us, call)
        if not awaited:
            for stream in range(len(p.streams)) if p.stream[i] < 0 else (int(p.stream[i]),):
                until = self.stream_end[stream] + p.sync_return_us
                _wait(self.end, self.host_cause, i, until, self.stream_call[stream])

    def _awaited(self, i: int) -> list[int]:
        calls: list[int] = self.p.wait_calls[
            self.p.wait_offsets[i] : self.p.wait_offsets[i + 1]
        ].tolist()
        return calls


def _wait(times: Array, cause: Ints, row: int, until: Array, call: int) -> None:
    """Delay a row of `times` until some time. If that is later in the first draw, the call is the row's cause."""
    if until[0] > times[row, 0]:
        cause[row] = call
    np.maximum(times[row], until, out=times[row])
