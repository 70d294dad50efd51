"""Build and warm up microbenchmark cases within a time and a memory limit, and make the table of their results."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from pipeline.collect.case_timing import Bench, Cache, Timing
from pipeline.collect.cases import Case, Maker, Spec, UnsupportedCallError, build_case
from pipeline.collect.device import FLOAT_BYTES, free_bytes, out_of_memory, still_computes
from pipeline.collect.operator_runs import Replayer
from pipeline.collect.unsupported import device_name, first_line, is_unsupported
from pipeline.errors import MeasurementError
from pipeline.schemas import DIMS, SCHEMAS

if TYPE_CHECKING:
    import torch

MAX_CASES_IN_MEMORY = 16
"""Largest number of sampled cases in memory at the same time."""
REPETITIONS = {"cpu": 7, "cuda": 4}
"""Repetitions of a sampled case, per device type; on CUDA also of an exact case per round."""
MAX_CASE_US = 400_000.0
"""Time limit in µs of a sampled case. Slower cases are dropped after the warm-up, because they would take the time of
many others."""


@dataclass
class Unmeasured:
    """Calls without a benchmark: number of distinct calls by reason.

    `unsupported` lists the calls that the device cannot run in their dtype.
    """

    reasons: dict[str, int] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)

    def add(self, error: Exception) -> None:
        """Count one call, with the first line of the error as the reason."""
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


GraphNode = tuple[Replayer, int]
"""Location of a call's operator: its graph, and its `node_id` in it."""


@dataclass
class Workbench:
    """Settings and state of one measurement run."""

    bench: Bench
    device: torch.device
    deadline: float
    budget_bytes: int
    seed: int
    unmeasured: Unmeasured = field(default_factory=Unmeasured)
    made: int = 0

    def build(self, spec: Spec, cache: Cache, node: GraphNode | None) -> tuple[Timing, int] | None:
        """A warmed-up case and the bytes that it holds; None if the call has no benchmark."""
        self.made += 1
        make = Maker(self.device, self.seed + self.made)
        try:
            timing = Timing(self._case(spec, node, make), cache)
            took = timing.took_us = self.bench.warm_up(timing, MAX_CASE_US)
            if node is None and took > MAX_CASE_US:
                raise UnsupportedCallError(f"{spec.family} {spec.op}: one call takes more than {MAX_CASE_US / 1e6:g} s")
            return timing, make.bytes
        except UnsupportedCallError as error:
            self.unmeasured.add(error)
        except Exception as error:  # a failing call must not stop the other calls
            self.failed(spec, error)
        return None

    def failed(self, spec: Spec, error: Exception) -> None:
        """Count a call that failed.

        Raises:
            MeasurementError: the device was lost in the call.
        """
        if not still_computes(self.device):
            raise MeasurementError(f"the device was lost in {spec.family} {spec.op}: {error}") from error
        reason = "out of memory" if out_of_memory(error) else str(error)
        if is_unsupported(error):
            reason = f"{device_name(self.device)} cannot run it in {spec.dtype} ({first_line(error)})"
            self.unmeasured.unsupported.append(f"{spec.family} {spec.op}: {reason}")
        self.unmeasured.add(MeasurementError(f"{spec.family} {spec.op}: {reason}"))

    def _case(self, spec: Spec, node: GraphNode | None, make: Maker) -> Case:
        """The case of a call: on a CPU the operator of the graph if it can be replayed, else the case of a builder."""
        import torch

        with torch.no_grad():
            if node is not None:
                try:
                    return node[0].build(spec, node[1], make)
                except UnsupportedCallError:
                    pass
            return build_case(spec, make)

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


def samples_frame(rows: Sequence[dict[str, Any]], gpu: str, source: str, campaign_id: str) -> pd.DataFrame:
    """Measured rows as a table of the `samples` schema."""
    frame = pd.DataFrame([{**_identity(row["spec"]), **{k: v for k, v in row.items() if k != "spec"}} for row in rows])
    frame = frame.assign(gpu=gpu, source=source, campaign_id=campaign_id)
    return frame.reindex(columns=SCHEMAS["samples"].names).astype(dict.fromkeys(DIMS, "Int64"))


def measured_row(timing: Timing) -> dict[str, Any]:
    """The measured columns of a case, with its specification under `spec`; empty if it did nothing on the device."""
    measured = timing.row()
    return {"spec": timing.case.spec, **measured} if measured else {}


def _identity(spec: Spec) -> dict[str, Any]:
    return {"family": spec.family, "op": spec.op, "phase": spec.phase, "dtype": spec.dtype, **spec.dims}


def table_bytes(spec: Spec) -> int:
    """Bytes of the embedding tables that a call needs, known before it is built; 0 without tables."""
    if not spec.family.startswith("embedding"):
        return 0
    rows = sum(int(n) for n in spec.attributes.get("rows", [])) or spec.get("E", 0) * spec.get("T", 1)
    return rows * spec.get("D", 1) * FLOAT_BYTES.get(spec.dtype, 4)


def budget_bytes(device: torch.device) -> int:
    """Bytes that all cases together may hold: a part of the free memory, so that a shared machine stays usable."""
    if device.type == "cuda":
        return int(0.5 * free_bytes(device))
    return min(int(0.3 * free_bytes(device)), 4 << 30)
