"""The result of a prediction: the step time with its parts, its interval and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline import plotter
from pipeline.errors import InputError
from pipeline.paths import short_path
from pipeline.prediction_parts import (
    Arithmetic,
    Power,
    SeveralGpus,
    TracedStep,
    facts_of,
    lacking_models,
    power_facts,
)
from pipeline.readable import gibibytes, html_table, in_ms, milliseconds, rate, shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN_AT = ("gpu.power_limit_w=", "gpu.clock_mhz=")
"""Beginnings of the overrides that say how a card is run."""

MAX_NAME_LENGTH, NAMED_GPUS = 60, 3
"""Longest name of a variant, in characters, that fits on an axis; and the number of GPUs that a table names as fitting."""

ASKED = ("dtype", "optimizer", "attention")
"""Keys of `Prediction.asked`."""

PUBLIC = (
    "gpu", "model", "variant", "overrides", "batch_size", "predicted_us", "active_us", "idle_us",
    "host_us", "p10_us", "p90_us", "bound", "samples_per_s", "memory_bytes", "fits", "tight",
    "evidence", "host_evidence", "unmodelled_share", "unmodelled_us", "lower_bound", "families_us",
    "models_from", "host", "device_bound_from", "warnings", "notes",
)  # fmt: skip
"""Attributes of a prediction that `Prediction.as_dict` gives as they are."""

AS_TRACED = "as traced"
"""Host, dtype and optimizer of a step that a trace shows: the trace does not name them."""


class Drawn(Protocol):
    """A predicted step whose parts can be drawn (`pipeline.answers.drawn_step.DrawnStep`)."""

    @property
    def calls(self) -> pd.DataFrame:
        """Device calls, `calls` schema."""

    def parts(self) -> dict[str, npt.NDArray[np.float64]]:
        """Time of each part of the step in each draw, µs, shape (draws,)."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """One predicted training step. Times are microseconds, memory is bytes, shares sum to 1."""

    gpu: str
    model: str
    variant: str
    batch_size: int
    predicted_us: float
    """Step time: from the begin of a step to that of the next in a loop, in which steps overlap unless the host waits."""
    active_us: float
    """Time in which at least one kernel runs."""
    host_us: float
    """Time from the start of the step until the host has finished."""
    p10_us: float
    p90_us: float
    memory_bytes: int
    fits: bool
    """Whether `memory_bytes` is within the memory of the GPU that PyTorch can use."""
    evidence: dict[str, float]
    """Share of device time by kind of evidence."""
    host_evidence: dict[str, float]
    """Share of host time by kind of evidence."""
    unmodelled_share: float
    """Share of device time without a model: operators that the map lacks, Fourier transforms, products in dtypes without a rate."""
    families_us: dict[str, float] = field(default_factory=dict)
    """Device time in µs by kernel family, largest first."""
    unmodelled_us: dict[str, float] = field(default_factory=dict)
    """Device time in µs of unmodelled calls by operator, largest first."""
    bound: str = "device"
    """`host`, `device`, `communication` or `loader`: the one that the largest part of the critical path waits for."""
    measured_us: float | None = None
    """Step time measured on this device without the profiler, if there is one."""
    host: str = ""
    """The host that was assumed."""
    device_bound_from: float | None = None
    """How many times as fast the host must be for a host-bound step to become device-bound; None where no speed suffices."""
    largest_batch: int | None = None
    """The largest batch that fits, for a step that does not; None where not even one sample fits."""
    fitting_gpus: tuple[str, ...] = ()
    """GPUs on which a step fits that does not fit its own, by memory."""
    fitting_change: str = ""
    """Overrides with which a decoder fits that does not; empty where none of a few do."""
    arithmetic: Arithmetic | None = None
    """FLOPs of the model and the GPU's peaks; None without products, for a trace, and in tables of an earlier version."""
    several: SeveralGpus | None = None
    """What is particular of a step on several GPUs; None for one."""
    power: Power | None = None
    """Energy and clock; None for this machine, a trace, and a step that is put together from parts."""
    traced: TracedStep | None = None
    """The traced step, for predictions from a trace."""
    overrides: tuple[str, ...] = ()
    tight: bool = False
    """Whether the step fits, but within a tenth of the limit, where fragmented memory may be too little."""
    models_from: tuple[str, ...] = ()
    """Folders that the kernel models of this GPU were read from, best first; empty where it has no models of its own."""
    warnings: tuple[str, ...] = ()
    """What differs from what was asked, and what the prediction leaves out, one sentence each."""
    asked: dict[str, str] = field(default_factory=dict)
    """Dtype, optimizer and attention of the step, where it has them: as asked, or as the step's own code has them."""
    notes: tuple[str, ...] = ()
    """How what was asked was understood, one sentence each."""
    calls: pd.DataFrame | None = field(default=None, repr=False, compare=False)
    """Per operator and device call, in the `prediction` schema."""
    parameters: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Number of parameters that each module holds itself, by its path; kept with `calls`."""
    draws_us: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """Step time of each draw of its errors, shape (draws,). Draws of two predictions on one GPU are pairs."""
    drawn: Drawn | None = field(default=None, repr=False, compare=False)
    """The step with the errors of its times, where it was kept: `predict` keeps it."""

    @property
    def lower_bound(self) -> tuple[str, ...]:
        """Operators without a model that may take long. If there are any, the step time and its interval are lower bounds."""
        return lacking_models(self.unmodelled_share, self.unmodelled_us)

    @property
    def step_ms(self) -> str:
        """The step time in ms as a cell of a table; a lower bound is marked."""
        return f"{'≥ ' if self.lower_bound else ''}{in_ms(self.predicted_us)}"

    @property
    def idle_us(self) -> float:
        """Time of the step in which no kernel runs."""
        return self.predicted_us - self.active_us

    @property
    def samples_per_s(self) -> float:
        """Training throughput of all GPUs in samples per second."""
        return self.global_batch / self.predicted_us * 1e6

    @property
    def assumed(self) -> str:
        """Host, dtype, optimizer and attention of the step, as text."""
        return _words({"host": self.host, **self.asked})

    @property
    def tflop_per_s(self) -> float | None:
        """FLOPs that the model needs, over the step time, in TFLOP/s per GPU."""
        return self.arithmetic.tflop_per_s(self.predicted_us) if self.arithmetic else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: that over the GPU's datasheet peak in the dtype of most of the FLOPs."""
        return self.arithmetic.mfu(self.predicted_us) if self.arithmetic else None

    @property
    def modules(self) -> pd.DataFrame:
        """Device time, parameters, FLOPs and bytes of each module (`pipeline.answers.modules.module_table`)."""
        table: pd.DataFrame = plotter.module_table(self)
        return table

    @property
    def devices(self) -> int:
        """Number of GPUs."""
        return self.several.devices if self.several else 1

    @property
    def global_batch(self) -> int:
        """Samples of all GPUs in a step."""
        several = self.several
        return self.batch_size * (several.dp * several.micro_batches if several else 1)

    @property
    def named(self) -> str:
        """Difference from the default prediction: its overrides, or the variant where they are not known."""
        if self.variant == "default":
            return ""
        texts = (text.removeprefix("+").removeprefix("model.") for text in self.overrides)
        return " ".join(texts) or self.variant

    @property
    def label(self) -> str:
        """The point's name in tables and figures: model, overrides (the variant where they are too long) and batch size."""
        shown = self.named if len(self.named) <= MAX_NAME_LENGTH else self.variant
        return f"{self.model} {shown}".rstrip() + f" b{self.batch_size}"

    @property
    def error(self) -> float | None:
        """Relative error: predicted / measured - 1, or None without a measurement."""
        return None if self.measured_us is None else self.predicted_us / self.measured_us - 1

    @property
    def memory_state(self) -> str:
        """Whether the step "fits", is "tight" or "does not fit"."""
        return "does not fit" if not self.fits else "tight" if self.tight else "fits"

    @property
    def memory_text(self) -> str:
        """The memory need, and whether that fits."""
        where = "" if self.fits else " this GPU"
        return f"{gibibytes(self.memory_bytes)}, {self.memory_state}{where}"

    @property
    def title(self) -> str:
        """What was predicted, in a few words."""
        batch = "" if self.traced and self.batch_size == 1 else f", batch {self.batch_size}"
        several, each = (f"{self.devices} x ", " each") if self.devices > 1 else ("", "")
        return f"{self.model} on {several}{self.gpu}{batch}{each}"

    def __str__(self) -> str:
        name = f" ({self.named})" if self.named else ""
        state = "" if self.memory_state == "fits" else f", {self.memory_state}"
        memory = "" if self.traced else f", {gibibytes(self.memory_bytes)}{state}"
        assumed = f"; {self.assumed}" if self.assumed else ""
        return f"{self.title}{name}: {self._step_text(' ')}, {self.bound}-bound{memory}{assumed}"

    def __repr__(self) -> str:
        return f"<Prediction: {self}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.title} {self.named}".strip(), self.rows())

    def plot(self, kind: Literal["step", "roofline"] = "step") -> Figure:
        """Where the time of the step goes (`draw_step`), or what limits its kernels (`draw_roofline`)."""
        draw = {"step": plotter.draw_step, "roofline": plotter.draw_roofline}
        if kind not in draw:
            raise InputError(f"plot({kind!r}): give one of {', '.join(draw)}")
        figure: Figure = draw[kind](self)
        return figure

    def diff(self, other: Prediction) -> Any:
        """What makes the other step faster or slower than this one, as a `pipeline.answers.difference.Difference`."""
        return plotter.difference(self, other)

    def _step_text(self, gap: str = "   ") -> str:
        least = "at least " if self.lower_bound else ""
        low, high = milliseconds(self.p10_us), milliseconds(self.p90_us)
        return f"{least}{milliseconds(self.predicted_us)}{gap}(p10-p90: {low} to {high})"

    def rows(self) -> list[tuple[str, str]]:
        """The rows of its table: what, and the value as text."""
        busy = f"{self.active_us / self.predicted_us:.0%} busy"
        unit = "steps/s" if self.traced and self.batch_size == 1 else "samples/s"
        rows = {
            "step time": self._step_text(),
            f"measured, {'traced' if self.traced else 'unprofiled'}": self._measured_text(),
            "device active / idle": (
                f"{milliseconds(self.active_us)} / {milliseconds(self.idle_us)}  ({busy})"
            ),
            "host done after": f"{milliseconds(self.host_us)}   → {self.bound}-bound",
            "host": self.host,
            "break-even": self._break_even() if self.bound == "host" and self.host else "",
            "throughput": f"{rate(self.samples_per_s)} {unit}",
            "arithmetic": self._arithmetic_text(),
            **(self.several.rows if self.several else {}),
            **(self.power.rows(*self._work) if self.power and self.run_at else {}),
            **(self.traced.rows if self.traced else {"memory": self.memory_text}),
            "what fits": "" if self.fits else self._what_fits(),
            "device time rests on": shares(self.evidence),
            "host time rests on": shares(self.host_evidence),
            "kernel models from": ", ".join(map(short_path, self.models_from)),
            "not modelled": self._unmodelled_text(),
            "computed with": _words(self.asked),
        }
        return [
            *((label, text) for label, text in rows.items() if text),
            *(("note", text) for text in self.notes),
            *(("warning", text) for text in self.warnings),
        ]

    @property
    def run_at(self) -> str:
        """The power limit or the clock that was asked for, as its override; empty without one."""
        return next((text for text in self.overrides if text.startswith(RUN_AT)), "")

    @property
    def _work(self) -> tuple[float, float, int]:
        """Step time in µs, samples of a step, and GPUs."""
        return self.predicted_us, self.global_batch, self.devices

    def _measured_text(self) -> str:
        off = f"   (error of the prediction: {self.error:+.1%})" if self.error is not None else ""
        return "" if self.measured_us is None else f"{milliseconds(self.measured_us)}{off}"

    def _arithmetic_text(self) -> str:
        if self.arithmetic is None:
            return ""
        reached = f"{self.tflop_per_s:.3g} TFLOP/s{' per GPU' * (self.devices > 1)}"
        return f"{reached}, {self.mfu:.1%} of the {self.arithmetic.dtype} peak (MFU)"

    def _unmodelled_text(self) -> str:
        if self.unmodelled_share <= 0:
            return ""
        names = ", ".join(list(self.unmodelled_us)[:3])
        return f"{self.unmodelled_share:.1%} of device time{f' ({names})' if names else ''}"

    def _break_even(self) -> str:
        if self.device_bound_from is None:
            return "host-bound whatever the host"
        return f"device-bound from a host {self.device_bound_from:.2f} times as fast"

    def _what_fits(self) -> str:
        most = self.largest_batch
        batch = "not even a batch of 1" if most is None else f"a batch of {most:,}"
        named, more = self.fitting_gpus[:NAMED_GPUS], len(self.fitting_gpus) - NAMED_GPUS
        others = f"{', '.join(named) or 'no other GPU'}{f' and {more} more' if more > 0 else ''}"
        change = self.fitting_change and f"; this batch on these GPUs with {self.fitting_change}"
        return f"{batch} on this GPU; this batch on {others}{change}"

    def as_dict(self) -> dict[str, Any]:
        """The public keys of a prediction, ready for JSON."""
        values = {name: getattr(self, name) for name in PUBLIC}
        keys = {
            **{key: list(v) if isinstance(v, tuple) else v for key, v in values.items()},
            **{key: self.asked.get(key) for key in ASKED},
            "global_batch": self.global_batch,
            **asdict(self.several or SeveralGpus(1, 1, "", 0.0, 0.0)),
            **facts_of(self.arithmetic, self.predicted_us),
            **power_facts(self.power, *self._work),
        }
        if not self.fits:
            keys |= {"largest_batch": self.largest_batch, "fitting_gpus": list(self.fitting_gpus)}
            keys |= {"fitting_change": self.fitting_change} if self.fitting_change else {}
        if self.traced is not None:
            keys |= {"traced": asdict(self.traced)}
        if self.measured_us is not None:
            keys |= {"measured_us": self.measured_us, "error": self.error}
        return keys


def _words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items() if value)
