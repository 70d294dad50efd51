"""The result of a replay: every evaluated iteration, its prediction, the baselines for comparison, and a table of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.prediction_parts import Arithmetic, facts_of
from pipeline.readable import milliseconds
from pipeline.simulate.program import Program
from pipeline.simulate.timeline import Timeline
from pipeline.simulate.trace_program import Iteration
from pipeline.trace.linked_trace import Trace

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Replayed:
    """One evaluated iteration.

    Attributes:
        iteration: the measured iteration.
        program: its program.
        timeline: the simulated timeline.
        train_mean_us: mean span of the iterations that the statistics come from.
        queued_us: time of the span in which the device finished work launched before the iteration.
    """

    iteration: Iteration
    program: Program
    timeline: Timeline
    train_mean_us: float
    queued_us: float = 0.0

    @property
    def predicted_us(self) -> float:
        """Predicted span."""
        return float(self.timeline.step_us[0])

    @property
    def error(self) -> float:
        """Predicted span divided by measured span, minus 1."""
        return self.predicted_us / self.iteration.span_us - 1.0


@dataclass(frozen=True)
class ReplayResult:
    """All evaluated iterations of a trace, with the statistics that they were predicted from."""

    trace: Trace
    split: str
    replayed: tuple[Replayed, ...]
    overheads: pd.DataFrame
    notes: tuple[str, ...] = field(default=())
    time_per_batch_us: float | None = None
    """Measured mean time from the end of an iteration to the end of the next; None for one iteration."""
    arithmetic: Arithmetic | None = None
    """What an iteration computes; None where the trace does not show it."""
    held_out: bool = True
    """Whether no iteration is predicted from its own statistics. Otherwise the errors are no evidence."""

    def mean(self, what: str) -> float:
        """Mean over the evaluated iterations: `measured`, `predicted`, `active_measured`, `active_predicted`, ..."""
        return float(np.mean(self._each(what)))

    def _each(self, what: str) -> Array:
        """A figure of every evaluated iteration in µs, shape (iterations,)."""
        pick: dict[str, Callable[[Replayed], float]] = {
            "measured": lambda r: r.iteration.span_us,
            "predicted": lambda r: r.predicted_us,
            "active_measured": lambda r: r.iteration.active_us,
            "active_predicted": lambda r: float(r.timeline.active_us[0]),
            "host": lambda r: float(r.timeline.host_us[0]),
            "queued_and_kernels": lambda r: r.queued_us + float(r.iteration.kernel_us.sum()),
            "train_mean": lambda r: r.train_mean_us,
            "queued": lambda r: r.queued_us,
            "absolute_error": lambda r: abs(r.error),
        }
        return np.array([pick[what](r) for r in self.replayed])

    def as_dict(self) -> dict[str, Any]:
        """The output of `steptime replay --json`."""
        measured, predicted, queued = map(self.mean, ("measured", "predicted", "queued"))
        active = {name: self.mean(f"active_{name}") for name in ("measured", "predicted")}
        step_us = measured - queued
        return {
            "trace": str(self.trace.path),
            "device": self.trace.device,
            "marker": self.trace.marker,
            "iterations": len(self.replayed),
            "split": self.split,
            "held_out": self.held_out,
            "measured_us": measured,
            "predicted_us": predicted,
            "error": predicted / measured - 1.0,
            "mean_absolute_error": self.mean("absolute_error"),
            "queued_us": queued,
            "step_measured_us": step_us,
            "step_predicted_us": predicted - queued,
            "step_error": (predicted - queued) / step_us - 1.0,
            "time_per_batch_us": self.time_per_batch_us,
            **facts_of(self.arithmetic, step_us),
            "active_measured_us": active["measured"],
            "active_predicted_us": active["predicted"],
            "idle_measured_us": measured - active["measured"],
            "idle_predicted_us": predicted - active["predicted"],
            "host_us": self.mean("host"),
            "critical_path": self.critical_path(),
            "baselines": {
                **self._baseline("queued_and_kernels", True),
                # halves that predict each other have a common mean, which is also the measured one
                **self._baseline("train_mean", self.held_out and self.split != "halves"),
            },
            "overheads": overhead_summary(self.overheads),
            "host_evidence": {
                "own_op_share": float(
                    1 - np.mean([r.program.unmatched_host_share for r in self.replayed])
                ),
            },
            "per_iteration": [
                {
                    "iteration": r.iteration.number,
                    "measured_us": r.iteration.span_us,
                    "predicted_us": r.predicted_us,
                    "error": r.error,
                    "queued_us": r.queued_us,
                }
                for r in self.replayed
            ],
            "notes": [*self.trace.notes, *self.notes],
        }

    def _baseline(self, name: str, predicts: bool) -> dict[str, float | None]:
        """Mean of a baseline in µs, its error, and the mean absolute error of iterations, as fractions.

        The error of the mean is None where the mean is no prediction.
        """
        each, measured = self._each(name), self._each("measured")
        return {
            f"{name}_us": float(each.mean()),
            f"{name}_error": float(each.mean() / measured.mean() - 1.0) if predicts else None,
            f"{name}_mean_absolute_error": float(np.abs(each / measured - 1.0).mean()),
        }

    def critical_path(self) -> dict[str, Any]:
        """Parts of the critical path of the predicted span, as means over the evaluated iterations.

        The parts (`timeline.CriticalPath`) add up to the predicted span, work queued before the step included.
        """
        paths = [r.timeline.critical.parts for r in self.replayed]
        parts = {name: float(np.mean([path[name] for path in paths])) for name in paths[0]}
        host, device, predicted = parts["host_us"], parts["device_us"], self.mean("predicted")
        return {
            **parts,
            "host_share": host / predicted,
            "device_share": device / predicted,
            "bound": "host" if host > device else "device",
        }


def overhead_summary(observations: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Mean, median and number of observations per overhead type, over all ops."""
    kinds = sorted(observations["type"].unique()) if len(observations) else []
    return {
        str(kind): {
            "mean_us": float(values.mean()),
            "median_us": float(values.median()),
            "count": int(values.size),
        }
        for kind in kinds
        if len(values := observations.loc[observations["type"] == kind, "value_us"])
    }


