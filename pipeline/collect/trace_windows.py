"""Find the device work of a labelled section of code in a profiler trace.

Terms:

- label: the `record_function` annotation around one repetition of a call, or a `ProfilerStep#k`.
- window: the interval of host time that a label covers, with the device events that were launched in it.

An operator often launches more kernels than its main one. The graph (`pipeline.graph.sizes`) counts some of these as
separate calls: a fill, a sort, the mean of a loss. `counted_kernels` keeps them out of the sample of the main kernel.
Launches that the graph calls `auxiliary` are counted with the main kernel, here and in the graph.
"""

from __future__ import annotations

import bisect
import gzip
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import TraceError
from pipeline.trace.json_repair import parse_loosely
from pipeline.trace.kineto_fields import (
    API_CATEGORIES,
    DEVICE_CATEGORIES,
    KERNEL_LAUNCHES,
    UNNAMED_API,
    Category,
    api_name,
)

STEP_LABEL = r"ProfilerStep#\d+"
REPETITION_LABEL = r"s\d+r\d+"
"""Label of one repetition of a microbenchmark: number of the case (s) and of the repetition (r)."""

ROW_KERNELS = r"embedding|grad_weight|sum_and_scatter|index_?(add|func|select)|gather|scatter"
"""Kernels that move rows of a table or of its gradient, in contrast to fills, sorts and scans.
Source: ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu, Indexing.cu (`indexFuncLargeIndex` adds rows)."""

ALL_BUT_MEMORY_OPS = r"^(?!mem(set|cpy))"
"""All kernels except memory operations; sums over several blocks clear their semaphores first."""

ELEMENTWISE_KERNELS = r"^(?!mem(set|cpy)|.*(FillFunctor|reduce_kernel))"
"""All kernels except memory operations, fills, and the reduction after an elementwise loss."""

ADDITION_KERNEL = r"indexing_backward"
"""The addition kernel of `index_put`; it runs after index arithmetic and a sort of the indices."""

BY_FAMILY: Mapping[str, str] = {
    "embedding_backward": ROW_KERNELS,
    "softmax": r"softmax",  # its gradient multiplies two tensors first
    "reduction": ALL_BUT_MEMORY_OPS,
    "loss": ELEMENTWISE_KERNELS,
    "pooling": ELEMENTWISE_KERNELS,
}
"""Pattern of the counted kernels per family; all kernels count in families that are not listed."""
ADDING_OPS = ("index_put", "_index_put_impl")
"""Ops of the families `tril_index_backward` and `index` of which only the addition kernel (`ADDITION_KERNEL`) counts."""


@dataclass
class Window:
    """One labelled interval of host time (µs) and the device events launched in it, sorted by start.

    `lost` counts its launches without a kernel in the trace (see `pipeline.collect.profiling`). If it is not 0, the
    device times are too short.
    """

    start: float
    end: float
    kernels: list[dict[str, Any]] = field(default_factory=list)
    lost: int = 0

    @property
    def host_us(self) -> float:
        """Length of the interval on the host (µs)."""
        return self.end - self.start

    @property
    def device_us(self) -> float:
        """Summed duration of the device events (µs)."""
        return sum(float(kernel["dur"]) for kernel in self.kernels)

    def only(self, pattern: str) -> Window:
        """The window with only the kernels whose name matches, or with all kernels if none matches."""
        matching = [
            kernel
            for kernel in self.kernels
            if re.search(pattern, str(kernel["name"]), re.IGNORECASE)
        ]
        return Window(self.start, self.end, matching or self.kernels, self.lost)


@dataclass(frozen=True)
class Attribution:
    """Windows by label, and the number of device events of the trace."""

    windows: dict[str, Window]
    device_events: int


def load_events(path: Path) -> list[dict[str, Any]]:
    """Complete (`X`) events of a Kineto trace; names may contain invalid UTF-8.

    Raises:
        TraceError: the file is not a profiler trace.
    """
    data = path.read_bytes()
    try:
        trace, problem = parse_loosely(gzip.decompress(data) if path.suffix == ".gz" else data)
        if not problem:
            return [_named(event) for event in trace["traceEvents"] if event.get("ph") == "X"]
    except (TypeError, KeyError, EOFError, OSError) as error:
        problem = str(error)
    raise TraceError(f"{path}: not a profiler trace ({problem}); profile again") from None


