"""Predicts again the steps that others measured and published, and compares: `python -m evaluation.compare_published --write`.

The pages under `docs/accuracy/` hold the rows (`SOURCES`), each with the command that predicts it. Each command goes through the
same door as a user's. With `--write`, predictions, errors and summaries of the pages are replaced; what was measured stays.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.checks.lin2022_steps import OTHER_LOOPS, predicted_cnn, predicted_dlrm
from evaluation.checks.step_accuracy import with_errors
from evaluation.figures.paper_figures import published_networks
from evaluation.pages import lin2022_tables, scaling_tables
from evaluation.pages.markdown import block, rewrite, whole_text
from evaluation.pages.measured_campaigns import asked_without_a_host
from evaluation.pages.step_tables import (
    coverage,
    is_half,
    mean_errors,
    precisions,
    read_steps,
    summary,
    table,
)
from evaluation.workloads.gnmt_step import LENGTH_BUCKETS
from pipeline.answers.engine import Engine
from pipeline.answers.model_sources import AvailableModels
from pipeline.arrays import Array
from pipeline.errors import SteptimeError
from pipeline.palette import series_colours
from pipeline.paths import campaign_gpus, project_dir
from pipeline.prediction import Prediction
from pipeline.question.question import Question, expand
from pipeline.show.figures.board import MARKERS, Board, Page, marks, rows_height, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = Path("docs") / "accuracy.md"

SOURCES = {
    "published": "training steps",
    "dlrm": "DLRM training steps",
    "translation": "GNMT training steps",
    "many_gpus": "training steps on many GPUs",
    "fsdp": "training steps with sharded weights",
    "hybrid": "training steps with spread tables",
    "default": "our steps with the usual host",
}
"""Block of a page with the summary of a source, beside `<block> steps` with its rows -> what its training steps are called.
The rows of `default` are those of the campaigns under `measurements/`."""

CLOSE = 1.25
"""Ratio of measured speeds below which a pair of GPUs is close: more than the usual error of a prediction."""

SAME_SPEED = 0.05
"""Difference of log speed up to which two rows count as equally fast."""

MEAN_US = ("predicted_us", "active_us", "host_us", "p10_us", "p90_us")
"""Times of a prediction of which batches of several lengths have a mean."""


def shipped_models() -> Engine:
    """What answers commands: each model is read once."""
    return Engine(AvailableModels(results=None))


def answer(command: str, engine: Engine) -> Prediction:
    """What a command answers: `steptime predict ...` or, for a mean over lengths, `steptime compare ...`.

    Raises:
        SteptimeError: it cannot be answered; the message begins with the command.
    """
    _, _, *overrides = shlex.split(command)
    try:
        questions = expand(overrides)
        found = [engine.predict_one(question, detail=False).whole() for question in questions]
    except SteptimeError as error:
        raise SteptimeError(f"{command}: {error}") from None
    return found[0] if len(found) == 1 else mean_step(questions, found)


def mean_step(questions: Sequence[Question], found: Sequence[Prediction]) -> Prediction:
    """The mean step over batches of several lengths, by the share of each; the errors of lengths are fully correlated."""
    share_of = dict(LENGTH_BUCKETS)
    shares = [share_of[question.workload["options"]["tokens"]] for question in questions]
    means = {
        name: float(np.average([getattr(one, name) for one in found], weights=shares))
        for name in MEAN_US
    }
    return replace(found[-1], **means)  # type: ignore[arg-type]


def compare(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with what their commands answer, and the errors (`with_errors`).

    Raises:
        SteptimeError: a command cannot be answered.
    """
    engine = shipped_models()
    return with_errors(rows, [answer(command, engine) for command in rows["command"]])


def speeds_apart(rows: pd.DataFrame) -> Array:
    """Differences of the log samples per second of each two rows, measured and predicted, shape (2, rows, rows)."""
    sizes = rows["batch_size"].to_numpy(float)
    speeds = np.log(sizes / rows[["measured_us", "predicted_us"]].to_numpy().T)
    apart: Array = speeds[:, :, None] - speeds[:, None]
    return apart


