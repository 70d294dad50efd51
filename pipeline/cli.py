"""The `steptime` command: arguments in, one library call, a table or one JSON object out.

Errors are one line on stderr; the exit code is 2 for bad input and 1 for any other failure.
"""

from __future__ import annotations

import gc
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperCommand, TyperGroup

from pipeline.answers.engine import Answer, engine
from pipeline.answers.known_answers import known_prediction
from pipeline.answers.memory_course import memory_course
from pipeline.errors import InputError
from pipeline.paths import check_file
from pipeline.prediction import Prediction
from pipeline.question.question import ask
from pipeline.show.figures.board import save_as
from pipeline.show.tables import by_module, console, show_one
from pipeline.simulate.timeline_page import KINDS as TIMELINES
from pipeline.simulate.timeline_page import write_timeline
from pipeline.terminal import (
    Csv,
    Epochs,
    Json,
    Overrides,
    Samples,
    Timeline,
    Tokens,
    examples,
    printed,
    run_app,
    split_results,
    work_of,
    working,
)

COMPARING, LISTING, TRACE, LATENCY, CODESIGN, PIPELINE = (
    f"pipeline.commands.{name}_commands"
    for name in ("comparing", "listing", "trace", "latency", "codesign", "pipeline")
)

GROUPS: dict[str, dict[str, str | None]] = {
    "Ask": {
        "predict": None,
        "compare": COMPARING,
        "diff": COMPARING,
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
    timeline: Timeline = None,
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
    samples: Samples = None,
    epochs: Epochs = None,
    tokens: Tokens = None,
    why: Annotated[
        bool, typer.Option("--why", help="also show what the times on GPU and host rest on")
    ] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Predict one training step: time with interval, active and idle time, memory, evidence."""
    texts, results = split_results(overrides)
    texts += work_of(samples, epochs, tokens)
    if depth is not None and by is None:
        raise InputError(f"--depth {depth}: modules are shown with --by module")
    check_file(timeline, "--timeline", TIMELINES)
    check_file(roofline, "--roofline")
    question = ask(texts)
    with working("predicting"):
        if any((timeline, roofline, by)):
            answer = engine(**results).predict_one(question)
            prediction = answer.whole()
            if timeline is not None:
                _write_timeline(answer, timeline)
        else:
            prediction = known_prediction(question, **results)
    if roofline is not None:
        save_as(prediction.plot("roofline"), roofline)
    if by is not None:
        _show_modules(prediction, 2 if depth is None else depth, as_json, as_csv)
    elif not printed(as_json, as_csv, facts := prediction.as_dict(), [facts]):
        paths = {"timeline": timeline, "roofline": roofline}
        written = {name: str(path) for name, path in paths.items() if path}
        show_one(prediction, written, why)


def _write_timeline(answer: Answer, path: Path) -> None:
    question = answer.question
    if answer.timeline is None or answer.calls is None:
        raise InputError(
            "gpu=local: the pipeline writes this timeline, timeline.html beside its summary"
        )
    course = memory_course(question, answer.timeline, answer.calls)
    write_timeline(
        answer.timeline,
        path,
        answer.calls,
        beside=answer.other_rank,
        title=question.title,
        memory=None if course is None else course.drawn(),
    )


def _show_modules(prediction: Prediction, deepest: int, as_json: bool, as_csv: bool) -> None:
    modules = prediction.modules
    shown = modules[modules["depth"] <= deepest]
    rows = shown.replace({np.nan: None}).to_dict("records")
    if not printed(as_json, as_csv, {**prediction.as_dict(), "modules": rows}, rows):
        console().print(by_module(modules, prediction, deepest), crop=False)


def main() -> None:
    """Entry point of `steptime`."""
    # a captured step is more objects that all stay: scans were a quarter of its time
    gc.set_threshold(100_000)
    run_app(app)


if __name__ == "__main__":
    main()
