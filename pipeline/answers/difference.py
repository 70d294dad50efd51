"""The difference of two answers: what makes step B faster or slower than step A, by parts that add up, and by calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline import plotter
from pipeline.answers.part_draws import OVERLAP, parts_of_step
from pipeline.kernels.features import WINDOW_DEFAULTS
from pipeline.prediction import Prediction
from pipeline.readable import gibibytes, html_table, in_ms
from pipeline.schemas import DIMS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CALLS = 10
"""Number of calls that a difference lists."""

SHORT = {
    "in_channels": "in", "out_channels": "out", "kernel_size": "k", "kernel_size_w": "kw",
    "input_size": "size", "input_size_w": "size_w",
}  # fmt: skip
"""Names of sizes that are shorter than their columns."""

HELPERS = ("trans_a", "trans_b", "inputs", "outputs")
"""Columns of sizes that say how operands lie or how many there are."""

GRADIENTS, GRADIENT = ("conv2d_backward_data", "conv2d_backward_weight"), "conv2d_backward"
"""Families of the two gradients of a convolution, and the name of both together."""

LONGEST_HEAD = 16
"""Longest name of a step, in characters, that is the head of a column."""

SHARE = "share of the step"
"""Name of the drawn change of the step as a share of A."""

NOTHING_US = 1e-3
"""Largest change of a part, µs, that is rounding."""

Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True)
class CallChange:
    """Time in A and in B, µs, of all calls of one operator, kernel family and, where both steps have one graph, sizes."""

    operator: str
    family: str
    sizes: str
    calls: int
    a_us: float
    b_us: float

    @property
    def us(self) -> float:
        """How much longer they take in B."""
        return self.b_us - self.a_us

    @property
    def label(self) -> str:
        """Number of calls, operator and sizes, in words."""
        operator = self.operator.split(": ")[-1].removeprefix("aten::")
        if operator.endswith("Backward0"):
            what = self.family.partition("_backward_")[2]
            operator = f"{operator.removesuffix('Backward0')} backward {what}".rstrip()
        count = f"{self.calls} × " if self.calls > 1 else ""
        sized = self.sizes or f"({self.family})" * (operator != self.family)
        return f"{count}{operator} {sized}".rstrip()


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

    @property
    def names(self) -> tuple[str, str]:
        """The two steps, each by what the other does not have."""
        return _names(self.a, self.b)

    @property
    def shared(self) -> str:
        """What both steps have."""
        of_b = _words(self.b)
        return ", ".join(word for word in _words(self.a) if word in of_b)

    @property
    def heads(self) -> tuple[str, str]:
        """Heads of columns: the names, or A and B where these are long."""
        return self.names if max(map(len, self.names)) <= LONGEST_HEAD else ("A", "B")

    @property
    def sentence(self) -> str:
        """What B saves or adds, and the parts with the largest share in it."""
        told = bool(self.a.traced) != bool(self.b.traced)
        a, b = (f"The {name}" for name in self.names) if told else self.names
        share = 100 * self.step.us / self.a.predicted_us
        if abs(share) < 0.05:
            return f"{b} takes as long as {a}"
        low, high = self.step.p10_us, self.step.p90_us
        may = " may" if low is not None and high is not None and low < 0 < high else ""
        largest = sorted(self._points(share < 0).items(), key=lambda item: -item[1])[:2]
        why = ", ".join(
            f"{name} {points:.0f}{' points' if at == 0 else ''}"
            for at, (name, points) in enumerate(largest)
        )
        much = f"{abs(share):.{0 if abs(share) >= 1 else 1}f} %"
        if told:
            what = f"{'may be' if may else 'is'} {much} {'shorter' if share < 0 else 'longer'}"
        else:
            what = ("save" if share < 0 else "add") + ("" if may else "s")
            what = f"{may} {what} {much} {'of' if share < 0 else 'to'} the step".strip()
        return f"{b} {what}{': ' if why else ''}{why}"

    def _points(self, saved: bool) -> dict[str, float]:
        """Percent of step A by part, of one point or more in the direction of the step; convolutions are one part."""
        points: dict[str, float] = {}
        for part in self.parts:
            name = "convolutions" if part.name.startswith("conv2d") else part.label
            points[name] = (
                points.get(name, 0.0) + (-1 if saved else 1) * 100 * part.us / self.a.predicted_us
            )
        return {name: value for name, value in points.items() if value >= 1}

    def __repr__(self) -> str:
        return f"<Difference: {self.sentence} ({signed(self.step.us)} ms)>"

    def _repr_html_(self) -> str:
        rows = [list(row.values()) for row in self.rows()]
        return html_table(f"{self.sentence}. A: {self.a}. B: {self.b}", rows, list(self.rows()[0]))

    def plot(self) -> Figure:
        """A waterfall from step A to step B, and the calls that changed most."""
        figure: Figure = plotter.call("draw_difference", self)
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
    A trace on its own GPU is measured: it has no errors. Steps that cannot be drawn (those of a table, of a comparison, or of a
    trace on another GPU) have no intervals, and those without calls no list of them.
    """
    of_a, of_b = (_told_apart(_parts(p), a, b) for p in (a, b))
    drawn = _drawn_changes(a, b)
    names = [
        name
        for name in dict.fromkeys([*of_a, *of_b])
        if name != OVERLAP or max(abs(of_a[name]), abs(of_b[name])) > NOTHING_US
    ]
    parts = [_change(name, of_a.get(name, 0.0), of_b.get(name, 0.0), drawn) for name in names]
    step = _change("step", a.predicted_us, b.predicted_us, drawn)
    parts.sort(key=lambda part: -abs(part.us))
    return Difference(
        a, b, step, tuple(parts), tuple(_calls(a, b)), tuple(_notes(a, b, drawn.get(SHARE)))
    )


