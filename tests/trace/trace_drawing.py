"""Traces drawn in ASCII: each line is a row of the timeline, each column a microsecond (or ten).

    main    [aten::add      ]  .
    api        L0    S          .
    s7          <k0--->

Tests name events with begin and end; the picture beside the test shows the same. Events become raw Kineto dictionaries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 101

PROPERTIES = [
    {
        "id": 0,
        "name": "Test GPU",
        "maxThreadsPerMultiprocessor": 2048,
        "regsPerMultiprocessor": 65536,
        "sharedMemPerMultiprocessor": 98304,
        "numSms": 80,
    }
]


def op(name: str, start: float, end: float, thread: int = MAIN, **args: Any) -> dict[str, Any]:
    return _event("cpu_op", name, start, end, 1, thread, args)


def annotation(name: str, start: float, end: float, thread: int = MAIN) -> dict[str, Any]:
    return _event("user_annotation", name, start, end, 1, thread, {})


def api(
    name: str, start: float, end: float, correlation: int, thread: int = MAIN
) -> dict[str, Any]:
    return _event("cuda_runtime", name, start, end, 1, thread, {"correlation": correlation})


def launch(start: float, end: float, correlation: int, thread: int = MAIN) -> dict[str, Any]:
    return api("cudaLaunchKernel", start, end, correlation, thread)


def kernel(
    name: str, start: float, end: float, correlation: int, stream: int = 7, **args: Any
) -> dict[str, Any]:
    return _event(
        "kernel",
        name,
        start,
        end,
        0,
        stream,
        {"stream": stream, "device": 0, "correlation": correlation, **args},
    )


def memcpy(
    name: str, start: float, end: float, correlation: int, size: int, stream: int = 7
) -> dict[str, Any]:
    args = {"stream": stream, "device": 0, "correlation": correlation, "bytes": size}
    return _event("gpu_memcpy", name, start, end, 0, stream, args)


def wait(
    correlation: int, start: float, record: int, awaited: int, waiter: int = -1
) -> dict[str, Any]:
    """CUPTI's note on a wait of 1 us: the stream awaited, and the call that recorded the event."""
    args = {
        "stream": waiter,
        "device": 0,
        "correlation": correlation,
        "wait_on_stream": awaited,
        "wait_on_cuda_event_record_corr_id": record,
    }
    return _event("cuda_sync", "Sync", start, start + 1, 0, 0, args)


def trace(events: list[dict[str, Any]], **metadata: Any) -> bytes:
    return json.dumps({"deviceProperties": PROPERTIES, **metadata, "traceEvents": events}).encode()


def write(folder: Path, events: list[dict[str, Any]], **metadata: Any) -> Path:
    path = folder / "trace.json"
    path.write_bytes(trace(events, **metadata))
    return path


def equal_steps(count: int, stretch: float = 1.0) -> list[dict[str, Any]]:
    """Equal iterations: an op of 20 us that launches a kernel of 10 us, and a gap of 5 us to an op of 8 us."""
    events = []
    for i in range(count):
        at = 200 * i
        events += [
            annotation(f"ProfilerStep#{i}", at, at + 190),
            op("aten::mm", at + 1, at + 1 + 20 * stretch),
            launch(at + 4, at + 6, i + 1),
            kernel("gemm", at + 9, at + 19, i + 1),
            op("aten::view", at + 6 + 20 * stretch, at + 14 + 20 * stretch),
        ]
    return events


def _event(
    category: str, name: str, start: float, end: float, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round(1000 + start, 3),
        "dur": round(end - start, 3),
        "args": args,
    }
