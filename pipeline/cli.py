"""The `steptime` command: arguments in, one library call, a table or one JSON object out.

Errors are one line on stderr; the exit code is 2 for bad input and 1 for any other failure.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.answers.answer_files import write_answers
from pipeline.answers.engine import STEPS, engine
from pipeline.answers.memory_fit import estimated_largest_batch
from pipeline.errors import InputError, SteptimeError
from pipeline.prediction import Prediction
from pipeline.prices import COST_COLUMNS, Order, in_order, prices_of, with_prices
from pipeline.question.question import Question, expand
from pipeline.show.comparison import Comparison, compared
from pipeline.show.figures.board import KINDS, check_file, save_as
from pipeline.show.tables import by_module, console, show_one
from pipeline.simulate.timeline_page import KINDS as TIMELINES
from pipeline.simulate.timeline_page import write_timeline
from pipeline.terminal import (
    Csv,
    Json,
    Overrides,
    examples,
    print_csv,
    print_json,
    progress,
    run_app,
    split_results,
    working,
)

LISTING, TRACE, LATENCY, CODESIGN, PIPELINE = (
    f"pipeline.commands.{name}_commands"
    for name in ("listing", "trace", "latency", "codesign", "pipeline")
)

GROUPS: dict[str, dict[str, str | None]] = {
    "Ask": {
        "predict": None,
        "compare": None,
        "diff": CODESIGN,
        "kernels": LATENCY,
        "transfer": LATENCY,
    },
    "Look": dict.fromkeys(("gpus", "hosts", "clusters", "models", "doctor"), LISTING),
    "Search": {"advise": CODESIGN, "plan": CODESIGN},
    "Measure": {"replay": TRACE, "trace": TRACE, "host": LISTING},
    "Pipeline": {"run": PIPELINE, "summary": PIPELINE, "ui": PIPELINE},
}
"""Commands by their group on the help page, with their modules; None for this one."""

LOADED_WHEN_ASKED = {
    name: module for group in GROUPS.values() for name, module in group.items() if module
}
"""Modules of the commands that are not in this module. A prediction does not load them: they take 0.2 s."""


class Part(StrEnum):
    """What `predict --by` takes a step apart by."""

    module = "module"


class CommandsLoadedWhenAsked(TyperGroup):
    """The commands of this module, and those of `LOADED_WHEN_ASKED`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, in the order of the help page."""
        return [name for group in GROUPS.values() for name in group]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; None if there is none. All commands are then loaded, to find a similar name."""
        wanted = LOADED_WHEN_ASKED.get(cmd_name)
        unknown = wanted is None and cmd_name not in self.commands
        for module in set(LOADED_WHEN_ASKED.values()) if unknown else [wanted] if wanted else []:
            loaded: Any = typer.main.get_command(import_module(module).app)
            self.commands |= loaded.commands
        command = self.commands.get(cmd_name)
        if isinstance(command, (TyperCommand, TyperGroup)):
            command.rich_help_panel = next(
                group for group, names in GROUPS.items() if cmd_name in names
            )
        return command


app = typer.Typer(
    name="steptime",
    cls=CommandsLoadedWhenAsked,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"steptime {version('steptime')}")
        except PackageNotFoundError:  # a checkout that was not installed
            print("steptime (not installed)")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "predict gpu=V100 model=dlrm_default batch_size=2048",
        "compare gpu=V100,A100,T4 model=dlrm_default batch_size=512,2048",
        "gpus",
    )
)
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """How long does one training step take, on a GPU you may not have?"""


