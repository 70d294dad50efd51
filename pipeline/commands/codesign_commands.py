"""Commands of co-design: what would make a step faster, and which point of a space is best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from pipeline.answers.advice import Advice, advice_for
from pipeline.answers.engine import Answer, engine
from pipeline.answers.plan import CONSTRAINTS, limits_of, make_plan, space_of
from pipeline.answers.plan_results import Objective
from pipeline.answers.sharding_plan import find_sharding
from pipeline.answers.step_changes import SAME
from pipeline.answers.tracker import load_trace
from pipeline.errors import InputError
from pipeline.paths import check_file
from pipeline.question.compose import parse_grid
from pipeline.question.question import Question, ask
from pipeline.readable import gibibytes
from pipeline.show.figures.board import save_as
from pipeline.show.figures.costs import plan_front
from pipeline.show.figures.waterfall import draw_advice
from pipeline.show.plans import show_plan
from pipeline.show.sharding import draw_sharding, show_sharding, write_sharding
from pipeline.show.tables import Catalogue, console
from pipeline.terminal import (
    Csv,
    Json,
    Overrides,
    Plot,
    examples,
    printed,
    progress,
    split_results,
    working,
)

app = typer.Typer()

Deadline = Annotated[
    str | None, typer.Option(help="longest time of an epoch: 90s, 30min, 2h or 1.5d")
]
GlobalBatch = Annotated[
    int | None,
    typer.Option(help="samples of one update of the weights; smaller batches are accumulated"),
]
Epoch = Annotated[str | None, typer.Option(help="samples of an epoch, such as 1281167 or 1.2M")]
MaxWatts = Annotated[float | None, typer.Option(help="largest mean power of all GPUs together, W")]
"""Constraints of a plan."""


class Goal(StrEnum):
    """What `plan` looks for: the best point of a space by an `Objective`, or the best plan of spread tables."""

    step = Objective.step.value
    samples_per_s = Objective.samples_per_s.value
    time_per_epoch = Objective.time_per_epoch.value
    cost_per_epoch = Objective.cost_per_epoch.value
    samples_per_dollar = Objective.samples_per_dollar.value
    energy_per_epoch = Objective.energy_per_epoch.value
    samples_per_kwh = Objective.samples_per_kwh.value
    sharding = "sharding"


@app.command(
    epilog=examples("advise gpu=V100 model=dlrm_ddp", "advise --trace trace.json.gz --same-results")
)
def advise(
    overrides: Overrides = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="a PyTorch profiler trace, .json or .json.gz, instead of a workload"),
    ] = None,
    same_results: Annotated[
        bool,
        typer.Option("--same-results", help="leave out what changes results by more than rounding"),
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="also try torch.compile: a minute of CPU time")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="also list what does not help")] = False,
    plot: Plot = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Say what would make one training step faster, best first, each with its predicted gain."""
    given, results = split_results(overrides)
    check_file(plot, "--plot")
    if trace is not None:
        if compiled:
            raise InputError("--compiled: a trace has no model to compile; name a workload")
        named = [override for point in parse_grid(given) for override in point]
        if len(named) > 1 or any(override.key != "gpu" for override in named):
            raise InputError(
                "--trace: the trace is the step; leave the overrides away, but for gpu=NAME of the"
                " traced GPU"
            )
        with working("simulating the trace"):
            advice = load_trace(
                trace, gpu="".join(str(override.value) for override in named)
            ).advise(same_results)
    else:
        advice = _of_question(ask(given), same_results, compiled, results)
    if plot is not None:
        save_as(draw_advice(advice), plot)
    if not printed(as_json, as_csv, advice.as_dict(), advice.table().to_dict("records")):
        show_advice(advice, everything)


