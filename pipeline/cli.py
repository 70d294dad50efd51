"""The `steptime` command: arguments in, one library call, a table or one JSON object out.

Errors are one line on stderr; the exit code is 2 for bad input and 1 for any other failure.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipeline.answers.kernel_commands import fit_command, predict_command
from pipeline.answers.predict_point import largest_batch, predict_point
from pipeline.config import expand
from pipeline.errors import InputError, SteptimeError
from pipeline.kernels.fit_gpu import FittedFamily
from pipeline.paths import Artifacts
from pipeline.prediction import Prediction
from pipeline.readable import shares
from pipeline.report.artifact_list import places
from pipeline.report.catalogue import gpu_rows, model_rows, option_rows
from pipeline.report.comparison_table import Comparison, Order, Unpredicted, in_order
from pipeline.report.doctor import examine
from pipeline.report.mlflow_tracking import serve
from pipeline.report.show import show
from pipeline.report.terminal_tables import console
from pipeline.schemas import read_table, refuse_overwriting
from pipeline.simulate.rank_report import facts as rank_facts
from pipeline.simulate.rank_report import table as rank_table
from pipeline.simulate.ranks import replay_ranks
from pipeline.simulate.replay import replay as run
from pipeline.simulate.replay_table import table as replay_table
from pipeline.terminal import catalogue, print_json, progress, run_app, working
from pipeline.trace.event_tables import write_events
from pipeline.trace.load import load_trace
from pipeline.transfer.rental_prices import cost_per_million, currency, load_prices
from pipeline.transfer.transfer_command import transfer_command

app = typer.Typer(
    name="steptime",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
kernels_app = typer.Typer(help="Fit kernel models to samples, and predict kernel latencies.", no_args_is_help=True)
app.add_typer(kernels_app, name="kernels")

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="gpu=V100 model=dlrm_default batch_size=2048 and any other override", metavar="KEY=VALUE..."),
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"steptime {version('steptime')}")
        except PackageNotFoundError:  # a checkout that was not installed
            print("steptime (not installed)")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """How long does one training step take, on a GPU you may not have?"""


@app.command()
def predict(overrides: Overrides = None, as_json: Json = False) -> None:
    """Predict one training step: time with interval, active and idle time, memory, evidence."""
    given, results = _results(_overrides(overrides))
    points = expand(given)
    if len(points) > 1:
        raise InputError(f"predict takes one point, but these overrides give {len(points)}: use `steptime compare`")
    with working("predicting"):
        prediction = predict_point(points[0], **results)
    if as_json:
        print_json(prediction.as_dict())
        return

    show([prediction])


@app.command()
def compare(
    overrides: Overrides = None,
    sort: Annotated[
        Order | None, typer.Option(help="order of the rows, best first; else that of the overrides")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict several GPUs, models and batch sizes side by side; the best throughput of each model is marked."""
    points, prices = expand(_overrides(overrides)), load_prices()
    if sort is Order.cost and not prices:
        raise InputError("--sort cost: there are no prices; write config/prices.yaml (docs/transfer.md)")
    predictions, unpredicted, first = [], [], None
    for point in progress(points, "predicting"):
        try:
            predictions.append(predict_point(point))
        except SteptimeError as error:
            unpredicted.append(Unpredicted.of(point, error))
            first = first or error
    if first is not None and not predictions:
        raise first
    largest: dict[str, int | None] = {}
    with working("searching for the largest batches"):
        for point in points:
            key = f"{point.gpu}/{point.model}/{point.variant}"
            if key not in largest:
                with suppress(SteptimeError):  # the step cannot be captured at another batch size
                    largest[key] = largest_batch(point)
    costs = [cost_per_million(prediction, prices) for prediction in predictions]
    if sort is not None:
        predictions, costs = in_order(predictions, costs, sort)
    if as_json:
        rows = [
            p.as_dict() | ({"cost_per_million": c} if prices else {}) for p, c in zip(predictions, costs, strict=True)
        ]
        facts = {"predictions": rows, "unpredicted": [asdict(each) for each in unpredicted], "largest_batch": largest}
        print_json(facts | ({"currency": currency()} if prices else {}))
        return

    console().print(Comparison(predictions, largest, costs, currency(), unpredicted))


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
    rows = examine()
    catalogue(rows, as_json)
    if any(row["status"] == "broken" for row in rows):
        raise typer.Exit(1)


@app.command()
def replay(
    trace: Annotated[Path, typer.Argument(help="PyTorch profiler trace, .json or .json.gz")],
    overheads: Annotated[
        list[Path] | None, typer.Option(help="take host overheads from this trace; may be repeated")
    ] = None,
    calibrate: Annotated[
        int, typer.Option(help="number of iterations of TRACE from which one factor on those overheads is fitted")
    ] = 0,
    rank: Annotated[
        list[Path] | None, typer.Option(help="trace of another rank of the same step; all ranks are simulated together")
    ] = None,
    timeline: Annotated[Path | None, typer.Option(help="write the predicted timeline here, for Perfetto")] = None,
    as_json: Json = False,
) -> None:
    """Predict the iterations of a trace from overheads of other iterations, and compare with the measured times."""
    if rank:
        if overheads or calibrate or timeline:
            raise InputError("--rank takes overheads from the other ranks; remove the other options")
        if len({path.resolve() for path in (trace, *rank)}) <= len(rank):
            raise InputError("--rank: the same trace is given twice; give one trace of each rank")
        _replay_ranks([trace, *rank], as_json)
        return

    result = run(trace, list(overheads or []), timeline=timeline, calibrate=calibrate)
    if as_json:
        print_json(result.as_dict())
        return

    console().print(replay_table(result.as_dict()))