def _parts(p: Prediction) -> dict[str, float]:
    families = {name: np.asarray(us) for name, us in p.families_us.items()}
    exposed = None if p.several is None else np.asarray(p.several.exposed_communication_us)
    parts = parts_of_step(families, np.asarray(p.predicted_us), np.asarray(p.active_us), exposed)
    return {name: float(us) for name, us in parts.items()}


def _told_apart(parts: Mapping[str, Any], a: Prediction, b: Prediction) -> dict[str, Any]:
    """Parts with the two gradients of a convolution as one where a step is traced: names of kernels do not tell them apart."""
    merged = dict(parts)
    gradients = [
        merged.pop(name) for name in GRADIENTS if name in merged and (a.traced or b.traced)
    ]
    return merged | ({GRADIENT: sum(gradients)} if gradients else {})


def _draws(p: Prediction, more: int) -> Mapping[str, Floats] | None:
    """Each part in each draw; that of a measured step is always the same. None for a step that cannot be drawn."""
    if p.drawn is not None:
        return p.drawn.parts(more)
    return {name: np.array([us]) for name, us in _parts(p).items()} if _measured(p) else None


def _measured(p: Prediction) -> bool:
    return p.traced is not None and p.measured_us is not None


def _drawn_changes(a: Prediction, b: Prediction) -> Mapping[str, Floats]:
    """Change of each part, of the step and of its share of A in each draw; nothing where one of the steps cannot be drawn."""
    gpus = sorted({a.gpu, b.gpu})
    drawn = [_draws(p, gpus.index(p.gpu)) for p in (a, b)]
    of_a, of_b = (_told_apart(parts, a, b) if parts else {} for parts in drawn)
    if not of_a or not of_b:
        return {}
    none = np.zeros(
        min(
            [size for parts in (of_a, of_b) if (size := len(next(iter(parts.values())))) > 1],
            default=1,
        )
    )
    changes = {
        name: none + of_b.get(name, none)[: len(none)] - of_a.get(name, none)[: len(none)]
        for name in dict.fromkeys([*of_a, *of_b])
    }
    step = np.sum(list(changes.values()), axis=0)
    return changes | {"step": step, SHARE: step / sum(us[: len(none)] for us in of_a.values())}


