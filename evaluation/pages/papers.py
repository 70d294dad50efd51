"""Writes the tables and figures of `docs/papers.md`: what two papers published beside what Steptime predicts.

It needs no data beyond the checkout: published numbers are in `evaluation/published/facts/`, the rest comes from the packs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from evaluation.checks.lin2022_steps import (
    DLRM_LOOP,
    command,
    predicted_cnn,
    predicted_dlrm,
    question_of,
)
from evaluation.figures import kernel_errors, overhead_plots, paper_figures, transfer_errors
from evaluation.figures.accuracy_data import methods_by_family, model_transfer, published_means
from evaluation.figures.accuracy_inputs import MODEL_ERRORS, PAIR_ERRORS, read_any
from evaluation.pages.lin2022_tables import busy, busy_summary, cnn_summary, dlrm_summary
from evaluation.pages.markdown import markdown, rewrite
from evaluation.published.published_errors import published
from evaluation.published.published_lin2022 import (
    read_cnn,
    read_dlrm,
    read_kernel_errors,
    read_mean_errors,
)
from pipeline.answers.engine import engine
from pipeline.kernels.error_metrics import gmae
from pipeline.model_files import model_folders, shipped_file
from pipeline.paths import transfer_dir
from pipeline.prices import price_notes, prices_of, with_prices
from pipeline.question.question import expand
from pipeline.readable import compact, distinct, rate
from pipeline.show.figures import costs, figure_data, step_times
from pipeline.show.figures.board import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, IMAGES = "docs/papers.md", "docs/images/papers"

MEASURED_GPUS = ("V100", "P100")
"""GPUs of Lin et al. with a pack. The TITAN Xp has none: its kernels are transferred."""

BREAKDOWN_BATCH = 2048
"""Batch size of the paper's figure of dominant operators."""

SHOWN_OPERATORS = 8
"""Operators in the figure of dominant operators."""

RENT = ("gpu=P4000,P100,T4,V100", "model=gnmt", "batch_size=16,32,48")
WORTH = ("gpu=RTX2080Ti,V100", "model=dcgan", "batch_size=64,96,128")
"""Questions of Habitat's two case studies, with its batch sizes (`facts/habitat_batches.csv`)."""


@dataclass(frozen=True)
class Section:
    """A part of the page: the text of its block and its figure."""

    name: str
    text: str
    figure: Figure


def lin_sections(dlrm: pd.DataFrame, cnn: pd.DataFrame) -> Iterable[Section]:
    """The figures of Lin et al.

    Args:
        dlrm: `predicted_dlrm`, of all steps or some.
        cnn: `predicted_cnn`, of all steps or some.
    """
    errors = kernel_errors.kernel_errors(
        [(gpu, folder) for gpu in MEASURED_GPUS for folder in model_folders(gpu)]
    )
    yield Section(
        "kernels",
        kernel_table(errors, [*dlrm["families_us"], *cnn["families_us"]]),
        kernel_errors.family_errors(errors),
    )
    yield Section("steps", step_table(dlrm), paper_figures.measured_beside_predicted(dlrm))
    means = published_means(dlrm, int(dlrm.groupby("gpu").size().max()))  # a test shows some steps
    yield Section(
        "errors",
        f"{error_table(means)}\n\n{dlrm_summary(dlrm)}",
        paper_figures.mean_step_errors(means),
    )
    yield Section("networks", cnn_summary(cnn), paper_figures.published_networks(cnn))
    observations = read_any([str(shipped_file("V100", "overhead_samples.parquet"))]).assign(
        gpu="V100"
    )
    in_dlrm = observations["workload"].str.contains("dlrm")
    observations = observations[in_dlrm & observations["type"].isin(["T1", "T2", "T3", "T4", "T5"])]
    operators = overhead_plots.operators_with_most(observations)
    yield Section(
        "overheads", overhead_table(observations), overhead_plots.dominant_operators(operators)
    )
    shares = operator_shares(distinct(dlrm["model"]))
    figure = paper_figures.bars_by_group(
        shares.head(SHOWN_OPERATORS),
        f"{shares.index[0]} takes {shares.iloc[0].min():.0f} to {shares.iloc[0].max():.0f} % of the"
        " device time",
        f"Predicted, V100, batch {BREAKDOWN_BATCH:,}. The largest operators; all operators of a"
        " model add up to 100 %.",
        name="share of device time (%)",
    )
    yield Section("operators", share_table(shares), figure)
    busy_of = {"Lin et al.": dlrm["published_busy"], "Steptime": busy(dlrm)}
    yield Section("busy", busy_summary(dlrm, busy_of), paper_figures.busy_shares(dlrm))


