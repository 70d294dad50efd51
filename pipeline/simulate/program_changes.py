"""Programs of the same step under other rules: with CUDA graphs, with a faster processor, or as Lin et al. compute it.

In CUDA graphs, kernels are captured once and started by one host call. All launches between two waits of the host form one
graph, as `torch.cuda.graph` or `torch.cuda.make_graphed_callables` would capture them. A host that never waits starts the
whole step with one call. Copies of the batch are not part of the graph, because they fill its fixed inputs again in each
step. Kernel times and the gaps between kernels stay the same; a graph saves host time only. `as_cuda_graphs` does not check
whether a step can be captured. Sizes that depend on data (`SparseAdam`) make it impossible.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipeline.arrays import Flags
from pipeline.graph.compiled_functions import AS_GRAPH
from pipeline.question.settings import PredictSettings
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import Kind, Program

GRAPH_LAUNCH_US = 2.5
"""Host time of one graph launch in µs, for any number of kernels. NVIDIA states it for straight-line graphs since CUDA
12.6 (developer blog, September 2024). Earlier, each kernel added 0.2 µs, which overlapped with the running kernels."""


def as_cuda_graphs(program: Program, graphed: Flags | bool = True) -> Program:
    """The program in which one call starts all launches between two waits of the host; `graphed`: of these rows alone."""
    waits = (program.kind == Kind.SYNC) | program.blocking
    captured = ~waits & (program.items.phase[program.item] != "data") & graphed
    run = np.cumsum(
        ~captured
    )  # rows of one run share a number with the row that ends the run before
    launches = captured & (program.kind == Kind.LAUNCH)
    first = np.zeros(len(program), bool)
    rows = np.flatnonzero(launches)
    first[rows[np.unique(run[rows], return_index=True)[1]]] = True
    begins = np.zeros(len(program), bool)
    ahead = np.flatnonzero(captured)
    begins[ahead[np.unique(run[ahead], return_index=True)[1]]] = True

    return replace(
        program,
        lead_us=np.where(captured & ~begins, 0.0, program.lead_us),
        gap_us=np.where(captured, 0.0, program.gap_us),
        api_us=np.where(captured, np.where(first, GRAPH_LAUNCH_US, 0.0), program.api_us),
        tail_us=np.where(captured, 0.0, program.tail_us),
        latency_us=np.where(launches & ~first, 0.0, program.latency_us),
        queue_depth=0,  # a graph takes one place
    )


def only_rows(program: Program, kept: Flags) -> Program:
    """Some rows of a program as one of their own; calls keep their numbers. A row follows the last kept row before it."""
    rows = np.flatnonzero(kept)
    before = np.cumsum(kept) - 1  # of the kept rows, the last up to each row
    previous = np.where(program.previous[rows] >= 0, before[program.previous[rows]], -1)
    spans = np.diff(program.wait_offsets)
    awaits = np.repeat(kept, spans)
    return replace(
        program,
        **{name: getattr(program, name)[rows] for name in ROW_COLUMNS},
        previous=previous,
        wait_offsets=np.concatenate([[0], np.cumsum(spans[rows])]).astype(np.int64),
        wait_calls=program.wait_calls[awaits],
        further=None if program.further is None else program.further[rows],
        loop=False,
    )


ROW_COLUMNS = (
    "item", "kind", "thread", "lead_us", "gap_us", "api_us", "tail_us", "call", "stream",
    "blocking", "latency_us", "kernel_gap_us",
)  # fmt: skip
"""Columns of a program whose values do not refer to other rows."""


def without_calls(program: Program, calls: Flags) -> Program:
    """The program without some device calls and the host time of their launch; `calls` has a value for each device call."""
    gone = (program.call >= 0) & calls[program.call]
    return replace(
        program,
        kind=np.where(gone, Kind.HOST, program.kind),
        call=np.where(gone, -1, program.call),
        stream=np.where(gone, -1, program.stream),
        api_us=np.where(gone, 0.0, program.api_us),
        blocking=program.blocking & ~gone,
    )


def without_host(program: Program) -> Program:
    """The program on a host that takes no time and is always ahead of its device."""
    nothing = np.zeros(len(program))
    times = ("lead_us", "gap_us", "api_us", "tail_us", "latency_us")
    return replace(program, queue_depth=0, **{name: nothing for name in times})  # type: ignore[arg-type]


PUBLISHED_GAP_US = 1.0
"""Shortest time between two kernels on a stream in Algorithm 1 of Lin et al., µs."""


def as_published(program: Program) -> Program:
    """The program of Algorithm 1 as printed: one host thread, no waits, kernels apart by `PUBLISHED_GAP_US`.

    A launch reaches its stream in the middle of T4, without latency; the first half counts as the gap before it.
    """
    rows = len(program)
    before = np.where(program.kind == Kind.LAUNCH, program.api_us / 2, 0.0)
    return replace(
        program,
        kind=np.where(program.kind == Kind.SYNC, Kind.HOST, program.kind),
        thread=np.zeros(rows, np.int64),
        previous=np.arange(-1, rows - 1, dtype=np.int64),
        loop=False,
        gap_us=program.gap_us + before,
        api_us=program.api_us - before,
        latency_us=np.zeros(rows),
        kernel_gap_us=np.full(rows, PUBLISHED_GAP_US),
        blocking=np.zeros(rows, bool),
        queue_depth=0,
        fills=None,
        wait_offsets=np.zeros(rows + 1, np.int64),
        further=None,
        collectives=-1,
    )


FASTEST = 1024.0
"""Largest factor that is tried. A step that is host-bound even then has hardly any device time."""

STEP = 0.01
"""Resolution of the factor: it is rounded up to a multiple of this number."""


def on_host(program: Program, speed: float) -> Program:
    """The program on a host that is `speed` times as fast: every host time is divided by it."""
    return replace(
        program,
        lead_us=program.lead_us / speed,
        gap_us=program.gap_us / speed,
        api_us=program.api_us / speed,
        tail_us=program.tail_us / speed,
    )


def device_bound_from(program: Program, kernel_us: npt.ArrayLike) -> float | None:
    """The smallest host speed, relative to the program's host, at which the step is device-bound.

    The speed is doubled until the step is device-bound, then bisected.

    Args:
        program: a step.
        kernel_us: time of each device call, shape (calls,).

    Returns:
        The speed, rounded up to a multiple of `STEP`; 1 for a device-bound step, None if no speed up to `FASTEST`
        makes the step device-bound.
    """
    times = np.asarray(kernel_us, float)

    def bound(speed: float) -> str:
        return simulate(on_host(program, speed), times).bound

    slow, fast = 1.0, 1.0
    while bound(fast) == "host":
        if fast >= FASTEST:
            return None
        slow, fast = fast, 2 * fast
    low, high = round(slow / STEP), round(fast / STEP)
    while high - low > 1:
        middle = math.floor((low + high) / 2)
        low, high = (middle, high) if bound(middle * STEP) == "host" else (low, middle)
    return high * STEP


def as_asked(program: Program, settings: PredictSettings, compiled: str = "") -> Program:
    """The program of a step as the section `predict` has it run, and the user's compiler (`compiled`: what it made)."""
    if settings.cuda_graph:
        program = as_cuda_graphs(program)
    elif AS_GRAPH in compiled:
        graphed = np.array([name.endswith(AS_GRAPH) for name in program.items.name])
        program = as_cuda_graphs(program, graphed[program.item])
    if settings.launch_blocking:
        program = replace(program, blocking=program.kind == Kind.LAUNCH)
    program = replace(program, loop=not settings.wait_each_step)
    return as_published(program) if settings.critical_path == "published" else program
