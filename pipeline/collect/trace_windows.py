"""Find the device work of a labelled section of code in a profiler trace.

Terms:

- label: the `record_function` annotation around one repetition of a call, or a `ProfilerStep#k`.
- window: the interval of host time that a label covers, with the device events that were launched in it.
"""

from __future__ import annotations

import bisect
import gzip
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    import torch
    from torch.profiler import ProfilerActivity

STEP_LABEL = r"ProfilerStep#\d+"


@dataclass
class Window:
    """One labelled interval of host time (µs) and the device events launched in it, sorted by start.

    `lost` counts its launches without a kernel in the trace (see `pipeline.collect.lost_kernels`). If it is not 0, the
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
        matching = [kernel for kernel in self.kernels if re.search(pattern, str(kernel["name"]), re.IGNORECASE)]
        return Window(self.start, self.end, matching or self.kernels, self.lost)


@dataclass(frozen=True)
class Attribution:
    """Windows by label; counts of device events: all, without a known launch, and outside windows."""

    windows: dict[str, Window]
    device_events: int
    without_launch: int
    outside: int


def activities(device: torch.device) -> list[ProfilerActivity]:
    """The activities that the profiler records on this device."""
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])


def load_events(path: Path) -> list[dict[str, Any]]:
    """Complete (`X`) events of a Kineto trace; names may contain invalid UTF-8.

    Raises:
        TraceError: the file is not a profiler trace.
    """
    data = path.read_bytes()
    try:
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        return [_named(event) for event in _parsed(text)["traceEvents"] if event.get("ph") == "X"]
    except (ValueError, KeyError, EOFError, OSError) as error:
        raise TraceError(f"{path}: not a profiler trace ({error}); profile again") from None


def _named(event: dict[str, Any]) -> dict[str, Any]:
    """The event; a launch without a name from the profiler gets its API name."""
    if event.get("name") == UNNAMED_API:
        event["name"] = api_name(UNNAMED_API, event.get("args"))
    return event


def _parsed(text: str) -> Any:
    """The content of a trace; names that are not valid JSON are repaired.

    Raises:
        ValueError: the trace has other errors.
    """
    try:
        return json.loads(text, strict=False)
    except ValueError:
        found, problem = parse_loosely(text.encode(), wrap=False)
        if problem:
            raise
        return found


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
    launches = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in API_CATEGORIES and "correlation" in event.get("args", {})
    }
    total = without_launch = outside = 0
    for event in events:
        if event.get("cat") not in DEVICE_CATEGORIES:
            continue
        total += 1
        launch = launches.get(event.get("args", {}).get("correlation"))
        without_launch += launch is None
        index = bisect.bisect_right(starts, float(event["ts"]) if launch is None else launch) - 1
        if index < 0 or (launch is not None and launch > order[index].end):
            outside += 1
            continue
        order[index].kernels.append(event)
    for launch in _launches_without_kernel(events):
        index = bisect.bisect_right(starts, launch) - 1
        if index >= 0 and launch <= order[index].end:
            order[index].lost += 1
    for window in order:
        window.kernels.sort(key=lambda event: float(event["ts"]))
    return Attribution(windows, total, without_launch, outside)


def _launches_without_kernel(events: Sequence[dict[str, Any]]) -> list[float]:
    """Times of the launches whose kernel is missing in the trace.

    A driver call inside a runtime call is not a separate launch, so it is not counted. If the trace has kernels without
    a launch, ids do not show reliably which kernels are missing. Then a launch counts only if the kernels of at least
    half of the launches with the same API name are in the trace.
    """
    launching = [e for e in events if e.get("cat") in API_CATEGORIES]
    calls = [e for e in launching if KERNEL_LAUNCHES.match(str(e["name"]))]
    ids = {e.get("args", {}).get("correlation") for e in launching}
    shown = [e.get("args", {}).get("correlation") for e in events if e.get("cat") in DEVICE_CATEGORIES]
    kernels = [e.get("args", {}).get("correlation") for e in events if e.get("cat") == Category.KERNEL]
    seen, linked = set(shown), ids.issuperset(kernels)
    missing = [call for call in calls if call.get("args", {}).get("correlation") not in seen]
    total, absent = (Counter(str(call["name"]) for call in some) for some in (calls, missing))
    inner = _nested_calls(calls) if missing else set()
    return [
        float(call["ts"])
        for call in missing
        if id(call) not in inner and (linked or 2 * absent[str(call["name"])] <= total[str(call["name"])])
    ]


def _nested_calls(calls: Sequence[dict[str, Any]]) -> set[int]:
    """Identities (`id`) of the calls that lie inside another call of the same thread."""
    found: set[int] = set()
    thread, end = None, 0.0
    for call in sorted(calls, key=lambda e: (str(e.get("tid")), float(e["ts"]), -float(e["dur"]))):
        if call.get("tid") == thread and float(call["ts"]) + float(call["dur"]) <= end:
            found.add(id(call))
        else:
            thread, end = call.get("tid"), float(call["ts"]) + float(call["dur"])
    return found
