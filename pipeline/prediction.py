"""The result of a prediction: the step time with its parts, its interval and its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline import plotter, prediction_rows
from pipeline.errors import InputError
from pipeline.prediction_parts import (
    Arithmetic,
    Power,
    SeveralGpus,
    TracedStep,
    facts_of,
    lacking_models,
    power_facts,
)
from pipeline.prices import Price, costs, price_of
from pipeline.readable import (
    gibibytes,
    html_table,
    in_ms,
)
from pipeline.work import WORK_KEYS, Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN_AT = ("gpu.power_limit_w=", "gpu.clock_mhz=")
"""Beginnings of the overrides that say how a card is run."""

MAX_NAME_LENGTH = 60
"""Longest name of a variant, in characters, that fits on an axis."""

ASKED = ("dtype", "optimizer", "attention", "seq_len")
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

    def step_us(self) -> npt.NDArray[np.float64]:
        """The step time of each draw, µs, shape (draws,)."""

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
    """About the largest batch that fits, for a step that does not; None where none is known to."""
    fitting_gpus: tuple[str, ...] = ()
    """GPUs on which a step fits that does not fit its own, by memory."""
    fitting_change: str = ""
    """Overrides with which a decoder fits that does not; empty where none of a few do."""
    arithmetic: Arithmetic | None = None
    """FLOPs of the model and the GPU's peaks; None without products, for a trace, and in tables of an earlier version."""
    several: SeveralGpus | None = None
    """What is particular of a step on several GPUs; None for one."""
    power: Power | None = None
    """Energy and clock; None for this machine."""
    traced: TracedStep | None = None
    """The traced step, for predictions from a trace."""
    overrides: tuple[str, ...] = ()
    stated: tuple[str, ...] = ()
    """Overrides that state what is the default."""
    tight: bool = False
    """Whether the step fits, but within a tenth of the limit, where fragmented memory may be too little."""
    models_from: tuple[str, ...] = ()
    """Folders that the kernel models of this GPU were read from, best first; empty where it has no models of its own."""
    warnings: tuple[str, ...] = ()
    """What differs from what was asked, and what the prediction leaves out, one sentence each."""
    own_price: float | None = None
    """What the user says an hour of the GPU costs."""
    work: Work | None = None
    """What the user wants to train."""
    asked: dict[str, str] = field(default_factory=dict)
    """Dtype, optimizer, attention and length of sequences of the step, where it has them: as asked, or as its own code does."""
    notes: tuple[str, ...] = ()
    """How what was asked was understood, one sentence each."""
    stages: pd.DataFrame | None = field(default=None, repr=False, compare=False)
    """What each stage of a pipeline does (`pipeline.simulate.schedule.Schedule.table`)."""
    calls: pd.DataFrame | None = field(default=None, repr=False, compare=False)
    """Per operator and device call, in the `prediction` schema."""
    parameters: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Number of parameters that each module holds itself, by its path; kept with `calls`."""
    kept_bytes: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    """Bytes of what the forward pass of each module makes for the backward pass, by its path (`Memory.kept`)."""
    draws_us: npt.NDArray[np.float64] | None = field(default=None, repr=False, compare=False)
    """Step time of each draw of its errors, shape (draws,). Draws of two predictions on one GPU are pairs."""
    drawn: Drawn | None = field(default=None, repr=False, compare=False)
    """The step with the errors of its times, where it was kept: `predict` keeps it."""
    on_host: Callable[[str], Prediction | None] | None = field(
        default=None, repr=False, compare=False
    )
    """Predicts the same step on the host of a name, where `drawn` was kept."""

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
    def low_samples_per_s(self) -> float:
        """Its p10, where the step takes its p90."""
        return 1e6 * self.global_batch / self.p90_us

    @property
    def high_samples_per_s(self) -> float:
        """Its p90."""
        return 1e6 * self.global_batch / self.p10_us

    @property
    def price(self) -> Price | None:
        """What an hour of one GPU costs; None where nobody says so."""
        return price_of(self.gpu, self.own_price)

    @property
    def samples_per_price(self) -> float | None:
        """Samples per unit of the price's currency; None without a price."""
        found: float | None = self._costs["samples_per_dollar"]
        return found

    @property
    def _costs(self) -> dict[str, Any]:
        return costs(self.price, self.samples_per_s, self.devices, self.electricity_per_hour)

    @property
    def electricity_per_hour(self) -> float:
        """Price of the electricity of one GPU and of its share of the machine; 0 where a kWh has no price."""
        return self.power.electricity_per_hour(self.predicted_us) if self.power else 0.0

    @property
    def per_hour(self) -> float | None:
        """What all GPUs cost in an hour: their rent, and their electricity where a kWh has a price; None without a rent."""
        price = self.price
        return (
            None if price is None else self.devices * (price.per_hour + self.electricity_per_hour)
        )

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sample; None where it is no sequence of tokens."""
        return int(self.asked["seq_len"]) if self.asked.get("seq_len") else None

    @property
    def tokens_per_s(self) -> float | None:
        """Training throughput of all GPUs in tokens per second; None where samples have none."""
        return self.samples_per_s * self.seq_len if self.seq_len else None

    @property
    def work_facts(self) -> dict[str, Any]:
        """Hours and cost of the user's work (`WORK_KEYS`); null where none was given."""
        if self.work is None:
            return dict.fromkeys(WORK_KEYS)
        each = [us / self.global_batch for us in (self.predicted_us, self.p10_us, self.p90_us)]
        return self.work.facts(each, self.seq_len, self.per_hour)

    @property
    def assumed(self) -> str:
        """Host, dtype, optimizer and attention of the step, as text."""
        return prediction_rows.words({"host": self.host, **self.asked})

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
        return " ".join(self.options) or self.variant

    @property
    def options(self) -> list[str]:
        """Its overrides without the section of the model."""
        return [text.removeprefix("+").removeprefix("model.") for text in self.overrides]

    def line(self, *besides: str) -> list[str]:
        """What is the same along a line of a figure: all but the options that begin with one of `besides`."""
        options = [text for text in self.options if not text.startswith(besides)]
        return [self.model, self.gpu, f"b{self.batch_size}", *options]

    @property
    def own_name(self) -> str:
        """The model's own name: that in its library where it is of one."""
        starts = ("model.name=", "model.config=")
        named = [text.partition("=")[2] for text in self.overrides if text.startswith(starts)]
        return named[0] if named else self.model

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
    def cards(self) -> str:
        """The GPU, behind the number of several."""
        return f"{self.devices} x {self.gpu}" if self.devices > 1 else self.gpu

    @property
    def title(self) -> str:
        """What was predicted, in a few words."""
        batch = "" if self.traced and self.batch_size == 1 else f", batch {self.batch_size}"
        return f"{self.own_name} on {self.cards}{batch}{' each' * (self.devices > 1)}"

    def __str__(self) -> str:
        name = f" ({self.named})" if self.named else ""
        state = "" if self.memory_state == "fits" else f", {self.memory_state}"
        memory = "" if self.traced else f", {gibibytes(self.memory_bytes)}{state}"
        assumed = f"; {self.assumed}" if self.assumed else ""
        step = prediction_rows.step_text(self, " ")
        return f"{self.title}{name}: {step}, {self.bound}-bound{memory}{assumed}"

    def __repr__(self) -> str:
        return f"<Prediction: {self}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.title} {self.named}".strip(), self.rows())

    def plot(self, kind: Literal["step", "roofline", "stages"] = "step") -> Figure:
        """Where the time of the step goes, what limits its kernels (`draw_roofline`), or what the stages of a pipeline do."""
        draw = {
            "step": plotter.draw_step,
            "roofline": plotter.draw_roofline,
            "stages": plotter.draw_stages,
        }
        if kind not in draw:
            raise InputError(f"plot({kind!r}): give one of {', '.join(draw)}")
        figure: Figure = draw[kind](self)
        return figure

    def diff(self, other: Prediction) -> Any:
        """What makes the other step faster or slower than this one, as a `pipeline.answers.difference.Difference`."""
        return plotter.difference(self, other)

    def rows(self, why: bool = False) -> list[tuple[str, str]]:
        """The rows of its table: what, and the value as text; `why` adds what its times rest on."""
        return prediction_rows.rows(self, why)

    @property
    def sureness(self) -> str:
        """How sure it is, by the errors that such evidence has shown: measured, good, fair or guess."""
        return prediction_rows.sureness(self)

    @property
    def run_at(self) -> str:
        """The power limit or the clock that was asked for, as its override; empty without one."""
        return next((text for text in self.overrides if text.startswith(RUN_AT)), "")

    @property
    def step_of(self) -> tuple[float, float, int, int]:
        """Step time in µs, samples of a step, GPUs, and machines."""
        nodes = self.several.nodes if self.several else 1
        return self.predicted_us, self.global_batch, self.devices, nodes

    def as_dict(self) -> dict[str, Any]:
        """The public keys of a prediction, ready for JSON."""
        values = {name: getattr(self, name) for name in PUBLIC}
        keys = {
            **{key: list(v) if isinstance(v, tuple) else v for key, v in values.items()},
            **{key: self.asked.get(key) for key in (*ASKED, "compiled")},
            "global_batch": self.global_batch,
            **asdict(self.several or SeveralGpus(1, 1, "", 0.0, 0.0)),
            **facts_of(self.arithmetic, self.predicted_us),
            **power_facts(self.power, *self.step_of),
            "tokens_per_s": self.tokens_per_s,
            "sureness": self.sureness,
            **self._costs,
            **self.work_facts,
        }
        if not self.fits:
            keys |= {"largest_batch": self.largest_batch, "fitting_gpus": list(self.fitting_gpus)}
            keys |= {"fitting_change": self.fitting_change} if self.fitting_change else {}
        if self.traced is not None:
            keys |= {"traced": asdict(self.traced)}
        if self.measured_us is not None:
            keys |= {"measured_us": self.measured_us, "error": self.error}
        return keys