def _gmae(predicted: pd.Series, measured: pd.Series) -> float:
    return 100 * gmae(predicted.to_numpy(float), measured.to_numpy(float))


def error_table(means: pd.DataFrame) -> str:
    """`published_means` as Markdown."""
    rows = [
        [str(gpu), *(f"{value:.2f}" for value in values)]
        for gpu, *values in means.itertuples(index=False)
    ]
    return markdown(["GMAE of steps in %", *means.columns[1:]], rows)


def kernel_table(errors: pd.DataFrame, steps: Iterable[Mapping[str, float]]) -> str:
    """GMAE by family and GPU, then the families of the steps that have no samples."""
    table = errors.pivot_table(index="family", columns="gpu", values="gmae")[list(MEASURED_GPUS)]
    bound = f"below {published('kernels')[0].percent:g}"
    rows = [
        [str(family), bound, *(f"{100 * value:.2f}" for value in values)]
        for family, values in paper_figures.in_family_order(table, {}).iterrows()
    ]
    lookups = read_kernel_errors().set_index(["method", "tables"])["gmae_pct"]
    theirs = f"{lookups['enhanced', 'all']:g} (V100, later run)"
    rows.append(["embedding_forward", theirs, *["no samples"] * len(MEASURED_GPUS)])
    lacking = sorted({family for step in steps for family in step} - set(table.index))
    said = (
        "Families of these steps without samples on these GPUs, predicted from formulas:"
        f" {', '.join(lacking)}."
    )
    columns = ["family", "Lin et al., GMAE %", *(f"ours, {gpu}" for gpu in table)]
    return f"{markdown(columns, rows)}\n\n{said}"


def step_table(dlrm: pd.DataFrame) -> str:
    """Errors of active time and step by GPU, theirs and ours, and our mean differences of active and idle time."""
    theirs = read_mean_errors().set_index(["what", "gpu"])["gmae_pct"].to_dict()
    lines = []
    for gpu, part in dlrm.groupby("gpu", sort=False):
        active = part["busy"] * part["measured_us"]
        idle = part["predicted_us"] - part["active_us"] - (part["measured_us"] - active)
        ours = (
            f"{_gmae(part['active_us'], active):.1f}",
            f"{_gmae(part['predicted_us'], part['measured_us']):.1f}",
        )
        means = (f"{(part['active_us'] - active).mean() / 1e3:+.2f}", f"{idle.mean() / 1e3:+.2f}")
        lines.append(
            [
                str(gpu),
                f"{theirs['active', gpu]:.1f}",
                ours[0],
                f"{theirs['step', gpu]:.1f}",
                ours[1],
                *means,
            ]
        )
    head = ("GPU", "active: Lin et al. %", "active: ours %", "step: Lin et al. %", "step: ours %")
    return markdown([*head, "ours: mean difference of active ms", "of idle ms"], lines)


def overhead_table(observations: pd.DataFrame) -> str:
    """Times of each type of overhead in the traces of the pack."""
    times = observations.groupby("type")["value_us"].quantile(np.array([0.25, 0.5, 0.75])).unstack()
    counts = observations.groupby("type").size()
    rows = [
        [str(kind), f"{count:,}", *(f"{value:.1f}" for value in row)]
        for (kind, row), count in zip(times.iterrows(), counts, strict=True)
    ]
    return markdown(
        ["type", "times seen", "lower quartile µs", "median µs", "upper quartile µs"], rows
    )


def operator_shares(models: Iterable[str]) -> pd.DataFrame:
    """Share of each operator in the device time of DLRM models on the V100 in %: a row per operator, a column per model."""
    shares = {}
    for model in models:
        question = question_of(command("V100", model, BREAKDOWN_BATCH, DLRM_LOOP))
        calls = engine(None).predict_one(question).whole().calls
        assert calls is not None  # no saved prediction
        times = calls.groupby(calls["name"].map(overhead_plots.shorter))["kernel_us"].sum()
        shares[model] = 100 * times / times.sum()
    table = pd.DataFrame(shares).fillna(0.0)
    return table.loc[table.mean(axis=1).sort_values(ascending=False, kind="stable").index]


