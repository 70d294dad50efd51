"""The project's accuracy as one table of means, for README.md and the head of `docs/accuracy.md`.

All numbers come from artifacts, as those of `accuracy_tables.py`. Means of published steps are those that other commands write
into `docs/accuracy.md`.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from evaluation.checks.method_names import FULL, KERNEL_SUM, SHARED, TRACKER_METHOD, TRAIN_MEAN
from evaluation.figures.accuracy_data import mean_errors
from evaluation.pages.accuracy_tables import (
    REPLAY_BARS,
    SHARED_OVERHEADS_BAR,
    TRANSFER_BARS,
    Evidence,
    pair_means,
    percent,
)
from evaluation.pages.markdown import block, markdown
from evaluation.pages.published_rows import held_sentence, published_rows
from evaluation.published.published_errors import published
from pipeline.answers.step_notes import unmeasured_notes
from pipeline.hardware.find_gpu import list_gpus
from pipeline.readable import listed

WHOLE_MODELS_BAR = 10.0
"""Target mean absolute error of whole language models, in %, on a GPU with kernel samples."""

TRANSFER_MODELS_BAR = 8.0
"""Target mean absolute error of whole models, in %, scaled from a measured GPU to a GPU left out of training."""

KERNEL_BOUND = 10.0
"""Target GMAE of every kernel family, in %: the published bound. V100 and A100 also have stricter targets by family."""

OWN_ROW_FAMILIES = ("gemm", "conv2d_forward")
"""Families with a row of their own in the small table: they take most of the device time of most steps."""

OWN_ROW_TITLES = {"gemm": "kernel: matrix product", "conv2d_forward": "kernel: convolution"}


README_ROWS = (
    "kernel: matrix product", "step of a trace, kernel times given", "whole language model",
    "published training step", "whole DLRM step",
)  # fmt: skip
"""Rows of the table of means that the README shows: the first of each name."""


def readme_rows(means: str) -> str:
    """The README's table: the rows of `README_ROWS` of `mean_table`, and the sentence below it."""
    head, dashes, *lines = means.splitlines()
    shown = [
        next((line for line in lines if line.startswith(f"| {name} |")), "") for name in README_ROWS
    ]
    return "\n".join(
        [head, dashes, *filter(None, shown), *[line for line in lines if not line.startswith("|")]]
    )


def mean_table(evidence: Evidence, page: str) -> str:
    """The table of all means.

    Args:
        evidence: the artifacts.
        page: text of `docs/accuracy.md`, whose tables of published steps other commands write.

    Raises:
        InputError: the page lacks a table of published steps.
    """
    rows = [
        *kernel_rows(evidence.kernels),
        *_mean_replays(evidence.spans),
        *_mean_passes(evidence.passes),
        *carried_over_rows(evidence),
        *published_rows(page),
    ]
    table = markdown(
        ["what", "compared with", "our error (%)", "baseline or published (%)", "bar (%)"], rows
    )
    return f"{table}\n\n{held_sentence(block(page, 'published'))} {unmeasured_sentence()}"


def unmeasured_sentence() -> str:
    """The GPUs of architectures of which no card was measured: what is said of the others does not hold for them."""
    names = [gpu.name for gpu in list_gpus() if unmeasured_notes(gpu)]
    return (
        f"Nothing stands behind the times of {listed(names)}: none of their kernels was measured."
    )


def kernel_rows(kernels: pd.DataFrame) -> list[list[str]]:
    """Mean GMAE over GPUs: a row for each of `OWN_ROW_FAMILIES`, one for all other families."""
    rated = kernels[kernels["family"].isin(TRANSFER_BARS)]
    row_family = rated["family"].where(rated["family"].isin(OWN_ROW_FAMILIES), "")
    rows = []
    for family in (*OWN_ROW_FAMILIES, ""):
        errors = 100 * rated.loc[row_family == family, "gmae"]
        if len(errors):
            gpus = rated.loc[row_family == family, "gpu"].nunique()
            rows.append(
                [
                    OWN_ROW_TITLES.get(family, "kernel: other families"),
                    f"held-out shapes, {_count(gpus, 'GPU')}",
                    f"{errors.mean():.1f} (worst {errors.max():.1f})",
                    f"Lin et al. state < {published('kernels')[0].percent:g} for theirs",
                    f"{KERNEL_BOUND:g}",
                ]
            )
    return rows


