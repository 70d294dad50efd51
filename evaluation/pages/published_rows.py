"""Rows of the README about published steps, read from the tables that other commands write into `docs/accuracy.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from evaluation.pages.markdown import block, table_rows
from evaluation.pages.step_tables import GROUPS, SAME_GPU, TUNED, UNTOUCHED
from pipeline.errors import InputError

_BY_PRECISION = (
    r"(?:in %: |; ){} ([\d.]+) \(fp32, TF32, (\d+) rows\), ([\d.]+) \(fp16, (\d+) rows\)"
)
"""Part of the sentence of `step_tables.mean_errors` on a group of rows."""


def published_rows(page: str) -> list[list[str]]:
    """Means of the published steps that `docs/accuracy.md` lists; rows used for tuning have rows of their own.

    Args:
        page: text of `docs/accuracy.md` and of the files beside it.

    Raises:
        InputError: the page lacks one of the blocks, or its sentence or row.
    """
    try:
        busy = {
            row["busy share predicted by"]: row["mean absolute"]
            for row in table_rows(block(page, "busy"))
        }
        theirs = next(name for name in busy if name.startswith("Lin et al."))
        lin = {
            row["36 DLRM steps, predicted by"].partition(",")[0]: row
            for row in table_rows(block(page, "lin2022 dlrm"))
        }
        cnn = {
            row["18 steps, mean absolute error %"]: row["all"]
            for row in table_rows(block(page, "lin2022 cnn"))
        }
        rows = [
            *_group_rows("training step", block(page, "published"), GROUPS),
            *_group_rows("GNMT training step", block(page, "translation"), (UNTOUCHED,)),
            *_group_rows("DLRM training step", block(page, "dlrm"), (SAME_GPU, TUNED)),
            [
                "busy share of a DLRM step (percentage points)",
                "36 steps of Lin et al.",
                busy["Steptime, their loop"],
                f"Lin et al. {busy[theirs]}",
                "",
            ],
            [
                "whole DLRM step",
                "36 steps of Lin et al.",
                (
                    f"GMAE {float(lin['Steptime']['GMAE %']):.1f}, mean"
                    f" {lin['Steptime']['mean absolute %']}"
                ),
                f"Lin et al. GMAE {lin['Lin et al.']['GMAE %']}",
                "",
            ],
            [
                "whole step of a convolutional network",
                "18 steps of Lin et al.",
                cnn["Steptime"],
                f"Lin et al. {cnn['Lin et al.']}; "
                + "; ".join(f"{n} {cnn[n]}" for n in ("Habitat", "MLPredict")),
                "",
            ],
        ]
    except (KeyError, StopIteration) as error:
        raise InputError(
            f"docs/accuracy.md: {str(error) or 'a table row'} is missing; run python -m"
            " evaluation.compare_published --write"
        ) from None
    return rows


def _group_rows(what: str, text: str, groups: Iterable[str]) -> list[list[str]]:
    """A row per group of rows that the sentence of mean errors names."""
    rows = []
    for group in groups:
        if said := re.search(_BY_PRECISION.format(re.escape(group)), text):
            full, full_rows, half, half_rows = said.groups()
            counts = f"{int(full_rows) + int(half_rows)} steps, {group}"
            errors = f"{full} (fp32, TF32), {half} (fp16)"
            rows.append([f"published {what}", counts, errors, "", ""])
    if not rows:
        raise KeyError(f"the mean error of {what}s")
    return rows


def held_sentence(text: str) -> str:
    """How many published steps lie inside p10 to p90, and in the right order, from the page's tables of them."""
    rows = table_rows(text[text.find("| inside p10 to p90") :])
    said = [
        f"Of published steps on GPUs not used for tuning, {row[UNTOUCHED]} lie inside p10 to p90;"
        " the target is 80 %."
        for row in rows
        if row.get("inside p10 to p90") == "all"
    ]
    order = re.search(r"Of \d+ pairs of GPUs in training, (?:[\w ,;]|\.\d)+\.", text)
    return " ".join([*said, *([order.group()] if order else [])])
