"""Campaign part `peaks`: bandwidths over sizes, throughput of products per dtype, cost of the profiler."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.profiler import profile

from pipeline.collect.case_timing import Bench, Cache, Timing
from pipeline.collect.cases import Case, Maker, Spec
from pipeline.collect.device import (
    free_bytes,
    is_unsupported,
    set_tf32,
    still_computes,
    synchronise,
    unsupported,
)
from pipeline.collect.profiling import activities
from pipeline.collect.trace_windows import load_events
from pipeline.collect.unit_runner import Campaign, Outcome
from pipeline.measured.campaign_files import PEAKS
from pipeline.trace.kineto_fields import Category

REPETITIONS = 4
"""Repetitions of each measured call."""
PLAIN_UNIT = "plain"
"""Name of the unit that must run before the first profile."""

BATCHES, STEPS = 9, 15
"""Number of batches, and steps per batch, of the host time of a step. A batch is timed as a whole: it fits the launch queue,
and it is long compared with the clock's resolution."""
PLAIN_STEP = "mlp_step_plain"
"""Name of the small step's unprofiled time."""


@dataclass(frozen=True)
class Peak:
    """One figure: `value` in `unit`, at `size` (bytes, or the side of a matrix) if it has one."""

    name: str
    value: float
    unit: str
    note: str = ""
    size: int | None = None


Measurement = Callable[[Bench, bool], Iterator[Peak]]
"""Measures figures on a bench; the second argument is whether this is a trial."""


def run_peaks(campaign: Campaign, only: Sequence[str] = ()) -> None:
    """Measure all peaks (or only those named) that fit the time.

    The unit without a profiler comes first, then the others from most to least valuable.
    """
    units: list[tuple[str, Measurement, float]] = [
        (PLAIN_UNIT, plain_costs, 2),
        ("products", products, 10),
        ("profiler", lambda bench, tiny: profiler_costs(bench, tiny, _plain_step_us(campaign)), 6),
        ("cache", cache_curves, 15),
    ]
    if campaign.device.type == "cuda":
        units.append(("copies", copies, 8))
    for name, measurement, seconds in [unit for unit in units if not only or unit[0] in only]:
        unit = f"peaks/{name}"
        campaign.run(
            unit,
            0.5 if campaign.tiny else seconds,
            partial(measure_peaks, campaign, unit, measurement),
        )


def measure_peaks(campaign: Campaign, unit: str, measurement: Measurement) -> Outcome:
    """Run one measurement and add its rows; rows from before a failure are kept.

    Raises:
        RuntimeError: the measurement failed at its first figure, or the device is lost.
    """
    rows: list[dict[str, Any]] = []
    failure = ""
    bench = Bench(campaign.device)  # its folder of profiles is deleted with it
    try:
        for peak in measurement(bench, campaign.tiny):
            rows.append({"unit_name": unit, **asdict(peak)})
    except RuntimeError as error:
        if not rows or not still_computes(campaign.device):
            raise
        failure = f", then {type(error).__name__}: {error}"[:300]
    campaign.folder.add(PEAKS, pd.DataFrame(rows))
    return {
        "rows": len(rows),
        "note": f"{len(rows)} rows{failure}",
    }