@app.command(
    epilog=examples(
        "plan samples_per_dollar gpu=V100,T4,A100 batch_size=512,2048",
        "plan time_per_epoch gpu=A100,T4 model=resnet50 --samples 1281167",
        "plan samples_per_kwh gpu=V100 gpu.power_limit_w=150,200,250",
        "plan sharding gpu=A100 model=dlrm_dcnv2 devices=8 --out plan.yaml",
    )
)
def plan(
    objective: Annotated[Goal, typer.Argument(help="what is best; sharding: of spread tables")],
    space: Overrides = None,
    samples: Epoch = None,
    memory: Annotated[float | None, typer.Option(help="largest memory need, GiB")] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="largest cost of an epoch, in the currency of the prices, such as $20"),
    ] = None,
    deadline: Deadline = None,
    global_batch: GlobalBatch = None,
    max_watts: MaxWatts = None,
    figure: Annotated[
        Path | None, typer.Option(help="draw time against cost or energy to this .svg or .png file")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="sharding: write the plan to this .yaml file, and TorchRec's beside it"),
    ] = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Find the best GPU, batch size and options for an objective, and the front of time against cost or energy; or a sharding."""
    given, results = split_results(space)
    options = {
        "samples": samples,
        "memory": memory,
        "budget": budget,
        "deadline": deadline,
        "global_batch": global_batch,
        "max_watts": max_watts,
    }
    constraints = {key: value for key, value in options.items() if value is not None}
    if objective is Goal.sharding:
        if named := [f"--{key.replace('_', '-')}" for key in constraints]:
            raise InputError(f"{', '.join(named)}: a plan of sharding does not read it")
        plan_tables(given, figure, out, as_json, as_csv)
        return
    if out is not None:
        raise InputError("--out: only a plan of sharding is written to a file")
    if not given:
        raise InputError(
            "the space is empty: give its axes, for example gpu=V100,A100 batch_size=512,1024"
        )
    typed = dict(text.split("=", 1) for text in given if text.partition("=")[0] in CONSTRAINTS)
    limits = limits_of({**typed, **constraints})
    given = [text for text in given if text.partition("=")[0] not in typed]
    points = space_of(given, limits)
    check_file(figure, "--figure")
    with working("reading") as say:

        def on_progress(stage: str, done: int) -> None:
            say(f"{stage} {len(points):,} points, {done:,} done")

        result = make_plan(Objective(objective), points, limits, on_progress, **results)
    if figure is not None:
        save_as(plan_front(result), figure)
    if not printed(as_json, as_csv, result.as_dict(), result.table().to_dict("records")):
        show_plan(result)


def plan_tables(
    given: Sequence[str], figure: Path | None, out: Path | None, as_json: bool, as_csv: bool
) -> None:
    """Find the best plan of spread tables, and show or write it."""
    check_file(figure, "--figure")
    check_file(out, "--out", ("yaml", "yml"))
    with working("simulating") as say:
        found = find_sharding(given, lambda name: say(f"simulating {name}"))
    if figure is not None:
        save_as(draw_sharding(found), figure)
    if out is not None:
        typer.echo(f"plan: {out}, TorchRec's: {write_sharding(found, out)}", err=True)
    if not printed(as_json, as_csv, found.as_dict(), found.rows()):
        show_sharding(found)


def _of_question(
    asked: Question, same_results: bool, compiled: bool, results: dict[str, Any]
) -> Advice:
    answering = engine(**results)

    def predicting(questions: Sequence[Question]) -> Iterable[Answer]:
        return progress(answering.predict(questions), len(questions), "predicting changes")

    return advice_for(asked, same_results, predicting, compiled)


def show_advice(advice: Advice, everything: bool) -> None:
    """Print an advice: a line per change, best first, then how to make each change and the command that shows it.

    Args:
        advice: what to print.
        everything: whether candidates that do not help are listed too.
    """
    screen = console()

    def say(text: str, style: str = "", whole: bool = False) -> None:
        screen.print(Text(text, style=style), soft_wrap=whole, highlight=False)

    say(advice.summary, "bold")
    if not advice.before.fits:
        need = f"{gibibytes(advice.before.memory_bytes)} do not fit {advice.before.gpu}; with"
        ways = advice.fitting or ("no change that is known here; smaller: batch_size, model",)
        say(f"{need} {'; '.join(ways)}", "yellow")
    if advice.lines:
        rows = [{"": str(number), **row} for number, row in enumerate(advice.rows(), 1)]
        for row in rows:
            del row["results change"]  # stands below, where a sentence has room
        least = ("alone\n%", "evidence", "memory", "step")
        numbers = ("", "saves\nms", "step\nms", "on top\n%", "alone\n%", "memory")
        screen.print(Catalogue(rows, least, folded=(), right=numbers), crop=False)
        say(
            "Gains are shares of the step above the first line, with p10 and p90; those on top of"
            " the lines above add up.",
            "dim",
        )
        say(f"The step above the first line has {advice.before.assumed}.", "dim")
        for number, line in enumerate(advice.lines, 1):
            say(
                f"{number}  {line.how}"
                + ("" if line.changes_results == SAME else f"; {line.changes_results}")
            )
            if line.command:
                say(f"   {line.command}", "dim", whole=True)  # it can be copied
    for change in advice.not_helping if everything else ():
        say(
            f"{change.change}: {change.reason}"
            + ("" if change.gain is None else f", alone {change.gain}"),
            "dim",
        )
    for note in advice.warnings:
        say(f"warning: {note}", "yellow")
