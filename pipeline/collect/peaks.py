"""Measured peaks of a device: copy and cache bandwidths over sizes, throughput of products per dtype."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.case_timing import Bench, Cache, Timing
from pipeline.collect.cases import Case, Maker, Spec
from pipeline.collect.device import free_bytes, release, set_tf32, still_computes
from pipeline.collect.host_costs import PLAIN_STEP, Cost, host_costs, plain_costs, profiler_costs
from pipeline.collect.unit_runner import Campaign, Outcome
from pipeline.collect.unsupported import is_unsupported, unsupported

if TYPE_CHECKING:
    import torch
    from torch import Tensor

REPETITIONS = 4
"""Repetitions of each measured call."""
PLAIN_UNIT = "plain"
"""Name of the unit that must run before the first profile."""


@dataclass(frozen=True)
class Peak:
    """One figure: `value` in `unit`, at `size` (bytes, or the side of a matrix) if it has one."""

    name: str
    size: int | None
    value: float
    unit: str
    note: str = ""


Measurement = Callable[[Bench, bool], Iterator[Peak]]


def run_peaks(campaign: Campaign, only: Sequence[str] = ()) -> None:
    """Measure all peaks (or only those named) that fit the time.

    The unit without a profiler comes first, then the others from most to least valuable.
    """
    units: tuple[tuple[str, Measurement, float], ...] = (
        (PLAIN_UNIT, lambda bench, tiny: _costs(plain_costs(bench.device, tiny)), 4),
        ("products", products, 10),
        ("host", lambda bench, tiny: _costs(host_costs(bench.device, bench.scratch, tiny)), 5),
        ("profiler", lambda bench, tiny: _costs(
            profiler_costs(bench.device, bench.scratch, tiny, _plain_step_us(campaign))), 6),
        ("cache", cache_curves, 15), ("copies", copies, 20),
    )  # fmt: skip
    for name, measurement, seconds in [unit for unit in units if not only or unit[0] in only]:
        unit = f"peaks/{name}"
        need = 0.5 if campaign.tiny else seconds
        campaign.run(unit, need, lambda u=unit, m=measurement: measure_peaks(campaign, u, m))  # type: ignore[misc]


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
    campaign.folder.add_peaks(pd.DataFrame(rows))
    return {"rows": len(rows), "note": f"{len(rows)} rows{failure}"}


def products(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Throughput of square matrix products per dtype, on random data (the power depends on the data)."""
    make = Maker(bench.device)
    cuda = bench.device.type == "cuda"
    for n in (64, 128) if tiny else (2048, 4096, 8192) if cuda else (512, 1024):
        for dtype in ("bf16", "fp16", "tf32", "fp32") if cuda else ("fp32",):
            a, b = make.tensor(n, n, dtype=dtype), make.tensor(n, n, dtype=dtype)
            try:
                taken = _measured(bench, {n: _product(a, b)}, dtype)
            except RuntimeError as error:
                if not is_unsupported(error):
                    raise
                told = unsupported(f"peaks/products gemm_{dtype}", dtype, bench.device, error)
                print(f"warning: {told}; skipped", file=sys.stderr)
                continue
            for us in taken.values():  # empty if the profiler recorded no kernel
                yield Peak(f"gemm_{dtype}", n, 2 * n**3 / us / 1e6, "TFLOP/s", "median kernel time, random data")
    set_tf32(False)


def cache_curves(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Bandwidth of warm scaling, sum and triad over sizes.

    The plateau below the cache's size is the bandwidth of the cache, the one above it that of DRAM.
    """
    import torch

    top = 14 if tiny else _limit_exponent(bench.device, 30) if bench.device.type == "cuda" else 28
    sizes = [size for e in range(12, top) for size in (1 << e, 3 << (e - 1))]
    make = Maker(bench.device)
    x, y = make.tensor(max(sizes) // 4), make.tensor(max(sizes) // 4)
    views = {size: (x[: size // 4], y[: size // 4]) for size in sizes}
    kinds: dict[str, tuple[int, Callable[[Tensor, Tensor], Callable[[], object]]]] = {
        "scale": (2, lambda a, b: lambda: torch.mul(a, 2.0, out=b)), "sum": (1, lambda a, b: a.sum),
        "triad": (3, lambda a, b: lambda: torch.add(a, b, out=b)),
    }  # fmt: skip
    for name, (factor, maker) in kinds.items():
        taken = _measured(bench, {size: maker(*views[size]) for size in sizes})
        for size, us in taken.items():
            yield Peak(f"warm_{name}", size, factor * size / us / 1e3, "GB/s", "read and written; size of one buffer")


def copies(bench: Bench, tiny: bool) -> Iterator[Peak]:
    """Copy bandwidth over sizes: on the device, and to and from pinned and pageable host memory."""
    import torch

    device = bench.device
    cuda = device.type == "cuda"
    kinds = (
        {"d2d": 31, "h2d_pinned": 30, "d2h_pinned": 30, "h2d_pageable": 28, "d2h_pageable": 28} if cuda else {"d2d": 27}
    )
    for kind, top in kinds.items():
        top = 14 if tiny else _limit_exponent(device, top)
        here = torch.ones(1 << top, dtype=torch.uint8, device=device)
        there = torch.ones(1 << top, dtype=torch.uint8, device=device if kind == "d2d" else "cpu")
        there = there.pin_memory() if "pinned" in kind else there
        source, target = (here, there) if kind.startswith("d2h") else (there, here)
        runs = {1 << e: _copy(source, target, 1 << e, "pageable" not in kind) for e in range(10, top + 1)}
        for size, us in _measured(bench, runs).items():
            factor = 2 if kind == "d2d" else 1
            yield Peak(
                f"copy_{kind}", size, factor * size / us / 1e3, "GB/s", "read and written" if factor == 2 else ""
            )
            yield Peak(f"copy_{kind}_time", size, us, "us", "device time")
        del here, there, source, target, runs
        release(device)


def _plain_step_us(campaign: Campaign) -> float | None:
    """The small step's unprofiled time, as the campaign measured it before any profile."""
    peaks = campaign.folder.peaks
    values = list(peaks.loc[peaks["name"] == PLAIN_STEP, "value"]) if len(peaks) else []
    return float(values[-1]) if values else None


def _costs(costs: Iterator[Cost]) -> Iterator[Peak]:
    """Costs as peaks without a size."""
    return (Peak(name, None, value, unit, note) for name, value, unit, note in costs)


def _measured(bench: Bench, runs: dict[int, Callable[[], object]], dtype: str = "fp32") -> dict[int, float]:
    """Warm device time (µs) of each call by its size; calls without a device time are left out."""
    timings = {
        size: Timing(Case(Spec("peak", "peak", "forward", dtype, {"bytes": size}), run), Cache.WARM)
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


def _product(a: Tensor, b: Tensor) -> Callable[[], object]:
    return lambda: a @ b


def _copy(source: Tensor, target: Tensor, size: int, non_blocking: bool) -> Callable[[], object]:
    return lambda: target[:size].copy_(source[:size], non_blocking=non_blocking)
