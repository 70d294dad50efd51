"""Commands that set steps side by side: a table of many, and what makes one step faster than another."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from pipeline.answers.answer_files import write_answers
from pipeline.answers.difference import Difference, signed
from pipeline.answers.engine import STEPS, engine, in_order
from pipeline.answers.memory_fit import largest_batch
from pipeline.answers.tracker import load_trace
from pipeline.errors import InputError, SteptimeError
from pipeline.paths import check_file
from pipeline.prediction import Prediction
from pipeline.prices import no_price, price_of
from pipeline.question.question import Question, ask, expand
from pipeline.readable import distinct
from pipeline.show.comparison import Comparison, compared
from pipeline.show.comparison_columns import Order, best_first
from pipeline.show.figures.board import save_as
from pipeline.show.figures.waterfall import draw_difference
from pipeline.show.tables import Catalogue, console
from pipeline.terminal import (
    Csv,
    Epochs,
    Json,
    Overrides,
    Plot,
    Samples,
    Tokens,
    examples,
    printed,
    progress,
    split_results,
    work_of,
    working,
)
from pipeline.trace.linked_trace import UNNAMED

app = typer.Typer()


@app.command(
    epilog=examples(
        "compare gpu=V100,A100,T4 model=dlrm_default batch_size=512,2048",
        "compare 'gpu=glob(*)' model=bert_large --sort cost",
        "compare gpu=V100,H100 model=resnet50 --page out.html",
    )
)
def compare(
    overrides: Overrides = None,
    sort: Annotated[
        Order | None, typer.Option(help="order of the rows, best first (many GPUs: throughput)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="write all predictions to this parquet file as they are done, for large grids"
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            help="write a page to play with to this .html file: toggles, sliders, your own work"
        ),
    ] = None,
    plot: Plot = None,
    samples: Samples = None,
    epochs: Epochs = None,
    tokens: Tokens = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Predict several GPUs, models and batch sizes side by side; the best throughput of each model is marked."""
    texts, results = split_results(overrides)
    texts += work_of(samples, epochs, tokens)
    check_file(page, "--page", ("html",))
    check_file(out, "--out", ("parquet",))
    check_file(plot, "--plot")
    if out is not None and (sort, plot) != (None, None):
        raise InputError("--out writes rows as they are done: leave --sort and --plot away")
    questions = expand(texts)
    if sort is Order.cost and not any(
        price_of(question.gpu.name, question.own_price) for question in questions
    ):
        raise InputError(f"--sort cost: {no_price(distinct(each.gpu.name for each in questions))}")
    answering = engine(**results)
    answers = progress(answering.predict(questions), len(questions), "predicting")
    if out is not None:
        counts = write_answers(answers, out)
        lost = f", {counts['unpredicted']:,} of them without a prediction"
        if not printed(as_json, False, {**counts, "out": str(out)}, ()):
            print(f"{counts['points']:,} points{lost * bool(counts['unpredicted'])} -> {out}")
        return
    comparison = compared(questions, answers, answering)
    if page is not None:
        comparison.write_page(page)
    comparison = replace(comparison, largest=_largest_batches(questions))
    if sort is not None:
        ordered = best_first(comparison.predictions, sort)
        comparison = replace(comparison, predictions=ordered, arranged=True)
    if plot is not None:
        save_as(comparison.plot(), plot)
    if not printed(as_json, as_csv, *_facts(comparison)):
        console().print(comparison, crop=False)
        for name, path in {"page": page, "plot": plot}.items():
            if path is not None:
                print(f"{name}: {path}")


