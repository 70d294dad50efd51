"""The difference of two answers: what makes step B faster or slower than step A, by parts that add up, and by calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline import plotter
from pipeline.answers.call_changes import GRADIENT, GRADIENTS, NOTHING_US, CallChange, call_changes
from pipeline.answers.drawn_step import IDLE, OVERLAP, parts_of_step
from pipeline.answers.step_errors import interval
from pipeline.arrays import Array
from pipeline.prediction import Prediction
from pipeline.readable import html_rows, in_ms, milliseconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_HEAD = 16
"""Longest name of a step, in characters, that is the head of a column."""


@dataclass(frozen=True)
class Change:
    """Time of a part of the step in A and in B, µs, and p10 and p90 of the difference; None where it cannot be drawn."""

    name: str
    a_us: float
    b_us: float
    p10_us: float | None = None
    p90_us: float | None = None

    @property
    def us(self) -> float:
        """How much longer it takes in B."""
        return self.b_us - self.a_us

    @property
    def label(self) -> str:
        """The name in words."""
        return self.name.replace("conv2d_", "convolution, ").replace("_", " ")


@dataclass(frozen=True, repr=False)
class Difference:
    """What makes step B faster or slower than step A."""

    a: Prediction
    b: Prediction
    step: Change
    parts: tuple[Change, ...]
    """Kernel families, exposed communication, overlap and idle time, largest change first; their changes add up to that of
    the step."""
    calls: tuple[CallChange, ...]
    """The calls that changed most, largest first."""
    notes: tuple[str, ...]
    """What to know about the numbers, one sentence each."""
    on_one_host: Change | None = None
    """The step's change on the host of A, where two GPUs have different hosts."""
    host: Change | None = None
    """The rest of it, one of the parts: what the own host of B changes."""

    @property
    def names(self) -> tuple[str, str]:
        """The two steps, each by what the other does not have."""
        return _names(self.a, self.b)

    @property
    def shared(self) -> str:
        """What both steps have."""
        of_b, hosts = _words(self.b), {self.a.host, self.b.host} - {""}
        host = [f"host {host}" for host in hosts if len(hosts) == 1]
        return ", ".join([*(word for word in _words(self.a) if word in of_b), *host])

    @property
    def heads(self) -> tuple[str, str]:
        """Heads of columns: the names, or A and B where these are long."""
        return self.names if max(map(len, self.names)) <= LONGEST_HEAD else ("A", "B")

    @property
    def sentence(self) -> str:
        """What B saves or adds, and the parts with the largest share in it."""
        with_trace = bool(self.a.traced) != bool(self.b.traced)
        a, b = (f"The {name}" for name in self.names) if with_trace else self.names
        changed, ends = self.on_one_host or self.step, ""
        if self.host is not None:
            b = f"On host {self.a.host}, {b}"
            ends = f"; its {self.host.name}: {percent_of(self.host.us, self.a)}"
        share = 100 * changed.us / self.a.predicted_us
        if abs(share) < 0.05:
            waits = (
                f": both wait for the host until {milliseconds(self.a.predicted_us)}"
                if self.a.bound == self.b.bound == "host"
                else ""
            )
            return f"{b} takes as long as {a}{waits}{ends}"
        low, high, shorter = changed.p10_us, changed.p90_us, share < 0
        unsure = low is not None and high is not None and low < 0 < high
        much = f"{abs(share):.{0 if abs(share) >= 1 else 1}f} %"
        if with_trace:
            verb = "may be" if unsure else "is"
            what = f"{verb} {much} {'shorter' if shorter else 'longer'}"
        else:
            verb, of = ("save", "of") if shorter else ("add", "to")
            what = f"may {verb}" if unsure else f"{verb}s"
            what += f" {much} {of} the step"
        if parts := [f"{name} {value:.0f} %" for name, value in self._percents(shorter)[:2]]:
            what += f": {', '.join(parts)}"
        return f"{b} {what}{ends}"

    def _percents(self, saved: bool) -> list[tuple[str, float]]:
        """Percent of step A by part, of one or more in the direction of the step; convolutions are one part."""
        percents: dict[str, float] = {}
        percent = (-100 if saved else 100) / self.a.predicted_us
        for part in (part for part in self.parts if part is not self.host):
            name = "convolutions" if part.name.startswith("conv2d") else part.label
            percents[name] = percents.get(name, 0.0) + percent * part.us
        large = ((name, value) for name, value in percents.items() if value >= 1)
        return sorted(large, key=lambda item: -item[1])

    def __repr__(self) -> str:
        return f"<Difference: {self.sentence} ({signed(self.step.us)} ms)>"

    def _repr_html_(self) -> str:
        return html_rows(f"{self.sentence}. A: {self.a}. B: {self.b}", self.rows())

    def plot(self) -> Figure:
        """A waterfall from step A to step B, and the calls that changed most."""
        figure: Figure = plotter.draw_difference(self)
        return figure

    def rows(self) -> list[dict[str, str]]:
        """A row of text per part, then that of the step; times in ms."""
        a, b = self.heads
        return [
            {
                "part": change.label,
                f"{a}\nms": signed(change.a_us).lstrip("+"),
                f"{b}\nms": signed(change.b_us).lstrip("+"),
                "change\nms": signed(change.us),
                "of the\nstep": percent_of(change.us, self.a),
                "p10 to p90\nms": (
                    ""
                    if change.p10_us is None or change.p90_us is None
                    else f"{signed(change.p10_us)} to {signed(change.p90_us)}"
                ),
            }
            for change in (*self.parts, self.step)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""

        def plain(change: Change | CallChange) -> dict[str, Any]:
            return asdict(change) | {
                "change_us": change.us,
                "share_of_a": change.us / self.a.predicted_us,
            }

        return {
            "sentence": self.sentence,
            "a": self.a.as_dict(),
            "b": self.b.as_dict(),
            "step": plain(self.step),
            "parts": [plain(part) for part in self.parts],
            "calls": [plain(call) for call in self.calls],
            "notes": list(self.notes),
        }


def percent_of(us: float, a: Prediction) -> str:
    """A change as percent of step A, with its sign."""
    share = 100 * us / a.predicted_us
    if abs(share) < 0.05:
        return "0 %"
    return f"{share:+.{1 if abs(share) < 10 else 0}f} %".replace("-", "−")


def signed(us: float) -> str:
    """A change in ms, with its sign and three digits."""
    return f"{'−' if us < 0 else '+'}{in_ms(abs(us))}" if abs(us) >= 0.5 else "0"


def difference(a: Prediction, b: Prediction) -> Difference:
    """What makes step B faster or slower than step A.

    Steps on one GPU share the errors of its models: their draws are paired. Those of two GPUs are drawn independently.
    Where their hosts differ, their parts are those on the host of A, and what the own host of B changes is a part of its own.
    A trace on its own GPU is measured: it has no errors. Steps that cannot be drawn (those of a table, of a comparison, or of a
    trace on another GPU) have no intervals, and those without calls no list of them.
    """
    moved = _on_host_of(a, b)
    steps = (a, moved or b, b)
    parts = [_parts(p, bool(a.traced or b.traced)) for p in steps]
    drawn = [len(part[IDLE]) for part in parts]
    size = 1 if 1 in drawn else min((each for each in drawn if each > 2), default=2)
    of_a, of_b, own = ({name: np.resize(us, size) for name, us in each.items()} for each in parts)
    step_a, alike_b, step_b = (
        np.append(p.predicted_us, np.sum(list(each.values()), axis=0)[1:])
        for p, each in zip(steps, (of_a, of_b, own), strict=True)
    )
    none = np.zeros(size)
    changes = [
        _change(name, of_a.get(name, none), of_b.get(name, none))
        for name in dict.fromkeys([*of_a, *of_b])
        if name != OVERLAP or max(abs(of_a[name][0]), abs(of_b[name][0])) > NOTHING_US
    ]
    alike = host = None
    if moved is not None:
        alike = _change("step on one host", step_a, alike_b)
        host = _change(f"host {b.host}", none, step_b - alike_b)
        changes.append(host)
    changes.sort(key=lambda part: -abs(part.us))
    step, notes = _change("step", step_a, step_b), tuple(_notes(a, b, moved, step_b / step_a - 1))
    return Difference(a, b, step, tuple(changes), tuple(call_changes(a, b)), notes, alike, host)


def _on_host_of(a: Prediction, b: Prediction) -> Prediction | None:
    """Step B on the host of A; None for steps of one GPU, or where it takes as long as on its own."""
    if b.on_host is None or a.gpu == b.gpu or a.host == b.host:
        return None
    moved = b.on_host(a.host)
    changes = moved is not None and abs(moved.predicted_us / b.predicted_us - 1) >= 0.0005
    return moved if changes else None


def _parts(p: Prediction, traced: bool) -> dict[str, Array]:
    """Parts of a step: as predicted, then in each draw. A measured step is the same in one draw; others may have none.

    The two gradients of a convolution are one where a step is traced: names of kernels do not tell them apart.
    """
    families = {name: np.asarray(us) for name, us in p.families_us.items()}
    exposed = None if p.several is None else np.asarray(p.several.exposed_communication_us)
    middle = parts_of_step(families, np.asarray(p.predicted_us), np.asarray(p.active_us), exposed)
    drawn = middle if _measured(p) else {}
    drawn = drawn if p.drawn is None else p.drawn.parts()
    parts = {name: np.append(us, drawn.get(name, ())) for name, us in middle.items()}
    gradients = [parts.pop(name) for name in GRADIENTS if traced and name in parts]
    return parts | ({GRADIENT: np.sum(gradients, axis=0)} if gradients else {})


def _measured(p: Prediction) -> bool:
    return p.traced is not None and p.measured_us is not None


def _change(name: str, of_a: Array, of_b: Array) -> Change:
    """From the time in each step: as predicted, then in each draw."""
    us = of_b - of_a
    low, high = interval(us[1:], us[0]) if len(us) > 1 else (None, None)
    return Change(name, float(of_a[0]), float(of_b[0]), low, high)


def _words(p: Prediction) -> list[str]:
    batch = [] if p.traced and p.batch_size == 1 else [f"batch {p.batch_size}"]
    return [p.model, p.gpu, *batch, *p.options]


def _names(a: Prediction, b: Prediction) -> tuple[str, str]:
    if bool(a.traced) != bool(b.traced):
        first, second = (
            f"{p.gpu} {kind}" if a.gpu != b.gpu else kind
            for p, kind in ((p, "trace" if p.traced else "prediction") for p in (a, b))
        )
        return first, second
    of_a, of_b = _words(a), _words(b)
    first = " ".join(word for word in of_a if word not in of_b)
    second = " ".join(word for word in of_b if word not in of_a)
    if not first and not second:
        return "A", "B"
    return first or f"without {second}", second or f"without {first}"


def _notes(a: Prediction, b: Prediction, moved: Prediction | None, share: Array) -> Iterator[str]:
    if moved is not None:
        yield (
            f"hosts differ: {a.host} ({a.gpu}), {b.host} ({b.gpu}); with {a.host}, {b.gpu} takes"
            f" {milliseconds(moved.predicted_us)} instead of {milliseconds(b.predicted_us)}"
        )
    if a.global_batch != b.global_batch:
        change = 100 * (a.samples_per_s / b.samples_per_s - 1)
        yield (
            f"{a.global_batch:,} and {b.global_batch:,} samples: "
            f"time per sample {change:+.1f} %".replace("-", "−")
        )
    if len(share) == 1:
        yield "no intervals: one of the steps cannot be drawn again"
    else:
        low, high = interval(share[1:], share[0])
        text = f"the step changes by {share[0]:+.1%} ({low:+.1%} to {high:+.1%})"
        yield text.replace("-", "−").replace("%", " %")
        if _measured(a) or _measured(b):
            yield (
                "the trace is measured, with the profiler's cost; intervals are those of the"
                " prediction"
            )
        elif a.gpu != b.gpu:
            hosts = ", and of two hosts," if a.host != b.host else ""
            yield f"intervals: errors of two GPUs' kernel models{hosts} are independent"
        else:
            yield "intervals: from paired draws, errors that both steps share cancel"
    if bool(a.traced) != bool(b.traced) and (a.several or b.several):
        yield (
            "collectives of the trace count whole, those of the prediction where nothing hides them"
        )
    yield from (f"{p.title} does not fit the GPU's memory" for p in (a, b) if not p.fits)
    yield from dict.fromkeys([*a.warnings, *b.warnings])
