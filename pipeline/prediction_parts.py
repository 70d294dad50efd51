"""Parts of a prediction that not every prediction has: the traced step that it starts from, and the exchange of several GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.readable import milliseconds


@dataclass(frozen=True)
class TracedStep:
    """What a trace shows of the step that a prediction starts from. Times are µs."""

    gpu: str
    """The GPU that was traced."""
    span_us: float
    """From the first operator of the median iteration to the end of host and device."""
    queued_us: float
    """Part of the span in which the device finished work that was launched before the iteration."""
    step_us: float
    """The rest of the span: the step."""
    time_per_batch_us: float | None
    """Mean time from the end of an iteration to the end of the next; None for a trace of one iteration."""


@dataclass(frozen=True)
class SeveralGpus:
    """What is particular of a step on several GPUs. Times are µs of one rank."""

    devices: int
    nodes: int
    cluster: str
    communication_us: float
    """Time in which collectives run."""
    exposed_communication_us: float
    """The part of it in which nothing else runs on the GPU."""
    efficiency: float | None = None
    """Throughput over that of as many single GPUs; None where one GPU cannot be predicted."""


class Drawn(Protocol):
    """A predicted step whose parts can be drawn (`pipeline.answers.part_draws.DrawnStep`)."""

    @property
    def calls(self) -> pd.DataFrame:
        """Device calls, `calls` schema."""

    def parts(self, more: int = 0) -> dict[str, npt.NDArray[np.float64]]:
        """Time of each part of the step in each draw, µs, shape (draws,); `more` is added to the seed."""


def traced_rows(traced: TracedStep) -> list[tuple[str, str]]:
    """The traced iteration: its span, the work queued before it, its step, and the time per batch."""
    rows = [
        (f"traced on {traced.gpu}: span", milliseconds(traced.span_us)),
        ("  work queued before the step", milliseconds(traced.queued_us)),
        ("  step", milliseconds(traced.step_us)),
    ]
    if traced.time_per_batch_us is not None:
        rows.append(("  time per batch (end to end)", milliseconds(traced.time_per_batch_us)))
    return rows


def rows_of_several(several: SeveralGpus) -> list[tuple[str, str]]:
    """GPUs and what joins them, the time of their exchange, and what is lost to it."""
    where = f"{several.devices}, {several.nodes} x {several.cluster}"
    exposed = f"{milliseconds(several.exposed_communication_us)} exposed"
    rows = [("GPUs", where), ("communication", f"{milliseconds(several.communication_us)}, {exposed}")]
    if several.efficiency is not None:
        rows.append(("scaling efficiency", f"{several.efficiency:.1%}"))
    return rows


def several_of(row: dict[str, Any]) -> SeveralGpus | None:
    """Of a row of a `summary` table; None for one GPU."""
    if (number_of(row.get("devices")) or 1) == 1:
        return None
    return SeveralGpus(
        int(row["devices"]), int(row["nodes"]), text_of(row["cluster"]), row["communication_us"],
        row["exposed_communication_us"], number_of(row["efficiency"]),
    )  # fmt: skip


def text_of(value: Any, default: str = "") -> str:
    """The text of a row; the default where it is empty, as in files of an earlier version."""
    return value if isinstance(value, str) and value else default


def number_of(value: Any) -> float | None:
    """A number of a row; None where it is empty."""
    return None if value is None or pd.isna(value) else float(value)
