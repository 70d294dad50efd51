"""Commands that list what there is: GPUs, workloads, and what this machine can do."""

from __future__ import annotations

from typing import Annotated

import typer

from pipeline.completion import complete_model
from pipeline.show.catalogue import gpu_rows, model_rows, option_rows
from pipeline.show.doctor import examine
from pipeline.terminal import Json, catalogue, examples, working

app = typer.Typer()


@app.command(epilog=examples("gpus"))
def gpus(as_json: Json = False) -> None:
    """List the GPUs that can be predicted, with the evidence available for each."""
    catalogue(gpu_rows(), as_json)


@app.command(
    epilog=examples(
        "models",
        "models dlrm_default",
    )
)
def models(
    name: Annotated[
        str | None, typer.Argument(help="list the options of this workload", autocompletion=complete_model)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the workloads that can be predicted, or the options of one with their values."""
    catalogue(model_rows() if name is None else option_rows(name), as_json)


@app.command(epilog=examples("doctor"))
def doctor(as_json: Json = False) -> None:
    """Check what this machine can do: device, profiler, MLflow, data, packs."""
    with working("checking this machine") as say:
        rows = examine(say)
    catalogue(rows, as_json)
    if any(row["status"] == "broken" for row in rows):
        raise typer.Exit(1)
