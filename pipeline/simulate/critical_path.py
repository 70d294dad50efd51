"""The critical path (Lin et al., Algorithm 1) over many draws of kernel times at once.

The published form walks one host clock and one clock per stream. The full form adds what real steps need: threads,
waits between streams, waits of the host, blocking copies and the limit of the launch queue. Both run the same
recurrence per row. Each quantity is a vector over draws, so a thousand draws take little more time than one.

For row i, which follows row p, with all times from the begin of the step:

    start[i]  = max(end[p] + lead + gap, end of the thread)        (and a free place in the launch queue)

    device[i] = max(start[i] + latency, stream + kernel gap, awaited calls + kernel gap)
    stream    = device[i] + kernel time
    end[i]    = start[i] + api (or the end of what the host waits for + return) + tail
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from pipeline.errors import InputError
from pipeline.simulate.compiled_walk import load_if_it_pays, walk
from pipeline.simulate.path_walk import BACKLOG, NO_CALL
from pipeline.simulate.step_program import Kind, Program
from pipeline.simulate.timeline import Timeline

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Form = Literal["full", "published"]

PUBLISHED_GAP_US = 1.0
"""Shortest time between two kernels on a stream in the published form, µs, as in Lin et al."""


def simulate(
    program: Program, kernel_us: npt.ArrayLike, *, form: Form = "full", host_scale: npt.ArrayLike = 1.0
) -> Timeline:
    """Run a program with given kernel times.

    Args:
        program: the step.
        kernel_us: time of each device call, shape (calls,) or (draws, calls).
        form: `full`, or `published` for Algorithm 1 as printed (no waits, latency T4/2, 1 us between kernels).
        host_scale: factor on host times, a number or one per draw.

    Raises:
        InputError: the kernel times do not fit the program, or are negative or not finite.
    """
    kernels = np.atleast_2d(np.asarray(kernel_us, float))
    if kernels.shape[1] != program.call_count:
        raise InputError(f"kernel times are for {kernels.shape[1]} calls; the program has {program.call_count}")
    if kernels.size and not (np.isfinite(kernels).all() and kernels.min() >= 0):
        raise InputError("kernel times must be finite and not negative")
    if form == "published":  # one host clock: each row follows the row before it
        program = replace(program, previous=np.arange(-1, len(program) - 1, dtype=np.int64))
    times, scale = np.ascontiguousarray(kernels.T), np.broadcast_to(np.asarray(host_scale, float), (kernels.shape[0],))
    if form == "full" and program.fills is None and len(kernels) == 1 and load_if_it_pays(len(program)):
        return Timeline(program, kernels, *walk(program, times, np.arange(len(times)), scale)[1])
    run = _Run(program, times, scale)
    run.published() if form == "published" else run.full()
    return Timeline(program, kernels, run.start, run.end, run.device_start, run.device_end, run.launch_cause,
                    run.host_cause, run.device_cause)  # fmt: skip


class _Run:
    """State of one simulation: clocks of threads and streams, times of rows and calls (rows first, draws last)."""

    def __init__(self, program: Program, times: Floats, host_scale: Floats) -> None:
        draws = times.shape[1]
        self.p, self.times, self.scale, self.draws = program, times, host_scale, draws
        self.start, self.end = np.zeros((len(program), draws)), np.zeros((len(program), draws))
        self.device_start = np.full((program.call_count, draws), np.nan)
        self.device_end = np.full((program.call_count, draws), np.nan)
        self.stream = np.repeat(program.backlog_us[:, None], draws, axis=1).astype(float)
        self.stream_call = [BACKLOG] * len(program.streams)
        self.fills = program.fills
        self.filling: list[list[int]] = [[] for _ in program.streams]
        self.launch_cause = np.full(len(program), NO_CALL, np.int64)
        self.host_cause = np.full(len(program), NO_CALL, np.int64)
        self.device_cause = np.full(program.call_count, NO_CALL, np.int64)

    def published(self) -> None:
        p = self.p
        self.fills = None
        cpu = np.zeros(self.draws)
        for i in range(len(p)):
            cpu = cpu + (p.lead_us[i] + p.gap_us[i]) * self.scale
            self.start[i] = cpu
            api = p.api_us[i] * self.scale
            if p.kind[i] == Kind.LAUNCH:
                self._launch(i, [(cpu + api / 2, NO_CALL), *self._stream_ready(i, PUBLISHED_GAP_US)])
            cpu = cpu + api + p.tail_us[i] * self.scale
            self.end[i] = cpu

    def full(self) -> None:
        p = self.p
        zero = np.zeros(self.draws)
        threads = {int(t): zero for t in np.unique(p.thread)}
        host = (p.lead_us + p.gap_us)[:, None] * self.scale
        api = p.api_us[:, None] * self.scale
        tail = p.tail_us[:, None] * self.scale
        kind, previous, thread = p.kind.tolist(), p.previous.tolist(), p.thread.tolist()
        blocking = p.blocking.tolist()
        further = [False] * len(p) if p.further is None else p.further.tolist()
        launched: list[int] = []
        for i in range(len(p)):
            before = self.end[previous[i]] if previous[i] >= 0 else zero
            begin = np.maximum(before + host[i], threads[thread[i]])
            if kind[i] == Kind.LAUNCH:
                if p.queue_depth and len(launched) >= p.queue_depth and not further[i]:
                    oldest = launched[-p.queue_depth]
                    begin = self._later(self.launch_cause, i, begin, self.device_start[oldest], oldest)
                self.start[i] = begin
                done = begin + api[i]
                self._launch(i, [(begin + p.latency_us[i], NO_CALL), *self._stream_ready(i, float(p.kernel_gap_us[i])),
                                 *self._awaited(i)])  # fmt: skip
                if not further[i]:
                    launched.append(int(p.call[i]))
                if blocking[i]:
                    back = 0.0 if p.latency_us[i] == 0.0 else p.sync_return_us
                    done = self._later(self.host_cause, i, done, self.device_end[p.call[i]] + back, int(p.call[i]))
            else:
                self.start[i] = begin
                done = begin + api[i]
                if kind[i] == Kind.SYNC:
                    done = self._synchronise(i, done)
            self.end[i] = done + tail[i]
            threads[thread[i]] = self.end[i]

    def _stream_ready(self, i: int, gap: float) -> list[tuple[Floats, int]]:
        s = int(self.p.stream[i])
        busy = self.stream_call[s] >= 0 or self.p.backlog_us[s] > 0
        return [(self.stream[s] + gap, self.stream_call[s])] if busy else []

    def _awaited(self, i: int) -> list[tuple[Floats, int]]:
        p = self.p
        calls = p.wait_calls[p.wait_offsets[i] : p.wait_offsets[i + 1]].tolist()
        return [(self.device_end[c] + p.kernel_gap_us[i], c) for c in calls if not np.isnan(self.device_end[c, 0])]

    def _launch(self, i: int, ready: list[tuple[Floats, int]]) -> None:
        """Start the call of row i when all that it waits for is ready. Records the cause of the wait in the first draw."""
        call, s = int(self.p.call[i]), int(self.p.stream[i])
        start, cause = ready[0]
        for other, by in ready[1:]:
            cause = by if other[0] > start[0] else cause
            start = np.maximum(start, other)
        if self.fills is not None:
            start, cause = self._room(call, s, start, cause)
        self.device_start[call] = start
        self.device_end[call] = start + self.times[call]
        self.stream[s] = self.device_end[call]
        self.stream_call[s] = call
        self.device_cause[call] = cause

    def _room(self, call: int, s: int, start: Floats, cause: int) -> tuple[Floats, int]:
        """Delay a kernel while a kernel of another stream fills the device, until the last blocks of that kernel run.

        Only the kernel that runs at that moment counts. Kernels queued behind it have no priority over this one.
        """
        p = self.p
        if p.competes is None or p.fills is None or not p.competes[call]:
            return start, cause
        out = start
        for other, filling in enumerate(self.filling):
            if other == s:
                continue
            for j in reversed(filling):  # latest first; kernels that have already ended do not matter
                if (self.device_end[j] <= start).all():
                    break
                runs = (self.device_start[j] <= start) & (start < self.device_end[j])
                if runs.any():
                    cause = j if runs[0] and self.device_end[j, 0] > out[0] else cause
                    out = np.where(runs, np.maximum(out, self.device_end[j]), out)
        if p.fills[call]:
            self.filling[s].append(call)
        return out, cause

    @staticmethod
    def _later(cause: Ints, i: int, host: Floats, device: Floats, call: int) -> Floats:
        """The later of a host time and a device time that row i waits for. Records the call if the device time is
        later.
        """
        if device[0] > host[0]:
            cause[i] = call
        return np.maximum(host, device)

    def _synchronise(self, i: int, done: Floats) -> Floats:
        s, p = int(self.p.stream[i]), self.p
        named = p.wait_calls[p.wait_offsets[i] : p.wait_offsets[i + 1]].tolist()
        for call in named:
            done = self._later(self.host_cause, i, done, self.device_end[call] + p.sync_return_us, call)
        if named:
            return done
        for which in range(len(self.p.streams)) if s < 0 else (s,):
            if self.stream_call[which] >= 0 or self.p.backlog_us[which] > 0:
                done = self._later(
                    self.host_cause, i, done, self.stream[which] + self.p.sync_return_us, self.stream_call[which]
                )
        return done
