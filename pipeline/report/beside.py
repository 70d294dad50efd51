"""The measured step as rows of a Chrome trace, to lie below the predicted ones on the same axis.

Its rows are what the predicted timeline has: host threads by
role, streams, operators with the launches inside them. The profiler's own cost is in it: a profiled step is longer than
the unprofiled one that predictions are judged by.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.predict.perfetto import metadata_event, slice_event, thread_name
from pipeline.predict.replay import Source
from pipeline.trace.fields import Category
from pipeline.trace.load import load_trace

HOST_PID, DEVICE_PID = 900_003, 900_004
"""Process ids of the measured rows: behind those of the predicted ones."""

HOST, DEVICE = "measured host (profiled)", "measured GPU (profiled)"
DEVICE_CPU = "measured CPU as device (profiled)"


def measured_events(trace_file: str | Path, number: int | None = None) -> list[dict[str, Any]]:
    """Trace events of one iteration, beginning at 0.

    Args:
        trace_file: profiler trace.
        number: the iteration; by default the one of median span, the first left out where there are several.

    Raises:
        TraceError: the trace is damaged.
    """
    source = Source.of(load_trace(trace_file))
    candidates = (source.chosen[1:] or source.chosen) if number is None else source.chosen
    chosen = [each for each in candidates if each.span_us > 0 and number in (None, each.number)]
    if not chosen:
        return []
    shown = sorted(chosen, key=lambda iteration: iteration.span_us)[len(chosen) // 2]
    act, trace = source.act, source.act.trace
    begin, columns = shown.start_ns, trace.columns
    items = np.flatnonzero(act.iteration == shown.number)
    role = {(int(columns["pid"][event]), int(columns["tid"][event])): int(thread)
            for event, thread in zip(act.item, act.thread, strict=True)}  # fmt: skip
    inside = np.isin(columns["top"], act.item[items]) & trace.is_category(
        Category.OP, Category.RUNTIME, Category.DRIVER
    )
    inside[act.item[items]] = True

    def us(event: int) -> tuple[float, float]:
        return (int(columns["ts_ns"][event]) - begin) / 1e3, int(columns["dur_ns"][event]) / 1e3

    host = []
    for event in np.flatnonzero(inside).tolist():
        thread = role.get((int(columns["pid"][event]), int(columns["tid"][event])))
        start, duration = us(event)
        if thread is not None and start >= 0:
            host.append(slice_event(str(trace.names[event]), str(trace.vocabulary["category"][columns["category"][event]]),
                                    HOST_PID, thread, start, duration, {}))  # fmt: skip
    streams = act.call_stream
    device = []
    for call in shown.calls.tolist():
        start, duration = us(int(act.call_event[call]))
        if start >= 0:
            device.append(slice_event(str(trace.names[act.call_event[call]]), "kernel", DEVICE_PID, int(streams[call]),
                                      start, duration, {}))  # fmt: skip
    threads, used = sorted({e["tid"] for e in host}), sorted({e["tid"] for e in device})
    rows = [metadata_event("process_name", HOST_PID, 0, HOST),
            metadata_event("process_name", DEVICE_PID, 0, DEVICE_CPU if act.on_cpu else DEVICE)]  # fmt: skip
    rows += [metadata_event("thread_name", HOST_PID, thread, thread_name(thread)) for thread in threads]
    rows += [metadata_event("thread_name", DEVICE_PID, stream, f"stream {stream}") for stream in used]
    return rows + host + device
