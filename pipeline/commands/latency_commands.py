"""Commands that fit kernel models to tables of latencies, predict such tables, and carry them to another GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.answers.kernel_commands import fit_command, predict_command
from pipeline.completion import complete_gpu
from pipeline.hardware.clusters import AUTO
from pipeline.kernels.fit_gpu import FittedFamily
from pipeline.paths import check_file
from pipeline.readable import shares
from pipeline.terminal import Json, catalogue, examples, print_json, working
from pipeline.transfer.transfer_command import transfer_command

Predicted = Annotated[Path, typer.Option(help="parquet to write: the same rows with predictions")]

app = typer.Typer()
kernels_app = typer.Typer(
    help="Fit kernel models to samples, and predict kernel latencies.",
    epilog=examples("kernels fit --samples samples.parquet --gpu V100 --out models"),
    no_args_is_help=True,
)
app.add_typer(kernels_app, name="kernels")


@kernels_app.command(
    "fit", epilog=examples("kernels fit --samples samples.parquet --gpu V100 --out models")
)
def kernels_fit(
    samples: Annotated[Path, typer.Option(help="parquet of measured latencies")],
    gpu: Annotated[
        str, typer.Option(help="the GPU whose rows are fitted", autocompletion=complete_gpu)
    ],
    out: Annotated[Path, typer.Option(help="folder for the models")],
    family: Annotated[
        list[str] | None, typer.Option(help="fit only this family; may be repeated")
    ] = None,
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
        rows = [
            {percent.get(k, k): _percent(v) if k in percent else v for k, v in row.items()}
            for row in rows
        ]
    catalogue(rows, as_json, optional=("folder", "fit_s"))


def _percent(share: float | None) -> float | str:
    return "one sample" if share is None else 100 * share


@kernels_app.command(
    "predict", epilog=examples("kernels predict --gpu V100 --in calls.parquet --out times.parquet")
)
def kernels_predict(
    gpu: Annotated[str, typer.Option(help="the GPU to predict", autocompletion=complete_gpu)],
    source: Annotated[Path, typer.Option("--in", help="parquet of calls: `op` and its dimensions")],
    out: Predicted,
    models: Annotated[
        Path | None,
        typer.Option(help="folder of models from `kernels fit` (default: the shipped models)"),
    ] = None,
    probes: Annotated[
        Path | None, typer.Option(help="a few measured calls on that GPU, to calibrate a transfer")
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="cluster in which collectives run (`steptime clusters`)")
    ] = AUTO,
    as_json: Json = False,
) -> None:
    """Predict the latency of every row of a table of calls."""
    check_file(out, "--out", ("parquet",))
    facts = predict_command(gpu, models, source, out, probes, cluster)
    if as_json:
        print_json(facts)
        return

    outside = (
        f", {facts['outside_range']:,} outside the samples' range" if facts["outside_range"] else ""
    )
    print(
        f"{facts['rows']:,} rows for {facts['gpu']} ({shares(facts['evidence'])}){outside} ->"
        f" {facts['out']}"
    )


@app.command(epilog=examples("transfer --from V100 --to A100 --in v100.parquet --out a100.parquet"))
def transfer(
    from_gpu: Annotated[
        str, typer.Option("--from", help="GPU of the measured rows", autocompletion=complete_gpu)
    ],
    to_gpu: Annotated[
        str, typer.Option("--to", help="GPU to predict", autocompletion=complete_gpu)
    ],
    source: Annotated[Path, typer.Option("--in", help="parquet of rows measured on the origin")],
    out: Predicted,
    method: Annotated[str, typer.Option(help="wave or auto")] = "auto",
    probes: Annotated[
        Path | None, typer.Option(help="a few rows measured on the destination, to calibrate")
    ] = None,
    as_json: Json = False,
) -> None:
    """Scale latencies measured on one GPU to another."""
    check_file(out, "--out", ("parquet",))
    facts = transfer_command(from_gpu, to_gpu, method, source, out, probes)
    if as_json:
        print_json(facts)
        return

    ratio = "" if facts["median_ratio"] is None else f", median ratio {facts['median_ratio']:.3g}"
    print(
        f"{facts['rows']:,} rows {facts['from']} to {facts['to']}"
        f" ({shares(facts['methods'])}){ratio} -> {facts['out']}"
    )