@app.command(
    epilog=examples(
        "predict gpu=V100 model=dlrm_default batch_size=2048",
        "predict gpu=H100 model=resnet50 batch_size=64 --timeline step.html",
    )
)
def predict(
    overrides: Overrides = None,
    timeline: Annotated[
        Path | None, typer.Option(help="write the timeline here: .html, or .json.gz for Perfetto")
    ] = None,
    roofline: Annotated[
        Path | None,
        typer.Option(
            help="draw FLOP/s of the kernels against FLOPs per byte to this .svg or .png file"
        ),
    ] = None,
    by: Annotated[
        Part | None, typer.Option(help="show where the time goes, by these parts of the step")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=0, help="with --by module: the deepest level of modules that is shown (2)"
        ),
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Predict one training step: time with interval, active and idle time, memory, evidence."""
    texts, results = split_results(overrides)
    if depth is not None and by is None:
        raise InputError(f"--depth {depth}: modules are shown with --by module")
    deepest = 2 if depth is None else depth
    for path, option, kinds in (
        (timeline, "--timeline", TIMELINES),
        (roofline, "--roofline", KINDS),
    ):
        if path is not None:
            check_file(path, option, kinds)
    questions = expand(texts)
    if len(questions) > 1:
        raise InputError(
            f"predict takes one point, but these overrides give {len(questions)}: use `steptime"
            " compare`"
        )
    with working("predicting"):
        answer = engine(**results).predict_one(questions[0])
        prediction = answer.whole()
        if timeline is not None:
            if answer.timeline is None:
                raise InputError(
                    "gpu=local: the pipeline writes this timeline, timeline.html beside its summary"
                )
            write_timeline(answer.timeline, timeline, answer.calls, title=questions[0].title)
    if roofline is not None:
        save_as(prediction.plot("roofline"), roofline)
    modules = None if by is None else prediction.modules
    if as_json or as_csv:
        facts = prediction.as_dict()
        rows: list[dict[Any, Any]] = [facts]
        if modules is not None:
            rows = modules[modules["depth"] <= deepest].replace({np.nan: None}).to_dict("records")
            facts["modules"] = rows
        if as_json:
            print_json(facts)
        else:
            print_csv(rows)
        return
    if modules is not None:
        console().print(by_module(modules, prediction, deepest), crop=False)
        return
    show_one(
        prediction,
        {
            name: str(path)
            for name, path in (("timeline", timeline), ("roofline", roofline))
            if path
        },
    )


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
        Order | None, typer.Option(help="order of the rows, best first; else that of the overrides")
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
            help="write a page to play with to this .html file: toggles and a slider of the batch"
        ),
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Predict several GPUs, models and batch sizes side by side; the best throughput of each model is marked."""
    texts, results = split_results(overrides)
    if page is not None:
        check_file(page, "--page", ("html",))
    questions = expand(texts)
    prices = prices_of([question.gpu.name for question in questions])
    if sort is Order.cost and prices.empty:
        raise InputError(
            "--sort cost: none of these GPUs has a price; give one in prices.yaml (docs/prices.md)"
        )
    answering = engine(**results)
    answers = progress(answering.predict(questions), len(questions), "predicting")
    if out is not None:
        if sort is not None:
            raise InputError("--out writes rows as they are done: leave --sort away")
        counts: dict[str, Any] = {**write_answers(answers, out), "out": str(out)}
        lost = (
            f", {counts['unpredicted']:,} of them without a prediction"
            if counts["unpredicted"]
            else ""
        )
        print_json(counts) if as_json else print(f"{counts['points']:,} points{lost} -> {out}")
        return
    comparison = compared(questions, answers, answering)
    if page is not None:
        comparison.write_page(page)
    predictions, unpredicted = list(comparison.predictions), comparison.unpredicted
    largest, estimated = _largest_batches(questions, predictions)
    if sort is not None:
        predictions = in_order(predictions, prices, sort)
    rows = [p.as_dict() | costs for p, costs in zip(predictions, _costs(predictions), strict=True)]
    names = ("gpu", "model", "batch_size", "overrides", "reason")
    refused = [{name: getattr(each, name) for name in names} for each in unpredicted]
    if as_csv:
        print_csv([*rows, *refused])
        return
    if as_json:
        facts = {
            "predictions": rows,
            "unpredicted": refused,
            "largest_batch": largest,
            "largest_batch_estimated": sorted(estimated),
            "hosts": comparison.hosts,
            "ties": {
                f"{model}, {what}": tie.as_dict() for (model, what), tie in comparison.ties.items()
            },
        }
        print_json(facts | ({"prices": prices.to_dict("records")} if len(prices) else {}))
        return

    console().print(
        Comparison(
            predictions,
            largest,
            prices,
            unpredicted,
            frozenset(estimated),
            comparison.hosts,
            comparison.ties,
        ),
        crop=False,
    )
    if page is not None:
        print(f"page: {page}")


def _largest_batches(
    questions: Sequence[Question], predictions: Sequence[Prediction]
) -> tuple[dict[str, int | None], set[str]]:
    """The largest batch of each design, and the designs for which it is an estimate."""
    # exact where a step does not fit, because its prediction searched for what does
    largest = {_design(p): p.largest_batch for p in predictions if not p.fits}
    estimated = set[str]()
    with working("searching for the largest batches"):
        for question in questions:
            key = f"{question.gpu.name}/{question.model}/{question.variant}"
            if key not in largest:
                with suppress(SteptimeError):  # the step cannot be captured at another batch size
                    largest[key] = estimated_largest_batch(question, STEPS.memory_bytes)
                    estimated.add(key)
    return largest, estimated


def _design(prediction: Prediction) -> str:
    """GPU, model and variant, as keys of the largest batches."""
    return f"{prediction.gpu}/{prediction.model}/{prediction.variant}"


def _costs(predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """The costs of each prediction, null on a GPU without a price; no keys if none of the GPUs has one."""
    table = with_prices(
        pd.DataFrame([{"gpu": p.gpu, "samples_per_s": p.samples_per_s} for p in predictions])
    )
    if table["price_per_hour"].isna().all():
        return [{} for _ in predictions]
    columns = {
        name: table[name].astype(object).where(table[name].notna(), None) for name in COST_COLUMNS
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def main() -> None:
    """Entry point of `steptime`."""
    gc.set_threshold(
        100_000
    )  # a captured step is more objects that all stay: scans were a quarter of its time
    run_app(app)


if __name__ == "__main__":
    main()