def _change(name: str, a_us: float, b_us: float, drawn: Mapping[str, Floats]) -> Change:
    if name not in drawn:
        return Change(name, a_us, b_us)
    low, high = np.percentile(drawn[name], [10, 90])
    return Change(name, a_us, b_us, float(min(low, b_us - a_us)), float(max(high, b_us - a_us)))


def _calls(a: Prediction, b: Prediction) -> Iterator[CallChange]:
    """The calls that changed most.

    Where both steps have one graph, the calls of an operator are pairs, in their order by family, and are listed by the
    sizes of A. A traced step has no such graph: operators of one name and family are pairs in their order where both steps have
    as many. Else only sums by operator and family can be compared.
    """
    if a.calls is None or b.calls is None:
        return
    nodes = [
        p.calls[["node_id", "name"]].drop_duplicates().to_numpy().tolist()
        for p in (a, b)
        if p.calls is not None
    ]
    same = nodes[0] == nodes[1]
    keys = ["node_id", "name", "family", "nth"] if same else ["name", "family"]
    if a.traced or b.traced:
        keys, same = ["name", "family", "nth"], True
        left, right = _in_pairs(*(_by_operator(p) for p in (a, b)))
    else:
        left, right = (_device_rows(p, keys) for p in (a, b))
    both = left.merge(right, on=keys, how="outer", suffixes=("_a", "_b"))
    both["sizes"] = (
        both["sizes_a"].where(both["sizes_a"].fillna("") != "", both["sizes_b"]).fillna("")
        if same
        else ""
    )
    times = both.fillna({"us_a": 0.0, "us_b": 0.0, "calls_a": 0, "calls_b": 0})
    times["calls"] = times[["calls_a", "calls_b"]].max(axis=1)
    sums = (
        times.groupby(["name", "family", "sizes"], sort=False)[["us_a", "us_b", "calls"]]
        .sum()
        .reset_index()
    )
    change = (sums["us_b"] - sums["us_a"]).abs()
    order = (
        change[change > NOTHING_US].sort_values(ascending=False, kind="stable").index[:MOST_CALLS]
    )
    for operator, family, sizes, a_us, b_us, count in sums.loc[order].to_numpy(object).tolist():
        yield CallChange(operator, family, sizes, int(count), a_us, b_us)


def _device_rows(p: Prediction, keys: list[str]) -> pd.DataFrame:
    """Device calls of a prediction by these keys, with time, number and sizes of the first."""
    assert p.calls is not None
    rows = p.calls[p.calls["kernel_us"].notna() & p.calls["device_end_us"].notna()]
    sizes = _sizes(p.drawn.calls) if p.drawn is not None else None
    at = rows["call"].to_numpy(np.int64)
    table = rows[["node_id", "name", "family"]].assign(
        us=rows["kernel_us"].to_numpy(float),
        sizes=[sizes[call] if sizes else "" for call in at.tolist()],
        calls=1,
    )
    table["nth"] = table.groupby(["node_id", "family"]).cumcount()
    return (
        table.groupby(keys, sort=False)
        .agg({"us": "sum", "sizes": "first", "calls": "sum"})
        .reset_index()
    )


def _by_operator(p: Prediction) -> pd.DataFrame:
    """Device time by operator and family, in the order of the step."""
    rows = _device_rows(p, ["node_id", "name", "family"]).replace(
        {"family": dict.fromkeys(GRADIENTS, GRADIENT)}
    )
    keys = ["node_id", "name", "family"]
    table = (
        rows.groupby(keys, sort=False)
        .agg({"us": "sum", "sizes": "first", "calls": "first"})
        .reset_index()
    )
    return table.assign(calls=1).drop(columns="node_id")


