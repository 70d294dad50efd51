"""Parts of a prediction that not every prediction has: arithmetic, the traced step before it, the exchange of several GPUs."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
class Arithmetic:
    """What a step computes on one GPU (`pipeline.answers.step_prediction.model_flops`), and the roofs of that GPU."""

    model_flops: float
    """FLOPs that the model needs for a step, without what runs again."""
    dtype: str
    """The dtype of most of them."""
    peaks_tflop_per_s: Mapping[str, float]
    """Datasheet peak of the GPU in each dtype of the step."""
    dram_gb_per_s: float | None = None
    """Datasheet bandwidth of its memory; None where it is not kept."""

    def tflop_per_s(self, step_us: float) -> float:
        """Achieved throughput of a step, TFLOP/s."""
        return self.model_flops / step_us / 1e6

    def mfu(self, step_us: float) -> float:
        """Model FLOPs utilisation: that over the peak of `dtype`."""
        return self.tflop_per_s(step_us) / self.peaks_tflop_per_s[self.dtype]

    def row(self, step_us: float, devices: int) -> tuple[str, str]:
        """Its row in a prediction's table."""
        each = " per GPU" if devices > 1 else ""
        return (
            "arithmetic",
            f"{self.tflop_per_s(step_us):.3g} TFLOP/s{each}, {self.mfu(step_us):.1%} of the {self.dtype} peak (MFU)",
        )

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Arithmetic | None:
        """Of a row of a `summary` table; None where it has none."""
        flops, peak = number_of(row.get("model_flops")), number_of(row.get("peak_tflop_per_s"))
        if flops is None or peak is None:
            return None
        return cls(flops, text_of(row["mfu_dtype"]), {text_of(row["mfu_dtype"]): peak})


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


def facts_of(arithmetic: Arithmetic | None, step_us: float) -> dict[str, Any]:
    """Keys of an answer about its arithmetic; null where it has none."""
    a = arithmetic
    return {
        "model_flops": a and a.model_flops, "tflop_per_s": a and a.tflop_per_s(step_us), "mfu": a and a.mfu(step_us),
        "mfu_dtype": a and a.dtype, "peak_tflop_per_s": a and a.peaks_tflop_per_s[a.dtype],
    }  # fmt: skip


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


def by_name(text: object) -> dict[str, float]:
    """A column that holds numbers by name; empty if a file of an earlier version has no such column."""
    found = json.loads(text) if isinstance(text, str) else {}
    return {name: float(value) for name, value in found.items()}


def names_of(text: object) -> tuple[str, ...]:
    """A column that holds a list of texts; empty if a file of an earlier version has no such column.

    Raises:
        ValueError: it holds something else.
    """
    found = json.loads(text_of(text, "[]"))
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError(f"{str(text)[:40]} is no list of texts")
    return tuple(found)