def _mean_replays(spans: pd.DataFrame) -> Iterable[list[str]]:
    """Mean over public traces: with the trace's own overheads, and with those of other hosts."""
    table = mean_errors(spans).pivot(index="trace", columns="method", values="mean_error")
    wanted = [REPLAY_BARS[name] for name in table.index if name in REPLAY_BARS]
    own = _range(wanted, "g") if wanted else ""
    for title, method, key, bar in (
        ("step of a trace, kernel times given", FULL, "step", own),
        ("the same, overheads of other hosts", SHARED, "step_shared", f"{SHARED_OVERHEADS_BAR:g}"),
    ):
        known = table[table[method].notna()] if method in table else table.head(0)
        if len(known):
            yield [
                title,
                _count(len(known), "public trace"),
                _mean_and_worst(known[method]),
                (
                    f"{simple_methods(known, method)}; Lin et al., GMAE of their"
                    f" DLRM steps {published(key)[0].percent:g}"
                ),
                bar,
            ]


TIE = 0.01
"""Difference of errors (a fraction) below which two methods count as equally good."""


def simple_methods(errors: pd.DataFrame, ours: str) -> str:
    """Mean errors of the baselines, and on how many traces (rows) the mean of other iterations ties with ours."""
    said = f"{KERNEL_SUM} {percent(errors[KERNEL_SUM].mean())}"
    if TRAIN_MEAN not in errors:
        return said
    ties = int((errors[TRAIN_MEAN] < errors[ours] + TIE).sum())
    mean = percent(errors[TRAIN_MEAN].mean())
    return f"{said}; {TRAIN_MEAN} {mean} (as good as ours on {ties} of {len(errors)})"


def _mean_passes(passes: pd.DataFrame) -> Iterable[list[str]]:
    """Mean over all passes of language models on GPUs with kernel samples."""
    error = (passes["predicted_us"] / passes["measured_us"] - 1).abs()
    if len(error):
        gpus = _count(passes["gpu"].nunique(), "GPU")
        yield [
            "whole language model",
            f"{_count(len(error), 'pass', 'passes')} on {gpus}",
            _mean_and_worst(error),
            "",
            f"{WHOLE_MODELS_BAR:g}",
        ]


def carried_over_rows(evidence: Evidence) -> list[list[str]]:
    """Rows of kernels and whole models scaled from a measured GPU to a GPU that was left out of training."""
    means = pair_means(evidence.pairs)
    rows = []
    if len(means):
        gpus = int(evidence.pairs.groupby("family")["destination"].nunique().max())
        tested = (
            f"{_count(len(means), 'family', 'families')}, {_count(gpus, 'GPU')} held out in turn"
        )
        bar = _range([TRANSFER_BARS[family] for family in means.index], "g")
        direct = evidence.left_out.groupby("family")["mape"].mean()
        wave = f"wave scaling {_range(means['wave'])}, from another GPU's measurement"
        rows.append(
            ["kernel on a GPU without samples, from its spec", tested, _range(direct), wave, bar]
        )
    models = evidence.models
    if len(models):
        error = 100 * models["error"].abs().groupby(models["method"]).mean()
        passes = int((models["method"] == TRACKER_METHOD).sum())
        habitat = f"Habitat, on its models {published('transfer')[0].percent:g}"
        rows.append(
            [
                "whole language model carried to another GPU",
                f"{passes} pairs of passes",
                f"{error[TRACKER_METHOD]:.1f}",
                f"wave scaling {error['wave']:.1f}; {habitat}",
                f"{TRANSFER_MODELS_BAR:g}",
            ]
        )
    return rows


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _mean_and_worst(errors: pd.Series) -> str:
    return f"{percent(errors.mean())} (worst {percent(errors.max())})"


def _range(values: Iterable[float], form: str = ".1f") -> str:
    least, most = (f"{bound(list(values)):{form}}" for bound in (min, max))
    return least if least == most else f"{least} to {most}"