def _in_pairs(left: pd.DataFrame, right: pd.DataFrame) -> list[pd.DataFrame]:
    """Tables of `_by_operator`; operators of which the two steps have different numbers are summed up.

    Operators that only one of the steps has, because versions of PyTorch name them differently, have the name of their family.
    """
    both = set(left["name"]) & set(right["name"])
    left, right = (
        table.assign(name=table["name"].where(table["name"].isin(both), table["family"]))
        for table in (left, right)
    )
    left, right = (
        table.assign(nth=table.groupby(["name", "family"]).cumcount()) for table in (left, right)
    )
    counts = pd.concat(
        [table.groupby(["name", "family"]).size() for table in (left, right)], axis=1
    )
    unequal = counts[counts[0] != counts[1]].index
    summed = []
    for table in (left, right):
        alone = pd.MultiIndex.from_frame(table[["name", "family"]]).isin(unequal)
        rows = table.assign(
            nth=table["nth"].where(~alone, 0), sizes=table["sizes"].where(~alone, "")
        )
        keys = ["name", "family", "nth"]
        summed.append(
            rows.groupby(keys, sort=False)
            .agg({"us": "sum", "sizes": "first", "calls": "sum"})
            .reset_index()
        )
    return summed


def _sizes(calls: pd.DataFrame) -> list[str]:
    """Sizes of each call as short text, without usual values."""
    texts: list[list[str]] = [[] for _ in range(len(calls))]
    for name in (name for name in DIMS if name in calls and name not in HELPERS):
        usual = WINDOW_DEFAULTS.get(name.removesuffix("_w"))
        for text, value in zip(
            texts, calls[name].to_numpy(np.float64, na_value=np.nan).tolist(), strict=True
        ):
            if value == value and value != usual:
                text.append(
                    gibibytes(value) if name == "bytes" else f"{SHORT.get(name, name)}={value:.0f}"
                )
    return [" ".join(text) for text in texts]


def _words(p: Prediction) -> list[str]:
    options = [text.removeprefix("+").removeprefix("model.") for text in p.overrides]
    batch = [] if p.traced and p.batch_size == 1 else [f"batch {p.batch_size}"]
    return [p.model, p.gpu, *batch, *options]


def _names(a: Prediction, b: Prediction) -> tuple[str, str]:
    if bool(a.traced) != bool(b.traced):
        first, second = (f"{p.gpu} " if a.gpu != b.gpu else "" for p in (a, b))
        return (
            f"{first}{'trace' if a.traced else 'prediction'}",
            f"{second}{'trace' if b.traced else 'prediction'}",
        )
    words = _words(a), _words(b)
    first, second = (
        " ".join(word for word in words[at] if word not in words[1 - at]) for at in range(2)
    )
    if not first and not second:
        return "A", "B"
    return first or f"without {second}", second or f"without {first}"


def _notes(a: Prediction, b: Prediction, drawn_share: Floats | None) -> Iterator[str]:
    if a.global_batch != b.global_batch:
        change = 100 * (a.samples_per_s / b.samples_per_s - 1)
        yield (
            f"{a.global_batch:,} and {b.global_batch:,} samples: "
            f"time per sample {change:+.1f} %".replace("-", "−")
        )
    if drawn_share is None:
        yield "no intervals: one of the steps cannot be drawn again"
    else:
        share = b.predicted_us / a.predicted_us - 1
        low, high = np.percentile(drawn_share, [10, 90])
        text = (
            f"the step changes by {share:+.1%} ({min(low, share):+.1%} to {max(high, share):+.1%})"
        )
        yield text.replace("-", "−").replace("%", " %")
        if _measured(a) or _measured(b):
            yield (
                "the trace is measured, with the profiler's cost; intervals are those of the"
                " prediction"
            )
        elif a.gpu != b.gpu:
            yield "intervals: the errors of the two GPUs' kernel models are drawn independently"
        else:
            yield "intervals: from paired draws, errors that both steps share cancel"
    if bool(a.traced) != bool(b.traced) and (a.several or b.several):
        yield (
            "collectives of the trace count whole, those of the prediction where nothing hides them"
        )
    yield from (f"{p.title} does not fit the GPU's memory" for p in (a, b) if not p.fits)
    yield from dict.fromkeys([*a.warnings, *b.warnings])
