"""Several predictions side by side: `compare(gpu="V100,T4", model="resnet50", batch_size="32,64")`, its table, and its file.

In the table, what all rows share is above it, and what it leaves out is below it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from pipeline.answers.engine import Answer, Engine, engine
from pipeline.answers.engine import in_order as answers_in_order
from pipeline.answers.host_share import OneHost, hosts_differ, on_one_host
from pipeline.answers.predict import grid_table, warn_of
from pipeline.answers.ties import PER_PRICE, THROUGHPUT, Tie, grid_ties
from pipeline.paths import check_file
from pipeline.prediction import ASKED, Prediction
from pipeline.prices import Price, one_currency, price_notes
from pipeline.question.question import LOCAL_GPU, Names, Question
from pipeline.readable import (
    MOST_CARDS,
    compact,
    distinct,
    html_table,
    in_gib,
    in_ms,
    prefix_of,
    rate,
    three_digits,
)
from pipeline.show.brief import brief
from pipeline.show.comparison_columns import (
    DEFAULT,
    Rows,
    energy_cells,
    exchange_cells,
    heading_of,
    left_out_first,
    notes_of,
    own_options,
    settings_of,
    shared_options,
    work_cells,
)
from pipeline.show.explore_page import page_points, write_page
from pipeline.show.figures.python_plots import draw_steps
from pipeline.show.sentences import grid_title
from pipeline.show.tables import Catalogue, console, interval, show_one, show_paths
from pipeline.workloads.user_steps import USUAL_MODEL, questions_about

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = {"step": "step ms", "measured": "measured ms", "exposed": "exposed ms", "memory": "mem GiB"}
"""Heads of columns with a unit."""

ON_ONE_HOST = "on one host"
"""Column of the step time on one host."""

MEMORY_MARKS = {"fits": "", "tight": " !", "does not fit": " ✗"}

WORDS = ("GPU", "model", "options", "host", "bound", "how sure")
"""Columns of text, which are aligned to the left."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Predictions side by side, in the widest layout that fits the terminal; the best of each model is marked."""

    predictions: Sequence[Prediction]
    largest: Mapping[str, int | None] = field(default_factory=dict)
    unpredicted: Sequence[Answer] = ()
    one_host: OneHost = field(default_factory=OneHost)
    """The steps on one host, where their usual ones differ: stars, ties and titles compare these."""
    ties: Mapping[tuple[str, str], Tie] = field(default_factory=dict)
    """By model and what is compared (`THROUGHPUT` or `PER_PRICE`): points of which none is surely the best."""
    usable_bytes: Sequence[int] = ()
    """Memory of each prediction's GPU that PyTorch can use."""
    arranged: bool = False
    """Whether the predictions are in an order that was asked for."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row per point, in the columns of `predict_grid`."""
        rows = [p.as_dict() | {"unpredicted": None} for p in self.predictions]
        return grid_table([*rows, *(answer.as_row() for answer in self.unpredicted)])

    @property
    def best(self) -> dict[str, Prediction]:
        """By model: the prediction with the most samples per second, of those that fit the GPU's memory; see also `ties`."""
        best: dict[str, Prediction] = {}
        fitting = (p for p in self.predictions if p.fits)
        for p in sorted(fitting, key=lambda p: -self.one_host.of(p).samples_per_s):
            best.setdefault(p.model, p)
        return best

    def __repr__(self) -> str:
        ties = {
            model: f"a tie: {tie}" for (model, what), tie in self.ties.items() if what == THROUGHPUT
        }
        best = {model: f"{p.gpu} at batch {p.batch_size}" for model, p in self.best.items()} | ties
        named = ", ".join(f"{model}: {text}" for model, text in best.items()) or "none fits"
        return (
            f"<Comparison of {len(self.predictions)} predictions; most samples per second: {named}>"
        )

    def __str__(self) -> str:
        """The table with its notes, as `steptime compare` prints it into a pipe."""
        text = io.StringIO()
        Console(file=text, width=console().width, markup=False, emoji=False).print(self, crop=False)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    def plot(self) -> Figure:
        """The predicted steps with their intervals, as bars; how they scale where their numbers of GPUs differ."""
        return draw_steps(self.predictions, self.alike)

    def write_page(self, path: str | Path) -> None:
        """Write a page to play with, in one file: toggles, sliders, and the user's work; it has other speeds of the hosts, too.

        Raises:
            InputError: the file cannot be written.
        """
        check_file(Path(path), "--page", ("html",))
        points = page_points(self.predictions, self.usable_bytes, self.one_host.at_speeds())
        notes = [text.plain for text in self.notes(("host",))]
        said = brief(self.alike, self.predictions, self.usable_bytes), notes
        write_page(Path(path), points, grid_title(self.predictions), *said)

    @property
    def alike(self) -> list[Prediction]:
        """The predictions on one host."""
        return [self.one_host.of(p) for p in self.predictions]

    @property
    def rows(self) -> Rows:
        """The rows of the table: of more than `MOST_CARDS` GPUs, those of a model with most samples per second first."""
        points = list(self.predictions)
        if not self.arranged and len({p.gpu for p in points}) > MOST_CARDS:
            models = distinct(p.model for p in points)
            points.sort(key=lambda p: (models.index(p.model), -p.samples_per_s))
        return [*points, *self.unpredicted]

    @cached_property
    def prices(self) -> dict[str, Price]:
        """The prices of the GPUs; the table has a column of samples per price if any GPU has one."""
        return {p.gpu: p.price for p in self.predictions if p.price is not None}

    @cached_property
    def _currency(self) -> str:
        return one_currency(self.prices.values())

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        heading, heads, cells = self.cells(rows := self.rows)
        if heading:
            yield Text(heading, style="bold")
        left_out = left_out_first(self._several)
        table = Catalogue(
            [dict(zip(heads, row, strict=True)) for row in cells],
            optional=list(map(self._header, left_out)),
            folded=("options",),
            right=[head for head in heads if head not in WORDS],
            bold=[at for at, p in enumerate(rows) if isinstance(p, Prediction) and self._is_top(p)],
        )
        yield table
        yield from self.notes(table.hidden(options.max_width))

    def _repr_html_(self) -> str:
        heading, heads, cells = self.cells(self.rows)
        notes = ". ".join([heading, *(text.plain.rstrip(".") for text in self.notes(()))])
        return html_table(notes, cells, heads)

    def cells(self, rows: Rows) -> tuple[str, list[str], list[list[str]]]:
        """What all rows share, and heads and rows of the whole table, as text."""
        shared = shared_options(rows)
        cells = [self._cells(row, shared) for row in rows]
        named = ("GPU", "GPUs", "model", "batch", "host")
        same = [name for name in named if len({row.get(name, "") for row in cells} - {""}) <= 1]
        same += ["options"] * all(row["options"] == DEFAULT for row in cells)
        filled = [name for name in dict.fromkeys(chain(*cells)) if any(r.get(name) for r in cells)]
        names = [name for name in filled if name not in same]
        heads = [self._header(name) for name in names]
        texts = [[row.get(name, "") for name in names] for row in cells]
        return heading_of(cells[0], same, shared), heads, texts

    def notes(self, left_out: Sequence[str]) -> Iterator[Text]:
        """The lines below the table."""
        stars = ["most samples per second"] if any(map(self._is_top, self.predictions)) else []
        priced = self.prices and self._header(PER_PRICE) not in left_out
        money = priced and any(self._is_top(p, PER_PRICE) for p in self.predictions)
        stars += [f"per {self._currency}"] if money else []
        every = self.predictions
        alike = f", on {self.one_host.name}" if self._moved else ""
        signs = {
            f"★ {' or '.join(stars)} of the model{alike}": stars,
            "! less than a tenth of the usable memory is left": any(p.tight for p in every),
            "✗ more than the GPU's memory": not all(p.fits for p in every),
            "≥ at least: some operators have no model": any(p.lower_bound for p in every),
        }
        if any(signs.values()):
            yield Text(", ".join(sign for sign, shown in signs.items() if shown), style="dim")
        for (model, what), tie in self.ties.items():
            if what == THROUGHPUT or priced:
                many = len(tie.predictions)
                named = f"{many} points; {tie.reason}" if many > MOST_CARDS else str(tie)
                yield Text(f"≈ {model}: a tie in {self._header(what)}: {named}", style="dim")
        paid = max((p.power.electricity for p in self.predictions if p.power), default=0.0)
        for text in price_notes(self.prices, [p.gpu for p in self.predictions], paid):
            yield Text(text, style="dim")
        hosts = ["host"] * ("host" in left_out and not self.one_host.note)
        for text in (*settings_of(every, [*hosts, *ASKED]), *notes_of(every)):
            yield Text(text, style="dim")
        if self.one_host.note:
            yield Text(self.one_host.note, style="dim")
        if self._several and "exposed ms" not in left_out:
            yield Text("exposed: communication while nothing else runs on a GPU", style="dim")
        for text in dict.fromkeys(text for p in self.predictions for text in p.warnings):
            warned = [p for p in self.predictions if text in p.warnings]
            of = "" if len(warned) == len(self.predictions) else f" for {self._points(warned)}"
            yield Text(f"warning{of}: {text}", style="yellow")
        for reason in distinct(row.reason for row in self.unpredicted):
            missing = [row for row in self.unpredicted if row.reason == reason]
            yield Text(f"no prediction for {self._points(missing)}: {reason}", style="red")

    def _points(self, named: Rows) -> str:
        """Rows as a note names them: the GPU and the batch size, after the model and the options where these differ."""
        shared, models = shared_options(self.rows), {row.model for row in self.rows}
        texts = []
        for row in named:
            model = f"{row.model} on " if len(models) > 1 else ""
            options = own_options(row, shared)
            given = "" if options == DEFAULT else f" ({options})"
            texts.append(f"{model}{row.gpu} batch {row.batch_size}{given}")
        return ", ".join(dict.fromkeys(texts))

    def _header(self, name: str) -> str:
        """The head of a column with its unit; that of samples per price names the currency."""
        if name == PER_PRICE:
            return f"{self._prefix[0]} samples/{self._currency}".strip()
        if name == ON_ONE_HOST:
            return f"ms on {self.one_host.name}"
        return HEADS.get(name, name.replace("cost", self._currency or "cost"))

    @cached_property
    def _prefix(self) -> tuple[str, float]:
        """The unit of samples per price: that of the largest."""
        return prefix_of(max((p.samples_per_price or 0.0 for p in self.predictions), default=0.0))

    def _cells(self, row: Prediction | Answer, shared: Sequence[str]) -> dict[str, str]:
        named = {"GPU": row.gpu, "model": row.model}
        options, batch = own_options(row, shared), str(row.batch_size)
        if self._several:
            devices = row.devices if isinstance(row, Prediction) else row.question.devices
            words = [word for word in options.split(" ") if not word.startswith("devices=")]
            options, batch = " ".join(words) or DEFAULT, f"{batch} each"
            named |= {"GPUs": str(devices)}
        named |= {"options": options, "batch": batch}
        if isinstance(row, Answer):
            return named | {"host": "", "step": "none", "p10-p90 ms": "", "bound": ""}
        p = row
        samples = p.samples_per_price
        return named | {
            "host": p.host,
            "step": p.step_ms,
            "p10-p90 ms": interval(p.p10_us, p.p90_us),
            ON_ONE_HOST: self.one_host.of(p).step_ms if self._moved else "",
            "busy": f"{p.active_us / p.predicted_us:.0%}",
            "bound": p.bound,
            THROUGHPUT: f"{rate(p.samples_per_s)}{self._sign(p, THROUGHPUT)}",
            "tokens/s": compact(p.tokens_per_s) if p.tokens_per_s else "",
            **work_cells(p),
            **exchange_cells(p),
            **energy_cells(p, self.predictions),
            "memory": in_gib(p.memory_bytes) + MEMORY_MARKS[p.memory_state],
            "how sure": p.sureness,
            "max batch": self._largest_batch(p),
            PER_PRICE: (
                f"{samples / self._prefix[1]:.3g}{self._sign(p, PER_PRICE)}" if samples else ""
            ),
            "TFLOP/s": "" if p.tflop_per_s is None else three_digits(p.tflop_per_s),
            "MFU": "" if p.mfu is None else f"{p.mfu:.1%}",
            "measured": "" if p.error is None else f"{in_ms(p.measured_us or 0)} ({p.error:+.0%})",
        }

    @cached_property
    def _several(self) -> bool:
        return any(p.devices > 1 for p in self.predictions)

    def _largest_batch(self, p: Prediction) -> str:
        """The largest batch that fits; empty where nobody knows, as on this machine."""
        key = f"{p.gpu}/{p.model}/{p.variant}"
        if most := self.largest.get(key):
            return f"≈ {most:,}"
        return "" if p.gpu == LOCAL_GPU or key not in self.largest else "none"

    @cached_property
    def _moved(self) -> bool:
        """Whether a step takes another time on the one host, so that it has a column of its own."""
        return any(self.one_host.of(p).step_ms != p.step_ms for p in self.predictions)

    def _sign(self, p: Prediction, what: str) -> str:
        """The mark of a value: a star for the best, or that of a tie."""
        tie = self.ties.get((p.model, what))
        if tie is not None and self.one_host.of(p) in tie.predictions:
            return " ≈"
        return " ★" if self._is_top(p, what) else ""

    def _is_top(self, p: Prediction, what: str = THROUGHPUT) -> bool:
        one = self.one_host.of(p)
        value = one.samples_per_s if what == THROUGHPUT else one.samples_per_price
        return p.fits and value == self._tops.get((p.model, what), -1.0)

    @cached_property
    def _tops(self) -> dict[tuple[str, str], float]:
        """The largest value of each model, by what is compared, where it is surely the best of several on alike hosts that fit."""
        values: dict[tuple[str, str], list[float]] = {}
        differ = hosts_differ((p.gpu, p.host) for p in self.alike)
        for p in self.alike if len(self.alike) > 1 and not differ else ():
            for what, value in ((THROUGHPUT, p.samples_per_s), (PER_PRICE, p.samples_per_price)):
                if p.fits and value is not None and (p.model, what) not in self.ties:
                    values.setdefault((p.model, what), []).append(value)
        return {
            key: max(found)
            for key, found in values.items()
            if key[1] == THROUGHPUT or len(found) > 1
        }


