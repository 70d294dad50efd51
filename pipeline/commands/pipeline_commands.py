"""Commands of the pipeline: run its stages as Snakemake's jobs, show the predictions of a run, and open MLflow's pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.completion import complete_override
from pipeline.errors import InputError
from pipeline.paths import Artifacts
from pipeline.schemas import read_table
from pipeline.show.comparison import show
from pipeline.show.kernel_runs import log_shipped_models
from pipeline.show.run_hooks import artifact_paths, predictions_in
from pipeline.show.run_snakemake import become_snakemake
from pipeline.show.tracking_server import PORT, serve
from pipeline.summary_rows import predictions_of
from pipeline.terminal import MULTIRUN, NO_MULTIRUN, Csv, Json, examples, printed

app = typer.Typer()

DEFAULT_RESULTS = Path("results")


@app.command(
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "run gpu=V100,P100 model=dlrm_default batch_size=512,2048",
        "run figures report gpu=V100 model=resnet50 model.dtype=fp32,fp16",
        "run gpu=V100 model=dlrm_default --dry-run --cores 2",
    ),
)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help=(
                "overrides and targets (default target: the table of all predictions), then options"
                " of Snakemake"
            ),
            metavar="[KEY=VALUE | TARGET]... [OPTION]...",
            autocompletion=complete_override,
        ),
    ] = None,
) -> None:
    """Run the pipeline with Snakemake; it writes tables, figures and timelines under results/ in this folder."""
    if MULTIRUN & set(words or []):
        raise InputError(NO_MULTIRUN)
    become_snakemake(words or [])


@app.command(epilog=examples("summary", "summary --json"))
def summary(
    where: Annotated[
        str,
        typer.Argument(
            help="results=FOLDER of a run, or its summary.parquet", metavar="results=FOLDER | FILE"
        ),
    ] = "results=results",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show the predictions of a pipeline run."""
    key, _, folder = where.rpartition("=")
    path = Path(folder) if key == "results" else Path(where)
    file = path / "summary.parquet" if (path / "summary.parquet").is_file() else path
    predictions = (
        predictions_in(path) if file.is_dir() else predictions_of(read_table(file, "summary"), file)
    )
    rows = [p.as_dict() for p in predictions]
    if not printed(as_json, as_csv, {"predictions": rows}, rows):
        show(predictions, artifact_paths(predictions, path if file.is_dir() else file.parent))


@app.command(epilog=examples("ui", "ui --port 5001 --results results"))
def ui(
    port: Annotated[int, typer.Option(help="port on this machine")] = PORT,
    results: Annotated[Path, typer.Option(help="results folder of the run")] = DEFAULT_RESULTS,
) -> None:
    """Open the MLflow UI on the project's database, to compare kernel models; shipped ones are logged first."""
    if results != DEFAULT_RESULTS and not results.is_dir():
        raise InputError(f"--results {results}: no such folder")
    tracking = Path(Artifacts(str(results)).tracking)
    raise typer.Exit(serve(port, tracking, lambda: log_shipped_models(tracking)))