def _facts(comparison: Comparison) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A comparison as one JSON object, and as rows."""
    rows = [p.as_dict() for p in comparison.predictions]
    names = ("gpu", "model", "batch_size", "overrides", "reason")
    refused = [{name: getattr(each, name) for name in names} for each in comparison.unpredicted]
    facts = {
        "predictions": rows,
        "unpredicted": refused,
        "largest_batch": comparison.largest,
        "hosts": comparison.one_host.note,
        "ties": {f"{model}, {what}": t.as_dict() for (model, what), t in comparison.ties.items()},
    }
    if comparison.prices:
        facts["prices"] = [price.as_dict() for price in comparison.prices.values()]
    return facts, [*rows, *refused]


def _largest_batches(questions: Sequence[Question]) -> dict[str, int | None]:
    """The largest batch of each GPU, model and variant."""
    found: dict[str, int | None] = {}
    with working("searching for the largest batches"):
        for question in questions:
            key = f"{question.gpu.name}/{question.model}/{question.variant}"
            if key not in found:
                with suppress(SteptimeError):  # the step cannot be captured at another batch size
                    found[key] = largest_batch(question, STEPS.memory_bytes)
    return found


@app.command(
    epilog=examples(
        "diff gpu=V100 gpu=H100 model=resnet50 batch_size=64",
        "diff gpu=A100 model=dlrm_ddp batch_size=512 batch_size=2048",
        "diff --trace trace.json.gz gpu=V100 model=resnet50 batch_size=32",
    )
)
def diff(
    overrides: Overrides = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="step A is that of this PyTorch profiler trace; the overrides are step B"
        ),
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Say what makes step B faster or slower than step A; an option that is given twice is that of A, then that of B."""
    given, results = split_results(overrides)
    asked = two_points(given) if trace is None else [ask(given)]
    check_file(plot, "--plot")
    with working("predicting"):
        answers = in_order(asked, engine(**results).predict(asked, detail=True))
        steps = [answer.whole() for answer in answers]
        if trace is not None:
            steps = [_traced(trace, asked[0]), *steps]
        result = steps[0].diff(steps[1])
    if plot is not None:
        save_as(draw_difference(result), plot)
    facts = result.as_dict()
    if not printed(as_json, as_csv, facts, [*facts["parts"], facts["step"]]):
        show_difference(result)


def _traced(trace: Path, asked: Question) -> Prediction:
    """The measured step of a trace, to compare with what is asked; its GPU is the one asked for if the trace names none."""
    step = load_trace(trace, asked.batch_size)
    if step.device == UNNAMED:
        step = load_trace(trace, asked.batch_size, gpu=asked.gpu.name)
    return step.measured


def two_points(given: Sequence[str]) -> list[Question]:
    """Points A and B of overrides: one that is given once is shared.

    Raises:
        InputError: these are not two points.
    """
    values: dict[str, list[str]] = {}
    for text in given:
        values.setdefault(text.partition("=")[0].lstrip("+"), []).append(text)
    for key, texts in values.items():
        if len(texts) > 2:
            raise InputError(
                f"{key} has {len(texts)} values: diff takes two points, A and B, and so at most two"
                " values"
            )
    sides = [[texts[side] for texts in values.values()] for side in (0, -1)]
    repeated = any(len(texts) == 2 for texts in values.values())
    points = [expand(side) for side in (sides if repeated else sides[:1])]
    asked = [question for side in points for question in side]
    if len(asked) != 2 or not all(points):
        what = "one point" if len(asked) == 1 else f"{len(asked)} points"
        raise InputError(
            f"diff takes two points, but this is {what}: give what differs twice, as in gpu=V100"
            " gpu=H100"
        )
    return asked


def show_difference(difference: Difference) -> None:
    """Print a difference: the sentence, a line per part, then the calls that changed most."""
    screen = console()
    screen.print(Text(difference.sentence, style="bold"))
    for side, p in (("A", difference.a), ("B", difference.b)):
        screen.print(Text(f"{side}: {p}", style="dim"))
    rows = difference.rows()
    shown = [row for part, row in zip(difference.parts, rows, strict=False) if abs(part.us) >= 0.5]
    parts = Catalogue(
        [*shown, rows[-1]],
        ("of the\nstep",),
        folded=(),
        right=list(rows[-1])[1:],
        bold=(len(shown),),
    )
    screen.print(parts, crop=False)
    a, b = difference.heads
    calls = [
        {
            "calls that changed most": call.label,
            f"{a}\nms": f"{call.a_us / 1000:.3f}",
            f"{b}\nms": f"{call.b_us / 1000:.3f}",
            "change\nms": signed(call.us),
        }
        for call in difference.calls
    ]
    if calls:
        screen.print()
        screen.print(
            Catalogue(calls, (), folded=list(calls[0])[:1], right=list(calls[0])[1:]), crop=False
        )
    for note in difference.notes:
        screen.print(Text(note, style="dim"))