def share_table(shares: pd.DataFrame) -> str:
    """The five operators with most device time of each model."""
    rows = [
        [
            str(model),
            *(f"`{operator}` {share:.0f} %" for operator, share in column.nlargest(5).items()),
        ]
        for model, column in shares.items()
    ]
    return markdown(["model", *(f"{number}." for number in range(1, 6))], rows)


def habitat_sections() -> Iterable[Section]:
    """The figures of Habitat that can be had."""
    pairs, models = (read_any([str(transfer_dir() / name)]) for name in (PAIR_ERRORS, MODEL_ERRORS))
    yield Section(
        "pairs", pair_table(models), transfer_errors.errors_by_pair(model_transfer(models))
    )
    methods = methods_by_family(pairs)
    by_family = paper_figures.in_family_order(
        methods.set_index("family"), paper_figures.FAMILY_NAMES
    )
    rows = [
        [str(family), *("" if np.isnan(value) else f"{value:.1f}" for value in values)]
        for family, values in by_family.iterrows()
    ]
    text = markdown(["mean absolute error %", *by_family.columns], rows)
    yield Section("scaling", text, paper_figures.methods_between_gpus(methods))
    for name, question in (("rent", RENT), ("worth", WORTH)):
        yield case_study(name, question)


def pair_table(models: pd.DataFrame) -> str:
    """Mean absolute error of whole models between GPUs by model: ours and wave scaling."""
    errors = models.assign(percent=100 * models["error"].abs())
    table = errors.pivot_table(index="model", columns="method", values="percent")[["both", "wave"]]
    pairs = errors[errors["method"] == "both"].groupby(["origin", "destination"])["percent"].mean()
    rows = [[str(model), *(f"{value:.1f}" for value in row)] for model, row in table.iterrows()]
    said = (
        f"{int((pairs <= published('transfer')[0].percent).sum())} of {len(pairs)} pairs are below"
        f" the published mean of {published('transfer')[0].percent:g} %; from {pairs.min():.1f} to"
        f" {pairs.max():.1f} %."
    )
    columns = ["model", "Steptime, mean absolute error %", "wave scaling alone"]
    return f"{markdown(columns, rows)}\n\n{said}"


def case_study(name: str, question: Iterable[str]) -> Section:
    """A choice of a GPU: throughput at each batch size, and samples per price at the best one."""
    table = step_times.steps(
        engine(None).predict_one(point).whole() for point in expand(list(question))
    )
    best = figure_data.value_for_money(table)
    rows = [
        [
            row["gpu"],
            str(row["batch_size"]),
            rate(row["samples_per_s"]) if row["fits"] else "does not fit",
            compact(row["samples_per_dollar"]) if row["samples_per_dollar"] > 0 else "no price",
        ]
        for row in with_prices(table[["gpu", "batch_size", "samples_per_s", "fits"]]).to_dict(
            "records"
        )
    ]
    gpus = distinct(table["gpu"])
    notes = price_notes(prices_of(gpus), gpus)
    first, *others = best.to_dict("records")
    said = "; ".join(
        f"{other['gpu']} {other['samples_per_s'] / first['samples_per_s']:.2f} times"
        for other in others
    )
    text = markdown(["GPU", "batch", "samples/s", "samples per USD"], rows)
    text += (
        f"\n\nThroughput of the best batch against the {first['gpu']}: {said}.\nPrices:"
        f" {'; '.join(notes)}."
    )
    return Section(name, text, costs.value_for_money(best))


def write(root: Path, *, tiny: bool = False) -> list[Path]:
    """Rewrite the blocks of the page and draw its figures; return the written files.

    Args:
        root: a checkout.
        tiny: predict one batch size of the steps of one GPU, for a test.

    Raises:
        InputError: the page lacks a marker.
    """
    dlrm, cnn = read_dlrm(), read_cnn()
    if tiny:
        dlrm, cnn = (
            rows[(rows["gpu"] == "V100") & rows["batch_size"].isin((16, BREAKDOWN_BATCH))]
            for rows in (dlrm, cnn)
        )
        cnn = cnn.head(1)
    sections = [*lin_sections(predicted_dlrm(dlrm), predicted_cnn(cnn)), *habitat_sections()]
    images = root / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for section in sections:
        save(section.figure, images, section.name, kinds=("svg",))
    rewrite(root / PAGE, {section.name: section.text for section in sections})
    return [root / PAGE, *(images / f"{section.name}.svg" for section in sections)]