def _named(event: dict[str, Any]) -> dict[str, Any]:
    """The event; a launch without a name from the profiler gets its API name."""
    if event.get("name") == UNNAMED_API:
        event["name"] = api_name(UNNAMED_API, event.get("args"))
    return event


def attribute(events: Sequence[dict[str, Any]], label: str) -> Attribution:
    """Assign device events to labels.

    - A device event is joined to its launch by `correlation`.
    - The time of the launch selects the label's window, for launches of any thread: backward passes launch from
      autograd's own thread.
    - An event without a known launch is assigned by its own start, up to the next label. This works because labels do
      not overlap and the device is idle between them.
    """
    pattern = re.compile(label)
    windows = {
        str(event["name"]): Window(float(event["ts"]), float(event["ts"]) + float(event["dur"]))
        for event in events
        if event.get("cat") == Category.ANNOTATION and pattern.fullmatch(str(event["name"]))
    }
    order = sorted(windows.values(), key=lambda window: window.start)
    starts = [window.start for window in order]

    def window_at(time: float) -> Window | None:
        """The last window that starts before a time."""
        index = bisect.bisect_right(starts, time) - 1
        return order[index] if index >= 0 else None

    launch_times = {
        _correlation(event): float(event["ts"])
        for event in events
        if event.get("cat") in API_CATEGORIES and _correlation(event) is not None
    }
    work = [event for event in events if event.get("cat") in DEVICE_CATEGORIES]
    for event in work:
        launch = launch_times.get(_correlation(event))
        window = window_at(float(event["ts"]) if launch is None else launch)
        if window is not None and (launch is None or launch <= window.end):
            window.kernels.append(event)
    for launch in _launches_without_kernel(events):
        if (window := window_at(launch)) is not None and launch <= window.end:
            window.lost += 1
    for window in order:
        window.kernels.sort(key=lambda event: float(event["ts"]))
    return Attribution(windows, len(work))


def _correlation(event: dict[str, Any]) -> Any:
    """The id that joins a launch and its device work; None for an event without one."""
    return event.get("args", {}).get("correlation")


def _launches_without_kernel(events: Sequence[dict[str, Any]]) -> list[float]:
    """Times of the launches whose kernel is missing in the trace.

    A driver call inside a runtime call is not a separate launch, so it is not counted. If the trace has kernels without
    a launch, ids do not show reliably which kernels are missing. Then a launch counts only if the kernels of at least
    half of the launches with the same API name are in the trace.
    """
    api_calls = [event for event in events if event.get("cat") in API_CATEGORIES]
    launches = [event for event in api_calls if KERNEL_LAUNCHES.match(str(event["name"]))]
    on_device = {_correlation(event) for event in events if event.get("cat") in DEVICE_CATEGORIES}
    missing = [launch for launch in launches if _correlation(launch) not in on_device]
    if not missing:
        return []
    kernels = {_correlation(event) for event in events if event.get("cat") == Category.KERNEL}
    linked = kernels <= {_correlation(event) for event in api_calls}
    total, absent = (
        Counter(str(launch["name"]) for launch in group) for group in (launches, missing)
    )
    inner = _nested_calls(launches)
    return [
        float(launch["ts"])
        for launch in missing
        if id(launch) not in inner
        and (linked or 2 * absent[str(launch["name"])] <= total[str(launch["name"])])
    ]


def _nested_calls(calls: Sequence[dict[str, Any]]) -> set[int]:
    """Identities (`id`) of the calls that lie inside another call of the same thread."""
    nested: set[int] = set()
    thread, end = None, 0.0
    for call in sorted(calls, key=lambda e: (str(e.get("tid")), float(e["ts"]), -float(e["dur"]))):
        if call.get("tid") == thread and float(call["ts"]) + float(call["dur"]) <= end:
            nested.add(id(call))
        else:
            thread, end = call.get("tid"), float(call["ts"]) + float(call["dur"])
    return nested


def counted_kernels(family: str, op: str) -> str:
    """Case-insensitive regular expression of the kernels that belong to the call; empty if all do.

    Args:
        family: family of the call.
        op: op of the call, without namespace and in-place mark.
    """
    if family in ("tril_index_backward", "index") and op in ADDING_OPS:
        return ADDITION_KERNEL
    return BY_FAMILY.get(family, "")
