"""Commands that list what there is: GPUs, workloads, this machine, predictions of a run, and MLflow's pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.paths import Artifacts
from pipeline.prediction import Prediction
from pipeline.report.artifact_list import places
from pipeline.report.catalogue import gpu_rows, model_rows, option_rows
from pipeline.report.doctor import examine
from pipeline.report.mlflow_tracking import PORT, serve
from pipeline.report.show import show
from pipeline.schemas import read_table
from pipeline.terminal import Json, catalogue, print_json, working

app = typer.Typer()


@app.command()
def gpus(as_json: Json = False) -> None:
    """List the GPUs that can be predicted, with the evidence available for each."""
    catalogue(gpu_rows(), as_json)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="list the options of this workload")] = None, as_json: Json = False
) -> None:
    """List the workloads that can be predicted, or the options of one with their values."""
    catalogue(model_rows() if name is None else option_rows(name), as_json)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Check what this machine can do: device, profiler, MLflow, data, packs."""
    with working("checking this machine") as say:
        rows = examine(say)
    catalogue(rows, as_json)
    if any(row["status"] == "broken" for row in rows):
        raise typer.Exit(1)


@app.command()
def summary(
    where: Annotated[
        str, typer.Argument(help="results=FOLDER of a run, or its summary.parquet", metavar="results=FOLDER | FILE")
    ] = "results=results",
    as_json: Json = False,
) -> None:
    """Show the predictions of a pipeline run."""
    key, _, folder = where.rpartition("=")
    place = Path(folder) if key == "results" else Path(where)
    file = place / "summary.parquet" if key == "results" or place.is_dir() else place
    predictions = Prediction.all_of(read_table(file, "summary"))
    if as_json:
        print_json({"predictions": [p.as_dict() for p in predictions]})
    else:
        show(predictions, places(predictions, file.parent))


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="port on this machine")] = PORT,
    results: Annotated[Path, typer.Option(help="results folder of the run")] = Path("results"),
) -> None:
    """Open the MLflow UI on the project's database, to compare kernel-model variants."""
    serve(port, Artifacts(str(results)).tracking)