def products(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Throughput of square matrix products per dtype, on random data (the power depends on the data)."""
    make = Maker(bench.device)
    cuda = bench.device.type == "cuda"
    for n in (64, 128) if tiny else (2048, 4096, 8192) if cuda else (512, 1024):
        for dtype in ("bf16", "fp16", "tf32", "fp32") if cuda else ("fp32",):
            a = make.tensor(n, n, dtype=dtype)
            b = make.tensor(n, n, dtype=dtype)
            try:
                times_us = _measured(bench, {n: partial(a.matmul, b)}, dtype)
            except RuntimeError as error:
                if not is_unsupported(error):
                    raise
                reason = unsupported(
                    f"peaks/products gemm_{dtype}",
                    dtype,
                    bench.device,
                    error,
                )
                print(f"warning: {reason}; skipped", file=sys.stderr)
                continue
            for us in times_us.values():  # empty if the profiler recorded no kernel
                yield Peak(
                    f"gemm_{dtype}",
                    2 * n**3 / us / 1e6,
                    "TFLOP/s",
                    "median kernel time, random data",
                    n,
                )
    set_tf32("fp32")


def cache_curves(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Bandwidth of warm scaling and triad over sizes.

    The plateau below the cache's size is the bandwidth of the cache, the one above it that of DRAM.
    """
    top = 14 if tiny else _limit_exponent(bench.device, 30) if bench.device.type == "cuda" else 28
    sizes = [size for e in range(12, top) for size in (1 << e, 3 << (e - 1))]
    make = Maker(bench.device)
    x = make.tensor(max(sizes) // 4)
    y = make.tensor(max(sizes) // 4)
    views = {size: (x[: size // 4], y[: size // 4]) for size in sizes}
    kinds: dict[str, tuple[int, Callable[[Tensor, Tensor], Callable[[], object]]]] = {
        "scale": (2, lambda a, b: lambda: torch.mul(a, 2.0, out=b)),
        "triad": (3, lambda a, b: lambda: torch.add(a, b, out=b)),
    }
    for name, (factor, call_on) in kinds.items():
        for size, us in _measured(bench, {size: call_on(*views[size]) for size in sizes}).items():
            yield Peak(
                f"warm_{name}",
                factor * size / us / 1e3,
                "GB/s",
                "read and written; size of one buffer",
                size,
            )


def copies(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Bandwidth of copies between device and pinned host memory over sizes, in both directions."""
    device = bench.device
    top = 14 if tiny else _limit_exponent(device, 30)
    here = torch.ones(1 << top, dtype=torch.uint8, device=device)
    there = torch.ones(1 << top, dtype=torch.uint8).pin_memory()
    for way, target, source in (("h2d", here, there), ("d2h", there, here)):
        runs = {
            1 << e: partial(target[: 1 << e].copy_, source[: 1 << e], non_blocking=True)
            for e in range(10, top + 1)
        }
        for size, us in _measured(bench, runs).items():
            yield Peak(f"copy_{way}_pinned", size / us / 1e3, "GB/s", "", size)


def plain_costs(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Host time of a small training step, which runs before any profile."""
    step = _small_step(bench.device)
    count = 3 if tiny else STEPS
    call_us(bench.device, step, count)
    yield Peak(
        PLAIN_STEP, call_us(bench.device, step, count), "us", "host time of a step, unprofiled"
    )


def profiler_costs(bench: Bench, tiny: bool, plain_us: float | None = None) -> Iterator[Peak]:
    """Host cost of a profiler event, from the same small training step with and without the profiler.

    `profiler_event_us` is the extra host time per recorded op, the input of `ProfilerCost` in the overheads package.

    Args:
        bench: where the step runs.
        tiny: whether this is a trial.
        plain_us: unprofiled time of the step (µs) from `plain_costs`; measured here if None.
    """
    device = bench.device
    path = bench.scratch / "profiler.json"
    step = _small_step(device)
    count = 3 if tiny else STEPS
    call_us(device, step, count)
    plain = call_us(device, step, count) if plain_us is None else plain_us
    with profile(activities=activities(device), record_shapes=True) as profiler:
        profiled_us = call_us(device, step, count)
    profiler.export_chrome_trace(str(path))
    ops = sum(event.get("cat") == Category.OP for event in load_events(path)) / (BATCHES * count)
    if ops:
        note = "extra host time per recorded op, launches included"
        yield Peak("profiler_event_us", max(profiled_us - plain, 0.0) / ops, "us", note)


def call_us(device: torch.device, function: Callable[[], Any], count: int) -> float:
    """Host time of one call (µs): the median over batches without the first one."""
    batches_us = []
    for _ in range(BATCHES):
        synchronise(device)
        start = time.perf_counter()
        for _ in range(count):
            function()
        batches_us.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(batches_us[1:])


def _small_step(device: torch.device) -> Callable[[], None]:
    """A training step of eight small layers."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.rand(32, 64, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _plain_step_us(campaign: Campaign) -> float | None:
    """The small step's unprofiled time, as the campaign measured it before any profile."""
    peaks = campaign.folder.tables[PEAKS]
    values = list(peaks.loc[peaks["name"] == PLAIN_STEP, "value"]) if len(peaks) else []
    return float(values[-1]) if values else None


def _measured(
    bench: Bench, runs: Mapping[int, Callable[[], object]], dtype: str = "fp32"
) -> dict[int, float]:
    """Warm device time (µs) of each call by its size; calls without a device time are left out."""
    timings = {
        size: Timing(
            Case(
                Spec(
                    "peak",
                    "peak",
                    "forward",
                    dtype,
                    {"bytes": size},
                ),
                run,
            ),
            Cache.WARM,
        )
        for size, run in runs.items()
    }
    for timing in timings.values():
        bench.warm_up(timing)
    bench.measure(list(timings.values()), REPETITIONS)
    rows = {size: timing.row() for size, timing in timings.items()}
    return {size: row["kernel_us"] for size, row in rows.items() if row}


def _limit_exponent(device: torch.device, exponent: int) -> int:
    """The exponent, limited so that a buffer of 2**exponent bytes takes at most an eighth of the free memory."""
    return min(exponent, free_bytes(device).bit_length() - 4)
