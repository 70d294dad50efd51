"""Commands that read profiler traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from pipeline.errors import InputError
from pipeline.schemas import refuse_overwriting
from pipeline.show.figures.board import check_file
from pipeline.show.tables import console
from pipeline.simulate.rank_replay import facts as rank_facts
from pipeline.simulate.rank_replay import replay_ranks
from pipeline.simulate.rank_replay import table as rank_table
from pipeline.simulate.replay import replay as run
from pipeline.simulate.replay_result import table as replay_table
from pipeline.simulate.replay_result import verdict
from pipeline.simulate.timeline_page import KINDS
from pipeline.terminal import Json, Timeline, examples, print_json, working
from pipeline.trace.event_tables import write_events
from pipeline.trace.load import load_trace

app = typer.Typer()


@app.command(
    epilog=examples(
        "replay trace.json.gz --timeline step.html", "replay rank0.json.gz --rank rank1.json.gz"
    )
)
def replay(
    trace: Annotated[Path, typer.Argument(help="PyTorch profiler trace, .json or .json.gz")],
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
    """Predict the iterations of a trace from overheads of other iterations, and compare with the measured times."""
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


@app.command(epilog=examples("trace trace.json.gz --out events.parquet"))
def trace(
    trace: Annotated[Path, typer.Argument(help="PyTorch profiler trace, .json or .json.gz")],
    out: Annotated[Path, typer.Option(help="parquet file to write")],
    as_json: Json = False,
) -> None:
    """Convert a profiler trace into a table of linked events."""
    refuse_overwriting(out, trace)
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
