"""Unprofiled times of training steps without synchronisation between them."""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipeline.collect.device import between_us, mark, synchronise, undisturbed

if TYPE_CHECKING:
    import torch

MIN_STEPS, MAX_STEPS = 4, 400
"""Smallest and largest number of unprofiled steps per round."""
MAX_QUEUED = 30
"""Largest number of steps in the queue before the host waits; the launch queue and pinned batches are limited."""

CLOCK_WARM_UP_S = 0.2
"""Seconds of work in which a GPU raises its clocks from idle, before anything is timed."""

Step = Callable[[int], None]


@dataclass
class StepTimes:
    """Unprofiled times of single steps in µs; `core` is the CPU time of the host thread."""

    step: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    core: list[float] = field(default_factory=list)

    def add(self, other: StepTimes) -> None:
        """Append the steps of another round."""
        self.step += other.step
        self.host += other.host
        self.core += other.core

    @property
    def kept(self) -> list[float]:
        """Intervals between steps; on a CPU only those in which no other process used the core (see `undisturbed`)."""
        return undisturbed(self.step, self.core) if len(self.core) == len(self.step) else self.step

    @property
    def clock(self) -> str:
        """`wall`, or `cpu` if too few steps were undisturbed and CPU times are used instead of wall times."""
        return "cpu" if self.core and self.kept == self.core else "wall"

    @property
    def median_us(self) -> float:
        """Median interval between steps (µs)."""
        return statistics.median(self.kept)


def step_times_row(times: StepTimes, facts: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """The measured columns of a `step_times` row; `facts` go to its `config` column."""
    import torch

    kept = times.kept
    quantiles = statistics.quantiles(kept, n=10) if len(kept) > 1 else kept * 10
    cuda = device.type == "cuda"
    return {
        "step_us": times.median_us,
        "p10_us": quantiles[0],
        "p90_us": quantiles[-1],
        "count": len(kept),
        "device_us": times.median_us if cuda else None,
        "host_us": times.median_us if not cuda else statistics.median(times.host),
        "memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "config": json.dumps({**facts, "steps": len(times.step), "clock": times.clock}, default=str, sort_keys=True),
    }


def warm_up(step: Step, device: torch.device, min_steps: int = 3, max_steps: int = 20, limit_s: float = 20.0) -> float:
    """Run steps until two in a row agree within 5 % and a GPU's clocks are up; returns the last step's seconds."""
    taken: list[float] = []
    begin, awake_s = time.perf_counter(), CLOCK_WARM_UP_S if device.type == "cuda" else 0.0
    while len(taken) < max_steps or time.perf_counter() - begin < awake_s:
        start = time.perf_counter()
        step(len(taken))
        synchronise(device)
        taken.append(time.perf_counter() - start)
        agree, spent = len(taken) > 1 and abs(taken[-1] / taken[-2] - 1) < 0.05, time.perf_counter() - begin
        if len(taken) >= min_steps and ((agree and spent > awake_s) or spent > limit_s):
            break
    return taken[-1]


def time_steps(step: Step, device: torch.device, seconds: float, took: float) -> StepTimes:
    """Time unprofiled steps for about `seconds`, without synchronisation between them; one takes `took` seconds."""
    steps = max(MIN_STEPS, min(MAX_STEPS, int(seconds / max(took, 1e-6))))
    times = StepTimes()
    gc.collect()
    gc.disable()  # a collection within a step would be timed as training
    try:
        done = 0
        while done < steps:
            count = min(MAX_QUEUED, steps - done)
            synchronise(device)
            marks = [mark(device)]
            for number in range(count):
                start, core = time.perf_counter(), time.thread_time()
                step(done + number)
                times.host.append((time.perf_counter() - start) * 1e6)
                if device.type == "cpu":
                    times.core.append((time.thread_time() - core) * 1e6)
                marks.append(mark(device))
            synchronise(device)
            intervals = [between_us(a, b) for a, b in pairwise(marks)]
            # the first interval starts on an idle device, so it lacks the overlap of later steps
            times.step += intervals[1:] if device.type == "cuda" and count > MIN_STEPS else intervals
            done += count
    finally:
        gc.enable()
    return times