def right_order(rows: pd.DataFrame) -> str:
    """A sentence: of how many pairs of GPUs the order is right, by samples per second of a workload, and of close ones alone."""
    found = [np.zeros((2, 0))]
    for _, group in rows.groupby(["step", precisions(rows)]):
        gpu = group["gpu"].to_numpy()
        found.append(speeds_apart(group)[:, np.triu(gpu[:, None] != gpu)])
    measured, predicted = np.hstack(found)
    near, right = np.abs(measured) < np.log(CLOSE), measured * predicted > 0
    if not len(right):
        return ""
    said = (
        f"Of {len(right)} pairs of GPUs in training, {right.sum()} are predicted in the right order"
    )
    alone = f"; of the {near.sum()} that are less than {CLOSE:g} times apart, {right[near].sum()}"
    return f"{said}{alone if near.any() else ''}."


def told(rows: pd.DataFrame, what: str) -> str:
    """The summary of a source: errors by step, means, order of GPUs, memory, and rows inside p10 to p90."""
    training = rows[rows["step"].str.contains("train")]
    sentences = [
        mean_errors(training, what),
        right_order(training),
        f"All these batches ran; {rows['fits'].sum()} of {len(rows)} are predicted to fit in"
        " memory.",
    ]
    said = " ".join(filter(None, sentences))
    texts = summary(rows), said, of_another_program(rows), coverage(rows)
    return "\n\n".join(filter(None, texts))


def of_another_program(rows: pd.DataFrame) -> str:
    """A sentence on HugeCTR's rows: their errors after one factor, which is fitted to them, and the order of their speeds."""
    own = rows[rows["step"].str.contains("HugeCTR")]
    if own.empty:
        return ""
    ratio = np.log(own["predicted_us"] / own["measured_us"])
    errors = np.abs(np.expm1(ratio - ratio.mean()))
    measured, predicted = speeds_apart(own)
    pairs = np.triu(np.abs(measured) > SAME_SPEED)
    right = pairs & (measured * predicted > 0)
    return (
        f"HugeCTR's {len(own)} rows are predicted {np.exp(ratio.mean()):.2f} times as long as"
        " measured. After this one factor, which is fitted to them, the mean absolute error is"
        f" {100 * errors.mean():.1f} %. The order of samples per second and GPU is right for"
        f" {right.sum()} of {pairs.sum()} pairs that differ by more than {100 * SAME_SPEED:.0f} %."
    )


def picture(rows: pd.DataFrame) -> Figure:
    """Errors of training steps by GPU, a panel per precision."""
    training = rows[rows["step"].str.contains("train") & ~rows["precision"].str.contains("NHWC")]
    order = sorted(training["gpu"].unique())
    reach = 105 * training["error"].abs().max()
    page = Page(9.0, 2, 2.0)
    board = Board([rows_height(order, page)] * 2, page)
    steps = sorted(training["step"].unique())
    colours, markers = series_colours(steps), dict(zip(steps, MARKERS, strict=False))
    for axes, (half, group) in zip(board.panels, training.groupby(is_half(training)), strict=True):
        for step, own in group.groupby("step"):
            where = [order.index(gpu) for gpu in own["gpu"]]
            axes.plot(100 * own["error"], where, markers[str(step)], color=colours[str(step)])
        axes.axvline(0, color="black", linewidth=0.8)
        axes.axvspan(-20, 20, color="0.93", zorder=0)
        axes.set_xlim(-reach, reach)
        board.label_rows(axes, order)
        board.number_ticks(axes)
        board.names(axes, "predicted / measured − 1 (%)")
        board.title(axes, "fp16" if half else "fp32 or TF32")
    within = 100 * float((training["error"].abs() <= 0.2).mean())
    mean = 100 * float(training["error"].abs().mean())
    board.headline(
        f"{len(training)} published training steps on {len(order)} GPUs: mean error {mean:.1f} %, "
        f"{within:.0f} % of them within 20 %"
    )
    board.legend(marks(colours.values()), steps)
    board.note("Measured: Lambda Labs and NVIDIA. Grey: within 20 %.")
    return board.figure


