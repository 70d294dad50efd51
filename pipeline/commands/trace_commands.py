"""Commands that read profiler traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from pipeline.answers.tracker import load_trace as tracked
from pipeline.errors import InputError
from pipeline.paths import check_file
from pipeline.prediction import Prediction
from pipeline.readable import number_of
from pipeline.schemas import refuse_overwriting
from pipeline.show.tables import console, show_one
from pipeline.simulate.rank_replay import facts as rank_facts
from pipeline.simulate.rank_replay import replay_ranks
from pipeline.simulate.rank_replay import table as rank_table
from pipeline.simulate.replay import replay as run
from pipeline.simulate.replay_result import table as replay_table
from pipeline.simulate.replay_result import verdict
from pipeline.simulate.timeline_page import KINDS
from pipeline.terminal import (
    Json,
    Overrides,
    Timeline,
    examples,
    print_json,
    split_results,
    working,
)
from pipeline.trace.event_tables import write_events
from pipeline.trace.load import load_trace

app = typer.Typer()


@app.command(
    epilog=examples(
        "replay trace.json.gz --timeline step.html",
        "replay rank0.json.gz --rank rank1.json.gz",
        "replay trace.json.gz gpu.power_limit_w=150",
    )
)
def replay(
    trace: Annotated[Path, typer.Argument(help="PyTorch profiler trace, .json or .json.gz")],
    overrides: Overrides = None,
    overheads: Annotated[
        list[Path] | None, typer.Option(help="take host overheads from this trace; may be repeated")
    ] = None,
    calibrate: Annotated[
        int,
        typer.Option(
            help="number of iterations of TRACE from which one factor on those overheads is fitted"
        ),
    ] = 0,
    rank: Annotated[
        list[Path] | None,
        typer.Option(
            help="trace of another rank of the same step; all ranks are simulated together"
        ),
    ] = None,
    timeline: Timeline = None,
    as_json: Json = False,
) -> None:
    """Predict the iterations of a trace from overheads of other iterations, and compare with the measured times.

    With gpu=NAME, gpu.power_limit_w=W or gpu.clock_mhz=MHZ: the traced step on that GPU, or at that limit or clock.
    """
    if overrides:
        if rank or overheads or calibrate or timeline:
            raise InputError(f"{overrides[0]} carries the traced step: remove the other options")
        with working("reading the trace"):
            prediction = carried(trace, overrides)
        print_json(prediction.as_dict()) if as_json else show_one(prediction, {})
        return

    if rank:
        if overheads or calibrate or timeline:
            raise InputError(
                "--rank takes overheads from the other ranks; remove the other options"
            )
        if len({path.resolve() for path in (trace, *rank)}) <= len(rank):
            raise InputError("--rank: the same trace is given twice; give one trace of each rank")
        with working("replaying all ranks together"):
            values = rank_facts([trace, *rank], replay_ranks([trace, *rank]))
        print_json(values) if as_json else console().print(rank_table(values))
        return

    check_file(timeline, "--timeline", KINDS)
    with working("replaying"):
        result = run(trace, list(overheads or []), timeline=timeline, calibrate=calibrate)
    if as_json:
        print_json(result.as_dict() | ({"timeline": str(timeline)} if timeline else {}))
        return

    screen = console()
    screen.print(Text(verdict(result.as_dict()), style="bold"))
    screen.print(replay_table(result.as_dict(), screen.width))
    if timeline:
        where = "a browser" if timeline.suffix == ".html" else "https://ui.perfetto.dev"
        print(f"predicted timeline -> {timeline} (open it in {where})")


def carried(path: Path, texts: Sequence[str]) -> Prediction:
    """The step of a trace on the GPU, and at the limit or the clock, that overrides name.

    Raises:
        InputError: an override names something else.
    """
    named = dict(text.split("=", 1) for text in split_results(texts)[0])
    if other := named.keys() - {"gpu", "gpu.power_limit_w", "gpu.clock_mhz"}:
        raise InputError(
            f"{min(other)}: a trace is carried by gpu, gpu.power_limit_w, gpu.clock_mhz"
        )
    step = tracked(path)
    gpu = named.pop("gpu", "") or step.origin.name
    return step.to(
        gpu, **{key.removeprefix("gpu."): number_of(v, f"{key}: ") for key, v in named.items()}
    )


@app.command(epilog=examples("trace trace.json.gz --out events.parquet"))
def trace(
    trace: Annotated[Path, typer.Argument(help="PyTorch profiler trace, .json or .json.gz")],
    out: Annotated[Path, typer.Option(help="parquet file to write")],
    as_json: Json = False,
) -> None:
    """Convert a profiler trace into a table of linked events."""
    refuse_overwriting(out, trace)
    check_file(out, "--out", ("parquet",))
    with working("reading the trace"):
        loaded = load_trace(trace)
    write_events(loaded, out, {"source": trace.name})
    facts = {
        "events": len(loaded),
        "iterations": len(loaded.opens),
        "device": loaded.device,
        "out": str(out),
        "notes": loaded.notes,
    }
    if as_json:
        print_json(facts)
    else:
        print(
            f"{facts['events']:,} events, {facts['iterations']} iterations on {facts['device']} ->"
            f" {out}"
        )
        for note in loaded.notes:
            print(f"note: {note}")