def compare(gpu: Names = "V100", model: Any = USUAL_MODEL, **overrides: Any) -> Comparison:
    """Predict several points side by side, as `steptime compare` does.

    Args:
        gpu: names or aliases of GPUs, separated by commas, or a list of them.
        model: names of workloads, separated by commas, or your own model as for `predict`.
        overrides: any other override, as for `predict_grid`.

    Returns:
        The comparison: `table` (a DataFrame), `best` (a prediction per model), `plot()`; in a notebook it shows itself.

    Raises:
        SteptimeError: a name or value does not exist, or no point can be predicted.
    """
    answering = engine()
    with questions_about(gpu, model, overrides) as questions:
        comparison = compared(questions, answering.predict(questions), answering)
    warn_of(comparison.predictions)
    return comparison


def compared(
    questions: Sequence[Question], given: Iterable[Answer], answering: Engine
) -> Comparison:
    """The answers side by side, in the order of the questions, with a line on their hosts from the engine `answering`.

    Raises:
        SteptimeError: there is no prediction at all, or the price list is damaged.
    """
    ordered = answers_in_order(questions, given)
    predictions = [answer.prediction for answer in ordered if answer.prediction is not None]
    if not predictions:
        raise next(answer.error for answer in ordered if answer.error is not None)
    unpredicted = [answer for answer in ordered if answer.prediction is None]
    asked = [answer.question for answer in ordered if answer.prediction is not None]
    return replace(side_by_side(asked, predictions, answering), unpredicted=unpredicted)


def side_by_side(
    asked: Sequence[Question], predictions: Sequence[Prediction], answering: Engine
) -> Comparison:
    """Predictions with their prices, hosts and ties, in the order of their questions.

    Raises:
        SteptimeError: the price list is damaged.
    """
    one_currency(p.price for p in predictions)
    one_host = on_one_host(asked, predictions, answering)
    ties = grid_ties(asked, [one_host.of(p) for p in predictions])
    usable = [question.gpu.usable_memory_bytes for question in asked]
    return Comparison(predictions, one_host=one_host, ties=ties, usable_bytes=usable)


def show(predictions: Sequence[Prediction], paths: Mapping[str, str] | None = None) -> None:
    """Print one prediction in full or several as a table, and the paths of the artifacts."""
    if len(predictions) == 1:
        show_one(predictions[0], paths or {})
    else:
        console().print(Comparison(predictions), crop=False)
        show_paths(paths or {})
