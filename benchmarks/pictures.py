"""Draw pictures of docs/kernels.md, docs/transfer.md and docs/replay.md from shipped models and results of the checks.

    python benchmarks/pictures.py [--results results] [--out docs/images]

`kernels.svg` and `transfer.svg` need only `packs/`. `replays.svg` is drawn if `snakemake -- checks` has run, which needs the
public data. `make readme` draws the other pictures of the docs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.figures.accuracy_data import mean_errors
from evaluation.figures.accuracy_inputs import PAIR_ERRORS
from evaluation.figures.kernel_errors import kernel_errors
from evaluation.figures.measured_errors import replay_errors
from evaluation.pages.accuracy_tables import TRANSFER_BARS
from evaluation.pages.readme_tables import shipped_families
from evaluation.published.published_errors import published
from pipeline.answers.kernel_commands import predict_command
from pipeline.palette import SERIES
from pipeline.paths import project_dir, transfer_dir
from pipeline.readable import span
from pipeline.show.figures.board import FAMILY_ORDER, MARKERS, NOTE, Board, Page, plain_ticks, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SWEPT_GPUS = ("A100-PCIE-40GB", "V100", "T4", "L4")
"""GPUs of the throughput curves: three with their own models, and one (L4) known only by its spec file."""

LAYER_WIDTH = 1024
"""Width of the linear layer in the throughput curves. It is large and needs no padding, so only the batch has an effect."""

MAX_ROWS = 1536
"""Largest batch of the throughput curves, in rows."""

METHODS = {
    "wave": "wave scaling",
    "mlp": "ratio of a network (published form)",
    "roofline": "ratio of rooflines",
    "auto": "auto",
    "auto, 10 probes": "auto, with 10 probes",
}
"""Methods of `pair_errors.csv` in the picture, and their labels."""


def kernels() -> Figure:
    """Held-out errors of the shipped models by family, and predicted throughput of a linear layer by batch size."""
    board = Board([3.4, 3.4], Page(11.0, 2, 1.5), grid="both")
    left, right = board.panels
    errors = kernel_errors(shipped_families())
    errors = errors[errors["family"].isin(FAMILY_ORDER)]
    half = errors["gpu"].astype(str).str.endswith("(bf16)")
    series = errors["gpu"].astype(str).where(~half, "nine newer GPUs: bf16")
    colours: dict[str, str] = {}
    for (gpu, own), colour, marker in zip(
        errors.groupby(series, sort=True), SERIES, MARKERS, strict=False
    ):
        colours[str(gpu)] = colour
        where = [FAMILY_ORDER.index(str(name)) for name in own["family"]]
        left.plot(100 * own["gmae"], where, marker, color=colour, label=str(gpu))
    bound = published("kernels")[0]
    left.axvline(
        bound.percent,
        color="black",
        linestyle="--",
        linewidth=1,
        label=f"published bound\n({bound.source})",
    )
    board.label_rows(left, FAMILY_ORDER)
    board.names(left, "GMAE on shapes not trained on (%)")
    left.set(xscale="log", xlim=(0.15, 200))
    plain_ticks(left.xaxis)
    left.grid(visible=False, axis="y")
    left.legend(frameon=False, fontsize=7, loc="lower right")  # right of the bound
    board.title(left, "Held-out error by family")
    _sweep(board, right, colours)
    return board.figure


def _sweep(board: Board, axes: Axes, colours: dict[str, str]) -> None:
    """Draw throughput of a linear layer by rows of its input, with the p10 to p90 interval; GPUs keep their colours."""
    rows = np.arange(32, MAX_ROWS + 1, 16)
    calls = pd.DataFrame({"op": "linear", "B": 1, "M": rows, "N": LAYER_WIDTH, "K": LAYER_WIDTH})
    for gpu in SWEPT_GPUS:
        colour = colours.get(gpu, "#555555")
        with tempfile.TemporaryDirectory() as folder:
            source, out = Path(folder) / "calls.parquet", Path(folder) / "predicted.parquet"
            calls.to_parquet(source)
            predict_command(gpu, None, source, out)
            found = pd.read_parquet(out)
        kind = str(found["evidence"].iloc[0])
        teraflops = 2e-6 * rows * LAYER_WIDTH * LAYER_WIDTH
        scale = found["predicted_us"] / found["kernel_us"]
        axes.plot(
            rows,
            teraflops / found["kernel_us"],
            color=colour,
            linewidth=1.3,
            label=f"{gpu} ({kind})",
            linestyle="-" if kind == "pack" else "--",
        )
        axes.fill_between(
            rows,
            teraflops / found["p90_us"] * scale,
            teraflops / found["p10_us"] * scale,
            color=colour,
            alpha=0.18,
            linewidth=0,
        )
    board.names(
        axes,
        f"rows of the input (batch) of a {LAYER_WIDTH} × {LAYER_WIDTH} linear layer",
        "TFLOP/s (fp32)",
    )
    axes.set(xlim=(0, MAX_ROWS), ylim=(0, None))
    axes.legend(frameon=False, fontsize=7, loc="lower right", ncols=2)
    board.number_ticks(axes)
    board.title(axes, "Predicted throughput: a new wave begins at each drop")


def transfer(errors: pd.DataFrame) -> Figure:
    """Errors on a GPU left out of training by family and method, and the project's bar for `auto`.

    Args:
        errors: `pair_errors.csv`: family, origin, destination, method, mape (%).
    """
    means = errors.groupby(["family", "method"])["mape"].mean().unstack()
    board = Board([2.4], Page(8.0, 1, 1.5))
    (axes,) = board.panels
    handles = []
    colours = ("#999999", SERIES[1], SERIES[4], SERIES[0], SERIES[2])
    for (method, label), colour, marker in zip(
        METHODS.items(), colours, ("x", "^", "s", "o", "D"), strict=True
    ):
        handles += axes.plot(
            means[method].reindex(FAMILY_ORDER),
            range(len(FAMILY_ORDER)),
            marker,
            color=colour,
            label=label,
        )
    bars = [TRANSFER_BARS[name] for name in FAMILY_ORDER]
    handles += axes.plot(
        bars, range(len(FAMILY_ORDER)), "|", color="black", markersize=16, label="bar for auto"
    )
    for row, percent in enumerate(means["auto"].reindex(FAMILY_ORDER)):
        axes.annotate(
            f"{percent:.0f}",
            (percent, row),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=NOTE,
        )
    ours, wave = means["auto"].reindex(FAMILY_ORDER), means["wave"].reindex(FAMILY_ORDER)
    board.headline(
        f"Kernels on a GPU left out of training: auto errs by {span(ours.min(), ours.max(), ' %')},"
        f" wave scaling by {span(wave.min(), wave.max(), ' %')}"
    )
    board.label_rows(axes, FAMILY_ORDER)
    board.names(axes, "MAPE above twice the latency floor (%)")
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    board.legend(handles, [str(mark.get_label()) for mark in handles])
    board.note(
        "Mean over the ordered pairs of V100, P100, P4, T4 and A100; the destination was left out"
        " of training."
    )
    return board.figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=project_dir() / "docs" / "images")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    drawn = {"kernels": kernels(), "transfer": transfer(pd.read_csv(transfer_dir() / PAIR_ERRORS))}
    replays = options.results / "checks" / "replays.parquet"
    if replays.is_file():
        drawn["replays"] = replay_errors(mean_errors(pd.read_parquet(replays)))
    for name, figure in drawn.items():
        save(figure, options.out, name, kinds=("svg",))
        print(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