def _replay_ranks(paths: list[Path], as_json: bool) -> None:

    values = rank_facts(paths, replay_ranks(paths))
    if as_json:
        print_json(values)
        return

    console().print(rank_table(values))


@app.command()
def trace(
    trace: Annotated[Path, typer.Argument(help="PyTorch profiler trace, .json or .json.gz")],
    out: Annotated[Path, typer.Option(help="parquet file to write")],
    as_json: Json = False,
) -> None:
    """Convert a profiler trace into a table of linked events."""
    refuse_overwriting(out, trace)
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
        print(f"{facts['events']:,} events, {facts['iterations']} iterations on {facts['device']} -> {out}")
        for note in loaded.notes:
            print(f"note: {note}")


@kernels_app.command("fit")
def kernels_fit(
    samples: Annotated[Path, typer.Option(help="parquet of measured latencies")],
    gpu: Annotated[str, typer.Option(help="the GPU whose rows are fitted")],
    out: Annotated[Path, typer.Option(help="folder for the models")],
    family: Annotated[list[str] | None, typer.Option(help="fit only this family; may be repeated")] = None,
    as_json: Json = False,
) -> None:
    """Fit a kernel model per family and report its error on shapes that were not used for training."""
    done: list[str] = []
    with working(what := "fitting (takes minutes for families with thousands of samples)") as say:

        def tell(fitted: FittedFamily) -> None:
            done.append(fitted.model.family)
            say(f"{what}; done: {', '.join(done)}")

        rows = fit_command(samples, gpu, family, out, on_fit=tell)
    if not as_json:
        percent = {"gmae": "GMAE %", "mape": "MAPE %", "coverage": "in p10-p90 %"}
        rows = [{percent.get(k, k): _percent(v) if k in percent else v for k, v in row.items()} for row in rows]
    catalogue(rows, as_json)


def _percent(share: float | None) -> float | str:
    return "one sample" if share is None else 100 * share


@kernels_app.command("predict")
def kernels_predict(
    gpu: Annotated[str, typer.Option(help="the GPU to predict")],
    source: Annotated[Path, typer.Option("--in", help="parquet of calls: `op` and its dimensions")],
    out: Annotated[Path, typer.Option(help="parquet to write: the same rows with predictions")],
    models: Annotated[
        Path | None, typer.Option(help="folder of models from `kernels fit` (default: the shipped models)")
    ] = None,
    probes: Annotated[
        Path | None, typer.Option(help="a few measured calls on that GPU, to calibrate a transfer")
    ] = None,
    as_json: Json = False,
) -> None:
    """Predict the latency of every row of a table of calls."""
    facts = predict_command(gpu, models, source, out, probes)
    if as_json:
        print_json(facts)
        return

    outside = f", {facts['outside_range']:,} outside the samples' range" if facts["outside_range"] else ""
    print(f"{facts['rows']:,} rows for {facts['gpu']} ({shares(facts['evidence'])}){outside} -> {facts['out']}")


@app.command()
def transfer(
    from_gpu: Annotated[str, typer.Option("--from", help="GPU of the measured rows")],
    to_gpu: Annotated[str, typer.Option("--to", help="GPU to predict")],
    source: Annotated[Path, typer.Option("--in", help="parquet of rows measured on the origin")],
    out: Annotated[Path, typer.Option(help="parquet to write: the same rows with predictions")],
    method: Annotated[str, typer.Option(help="wave, mlp or auto")] = "auto",
    probes: Annotated[Path | None, typer.Option(help="a few rows measured on the destination, to calibrate")] = None,
    as_json: Json = False,
) -> None:
    """Scale latencies measured on one GPU to another."""
    facts = transfer_command(from_gpu, to_gpu, method, source, out, probes)
    if as_json:
        print_json(facts)
        return

    ratio = "" if facts["median_ratio"] is None else f", median ratio {facts['median_ratio']:.3g}"
    print(
        f"{facts['rows']:,} rows {facts['from']} to {facts['to']} ({shares(facts['methods'])}){ratio} -> {facts['out']}"
    )


@app.command()
def summary(
    where: Annotated[
        str, typer.Argument(help="results=FOLDER of a run, or a summary.parquet", metavar="results=FOLDER | FILE")
    ] = "results=results",
    as_json: Json = False,
) -> None:
    """Show the predictions of a pipeline run."""
    key, _, folder = where.rpartition("=")
    file = Path(folder) / "summary.parquet" if key == "results" else Path(where)
    predictions = Prediction.all_of(read_table(file, "summary"))
    if as_json:
        print_json({"predictions": [p.as_dict() for p in predictions]})
    else:
        show(predictions, places(predictions, file.parent))


@app.command()
def ui(
    port: Annotated[int, typer.Option(help="port on this machine")] = 5000,
    results: Annotated[Path, typer.Option(help="results folder of the run")] = Path("results"),
) -> None:
    """Open the MLflow UI on the project's database, to compare kernel-model variants."""
    serve(port, Artifacts(str(results)).tracking)


def _overrides(given: list[str] | None) -> list[str]:
    texts = list(given or [])
    for text in texts:
        if "=" not in text:
            raise InputError(f"{text!r} is not an override: write key=value, for example gpu=V100")
    return texts


def _results(given: list[str]) -> tuple[list[str], dict[str, str]]:
    """The overrides without `results=FOLDER`, and that folder: models that a pipeline run left there may answer."""
    rest = [text for text in given if not text.startswith("results=")]
    return rest, {key: value for key, _, value in (text.partition("=") for text in given) if key == "results"}


def main() -> None:
    """Entry point of `steptime`."""
    run_app(app)


if __name__ == "__main__":
    main()
