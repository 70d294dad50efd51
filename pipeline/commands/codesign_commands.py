"""The command that says what would make a training step faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.answers.advice import Advice, advice_for
from pipeline.answers.predict_grid import Answer, predict_points
from pipeline.answers.tracker import load_trace
from pipeline.config import Point, point
from pipeline.errors import InputError
from pipeline.report.advice_table import show_advice
from pipeline.terminal import Json, Overrides, print_json, progress, split_results, working

app = typer.Typer()


@app.callback()
def _several() -> None:
    """Typer makes a group of a single command only if it has a callback."""


@app.command()
def advise(
    overrides: Overrides = None,
    trace: Annotated[
        Path | None, typer.Option(help="a PyTorch profiler trace, .json or .json.gz, instead of a workload")
    ] = None,
    same_results: Annotated[
        bool, typer.Option("--same-results", help="leave out what changes results by more than rounding")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="also list what does not help")] = False,
    as_json: Json = False,
) -> None:
    """Say what would make one training step faster, best first, each with its predicted gain."""
    given, results = split_results(overrides)
    if trace is not None:
        if overrides:
            raise InputError("--trace: the trace is the step; leave the overrides away")
        with working("simulating the trace"):
            found = load_trace(trace).advise(same_results)
    else:
        found = _of_point(point(given), same_results, results)
    if as_json:
        print_json(found.as_dict())
        return

    show_advice(found, everything)


def _of_point(asked: Point, same_results: bool, results: dict[str, Any]) -> Advice:
    rounds = 0

    def predicting(points: Sequence[Point]) -> Iterable[Answer]:
        nonlocal rounds
        rounds += 1
        said = "predicting" if rounds == 1 else f"predicting changes, round {rounds - 1}"
        return progress(predict_points(points, **results, keep_draws=True), len(points), said)

    return advice_for(asked, same_results, predicting=predicting)