def lin2022_blocks(_: str) -> tuple[dict[str, str], dict[str, Figure]]:
    """The blocks of the page on Lin et al.'s steps, and the figure of errors of the convolutional networks.

    The rows ship with the errors of other predictions (`evaluation/published/facts/`).
    """
    dlrm, cnn = predicted_dlrm(), predicted_cnn()
    others = {name: predicted_dlrm(loop=loop) for name, loop in OTHER_LOOPS.items()}
    blocks = {
        "lin2022 dlrm": lin2022_tables.dlrm_summary(dlrm),
        "lin2022 cnn": lin2022_tables.cnn_summary(cnn),
        "lin2022 dlrm steps": lin2022_tables.table(dlrm),
        "lin2022 cnn steps": lin2022_tables.table(cnn),
        "busy": lin2022_tables.busy_tables(dlrm, others),
    }
    return blocks, {"networks": published_networks(cnn)}


def scaling_blocks(page: str) -> tuple[dict[str, str], dict[str, Figure]]:
    """The blocks of the page on scaling efficiencies; no figure."""
    rows = scaling_tables.read_scaling(block(page, "scaling steps"))
    engine = shipped_models()
    several = [answer(command, engine).several for command in rows["command"]]
    rows = scaling_tables.with_predictions(rows, [*map(EFFICIENCY, several)])
    blocks = {"scaling": scaling_tables.summary(rows), "scaling steps": scaling_tables.table(rows)}
    return blocks, {}


EFFICIENCY = attrgetter("efficiency", "efficiency_p10", "efficiency_p90")
"""The efficiency of several GPUs with its interval."""

BLOCKS = {"lin2022": lin2022_blocks, "scaling": scaling_blocks}
"""Sources with tables of their own -> what makes their blocks and figures from the text of the page."""


def main(arguments: Iterable[str] | None = None) -> int:
    """Compare the rows of some sources; print their tables and, where asked for, write and draw them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sources", nargs="*", choices=[*SOURCES, *BLOCKS, []], help="all, if none is named"
    )
    parser.add_argument(
        "--gpu", nargs="+", help="only the rows of these GPUs, which are not written"
    )
    parser.add_argument("--write", action="store_true", help="replace the tables of the pages")
    parser.add_argument("--draw", type=Path, help="folder for published.svg and networks.png")
    options = parser.parse_args(None if arguments is None else list(arguments))
    page = project_dir() / PAGE
    try:
        for name in options.sources or (*SOURCES, *BLOCKS):
            if name in BLOCKS:
                if options.gpu:
                    continue  # these tables are of all their GPUs
                blocks, figures = BLOCKS[name](whole_text(page))
            else:
                rows = (
                    asked_without_a_host(campaign_gpus())
                    if name == "default"
                    else read_steps(block(whole_text(page), f"{name} steps"))
                )
                rows = rows[rows["gpu"].isin(options.gpu)] if options.gpu else rows
                if rows.empty:
                    continue
                print(f"{name}: {len(rows)} steps", file=sys.stderr)
                rows = compare(rows)
                blocks = {f"{name} steps": table(rows), name: told(rows, SOURCES[name])}
                figures = {"published": picture(rows)} if name == "published" else {}
            print("\n\n".join(blocks.values()))
            if options.write and not options.gpu:
                rewrite(page, blocks)
            for file, figure in figures.items() if options.draw else ():
                save(
                    figure, options.draw, file, kinds=("svg",) if file == "published" else ("png",)
                )
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