KINDS = {
    "T1": "host between operators (T1)",
    "T2": "operator before its first launch (T2)",
    "T3": "operator after its last launch (T3)",
    "T4": "launch (T4)",
    "T5": "operator between launches (T5)",
    "kernel_gap": "gap between kernels",
    "launch_latency": "launch to begin of its kernel",
    "sync_return": "return of a wait",
}
"""What is observed of a trace, in words; T1 to T5 are the names of Lin et al."""

PATH_PARTS = {
    "host": ("host_us",),
    "device": ("device_us",),
    "work queued before the step": ("queued_us",),
    "latency, gaps, returns of waits": ("latency_us", "gap_us", "return_us"),
}
"""Rows of the critical path, with the keys of `ReplayResult.critical_path` that each adds up."""


BOX_FROM = 60
"""Width of a terminal, in characters, from which the table has lines between its cells."""


def verdict(facts: dict[str, Any]) -> str:
    """`ReplayResult.as_dict()` in a sentence: the step, predicted and measured; then its arithmetic, where it is known."""
    error = facts["step_error"]
    missed = (
        f"{abs(error):.2%} {'short' if error < 0 else 'long'}"
        if round(error, 4)
        else "less than 0.01% off"
    )
    missed = missed if facts["held_out"] else "predicted from itself, which is no evidence"
    predicted, measured = (
        milliseconds(facts["step_predicted_us"]),
        milliseconds(facts["step_measured_us"]),
    )
    said = f"step {predicted} predicted, {measured} measured: {missed}"
    if facts["mfu"] is None:
        return said
    return (
        f"{said}\n{facts['tflop_per_s']:.3g} TFLOP/s measured, {facts['mfu']:.1%} of the"
        f" {facts['mfu_dtype']} peak (MFU)"
    )


def table(facts: dict[str, Any], width: int = BOX_FROM) -> Table:
    """Rich table of `ReplayResult.as_dict()`, for lines of `width` characters."""
    from rich import box
    from rich.table import Table

    count = facts["iterations"]
    caption = f"{count} iteration{'' if count == 1 else 's'} evaluated, split: {facts['split']}"
    notes = "\n".join([caption, *facts["notes"]])
    out = Table(
        title=f"{facts['trace']} on {facts['device']}",
        caption=notes,
        caption_justify="left",
        box=box.HEAVY_HEAD if width >= BOX_FROM else None,
        padding=(0, 1 if width >= BOX_FROM else 0, 0, 1),
    )
    out.add_column("span of an iteration", overflow="fold")
    for name in ("µs", "error", "mean absolute error"):
        out.add_column(
            name,
            justify="right",
            overflow="fold",
            min_width=max(len(word) for word in name.split()),
        )

    for rows in _sections(facts):
        for label, value, error, absolute in rows:
            signed = "" if error is None else f"{round(error, 4) + 0.0:+.2%}"
            size = "" if absolute is None else f"{absolute:.2%}"
            out.add_row(label, f"{value:,.1f}", signed, size)
        out.add_section()
    for kind, values in facts["overheads"].items():
        plural = "" if values["count"] == 1 else "s"
        label = f"{KINDS.get(kind, kind)}: mean of {values['count']} observation{plural}"
        out.add_row(label, f"{values['mean_us']:,.2f}", "", "")
    return out


Row = tuple[str, float, float | None, float | None]
"""Label, time in µs, error and mean absolute error as fractions; None where there is no error."""


def _sections(facts: dict[str, Any]) -> list[list[Row]]:
    """Rows of the table in groups: spans and baselines, the step, device active time, the critical path."""
    base, path = facts["baselines"], facts["critical_path"]
    active, measured = facts["active_predicted_us"], facts["active_measured_us"]

    def baseline(label: str, key: str) -> Row:
        figures = [base[f"{key}_{name}"] for name in ("us", "error", "mean_absolute_error")]
        return f"baseline: {label}", figures[0], figures[1], figures[2]

    step: list[Row] = [
        ("work queued before the step", facts["queued_us"], None, None),
        ("step (span without that work), measured", facts["step_measured_us"], None, None),
        ("step, predicted", facts["step_predicted_us"], facts["step_error"], None),
    ]
    if facts["time_per_batch_us"] is not None:
        label = "time per batch (end to end), measured"
        step.append((label, facts["time_per_batch_us"], None, None))
    span = f"critical path ({path['bound']}-bound), the predicted span"
    return [
        [
            ("measured", facts["measured_us"], None, None),
            ("predicted", facts["predicted_us"], facts["error"], facts["mean_absolute_error"]),
            baseline("queued work and kernels", "queued_and_kernels"),
            baseline("mean of training iterations", "train_mean"),
        ],
        step,
        [
            ("device active, measured", measured, None, None),
            ("device active, predicted", active, active / measured - 1 if measured else None, None),
        ],
        [
            (span, facts["predicted_us"], None, None),
            *(
                (f"  {label}", sum(path[name] for name in names), None, None)
                for label, names in PATH_PARTS.items()
            ),
        ],
    ]
