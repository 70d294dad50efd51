"""Timing of microbenchmark cases: on CUDA with the profiler and events, on a CPU with the host's clock.

The time of a memory-bound kernel depends on the contents of the cache, so every sample states the cache's state:

- `step`: as in a training step. Inputs that the previous op would have written are touched just before the call.
  Parameters, tables and saved activations may have been evicted by the other cases.
- `warm`: the call repeats on the same tensors, with nothing in between.
- `cold`: a buffer of four times the cache's size is read first.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from pipeline.collect.cases import Case
from pipeline.collect.device import between_us, mark, set_tf32, synchronise, undisturbed
from pipeline.collect.device_facts import cache_bytes
from pipeline.collect.profiling import SESSIONS, profiled
from pipeline.collect.trace_windows import (
    REPETITION_LABEL,
    Window,
    attribute,
    counted_kernels,
    load_events,
)

EVENT_REPETITIONS = 5
"""Unprofiled repetitions of a call on CUDA; the first two warm it up."""
FIRST_RUN_FACTOR = 10.0
"""A first run may take this many times the limit, because libraries load their kernels at first use."""


class Cache(StrEnum):
    """State of the cache when a call starts."""

    STEP = "step"
    WARM = "warm"
    COLD = "cold"


@dataclass
class Timing:
    """Measured times of one case, in µs.

    - `latencies`: times between events around the call; on CUDA they include the launch floor.
    - `kernels`: device times, summed over the kernels of a repetition.
    - `core`: on a CPU the thread's CPU time, which shows which repetitions were disturbed.
    - `took_us`: host time of a run during the warm-up.
    """

    case: Case
    cache: Cache
    latencies: list[float] = field(default_factory=list)
    core: list[float] = field(default_factory=list)
    kernels: list[float] = field(default_factory=list)
    window: Window | None = None
    took_us: float = 0.0

    def again(self) -> Timing:
        """The same case without measurements."""
        return Timing(self.case, self.cache)

    def row(self) -> dict[str, Any]:
        """The columns of the call and of its times in a `samples` row; empty if the call did nothing on the device."""
        latencies = self.latencies
        kernels = self.kernels
        if self.core:
            latencies = kernels = undisturbed(self.latencies, self.core)
        if not kernels:
            return {}
        launched = self.window.kernels if self.window else []
        longest = max(launched, key=lambda k: float(k["dur"]), default={})
        arguments = longest.get("args", {})
        spec = self.case.spec
        note = {
            **spec.attributes,
            **self.case.note,
            "cache": self.cache.value,
            "repetitions": len(kernels),
        }
        return {
            "family": spec.family,
            "op": spec.op,
            "phase": spec.phase,
            "dtype": spec.dtype,
            **spec.dims,
            "latency_us": statistics.median(latencies or kernels),
            "kernel_us": statistics.median(kernels),
            "cold": self.cache is Cache.COLD,
            "attributes": json.dumps(note, sort_keys=True),
            "kernel_name": str(longest["name"])[:200] if longest else None,
            "kernels": len(launched) or None,
            "grid": _text(arguments.get("grid")),
            "block": _text(arguments.get("block")),
            "registers": arguments.get("registers per thread"),
            "shared_memory": arguments.get("shared memory"),
        }


class Bench:
    """Measures cases that are ready to run, on one device.

    Args:
        device: where the cases live.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._folder = tempfile.TemporaryDirectory(
            prefix="steptime_bench_"
        )  # deleted together with the bench
        self.scratch = Path(self._folder.name)
        self._flush = torch.zeros(
            cache_bytes(device), device=device
        )  # 4 bytes per element: four times the cache

    def measure(self, timings: Sequence[Timing], repetitions: int) -> None:
        """Add repetitions to timings. The cases take turns, so that each one finds the others' data in the cache.

        Raises:
            RuntimeError: a case fails, or the device is lost.
        """
        if not timings:
            return
        with torch.no_grad():
            if self.device.type == "cuda":
                self._measure_cuda(timings, repetitions)
            else:
                self._measure_cpu(timings, repetitions)

    def warm_up(self, timing: Timing, limit_us: float = float("inf")) -> float:
        """Run a case twice without measuring it, or once if it is far above the limit; returns its time (µs)."""
        with torch.no_grad():
            for _ in range(2):
                self._ready(timing)
                start = time.perf_counter()
                timing.case.run()
                synchronise(self.device)
                host_us = (time.perf_counter() - start) * 1e6
                if host_us > FIRST_RUN_FACTOR * limit_us:
                    break
        return host_us

    def _ready(self, timing: Timing) -> None:
        """Prepare a repetition: inputs, cache state, an idle device."""
        case = timing.case
        if self.device.type == "cuda":
            set_tf32(case.spec.dtype)
        if case.prepare is not None:
            case.prepare()
        if timing.cache is not Cache.WARM and (
            self.device.type == "cuda" or timing.cache is Cache.COLD
        ):
            self._flush.sum()  # reading evicts the cache and leaves no lines to write back
        if timing.cache is Cache.STEP:
            for tensor in case.produced:
                _touch(tensor)
        synchronise(self.device)

    def _measure_cpu(self, timings: Sequence[Timing], repetitions: int) -> None:
        # keep the result until the next repetition: a training step also allocates while older tensors are alive
        for _ in range(repetitions):
            for timing in timings:
                self._ready(timing)
                run = timing.case.run
                core = time.thread_time_ns()
                start = time.perf_counter_ns()
                result = run()
                timing.latencies.append((time.perf_counter_ns() - start) / 1e3)
                timing.core.append((time.thread_time_ns() - core) / 1e3)
                del result

    def _measure_cuda(self, timings: Sequence[Timing], repetitions: int) -> None:
        for timing in timings:
            for repetition in range(EVENT_REPETITIONS):
                self._ready(timing)
                first = mark(self.device)
                timing.case.run()
                last = mark(self.device)
                synchronise(self.device)
                if repetition > 1:
                    timing.latencies.append(between_us(first, last))
        self._profile(timings, repetitions)

    def _profile(self, timings: Sequence[Timing], repetitions: int) -> None:
        path = self.scratch / "kernels.json"
        with profiled(self.device, path):
            for index, timing in enumerate(timings):
                for repetition in range(repetitions):
                    self._ready(timing)
                    with record_function(f"s{index}r{repetition}"):
                        timing.case.run()
                    synchronise(self.device)
        by_label = attribute(load_events(path), REPETITION_LABEL).windows
        path.unlink()
        SESSIONS.record_lost(sum(window.lost for window in by_label.values()))
        for index, timing in enumerate(timings):
            repeated = [by_label.get(f"s{index}r{repetition}") for repetition in range(repetitions)]
            pattern = counted_kernels(timing.case.spec.family, timing.case.spec.name)
            windows = [
                window.only(pattern)
                for window in repeated
                if window and window.kernels and not window.lost
            ]
            timing.kernels += [window.device_us for window in windows]
            if windows:  # launch geometry and names come from the repetition closest to the median
                middle = statistics.median(window.device_us for window in windows)
                timing.window = min(windows, key=lambda window: abs(window.device_us - middle))


def _touch(tensor: torch.Tensor) -> None:
    """Write a tensor's values to itself, so that it is in the cache and modified, as after the op that produces it."""
    if tensor.is_floating_point():
        tensor.detach().mul_(1)
    elif tensor.dtype == torch.bool:
        tensor.logical_or_(tensor)
    else:
        tensor.add_(0)


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value)
