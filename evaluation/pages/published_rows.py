"""Rows of the README about published steps, read from the tables that other commands write into `docs/accuracy.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable

from evaluation.pages.markdown import block, table_rows
from evaluation.pages.published_step_tables import SAME_GPU, TUNED, UNTOUCHED
from pipeline.errors import InputError

_BY_PRECISION = (
    r"(?:in %: |; ){} ([\d.]+) \(fp32, TF32, (\d+) rows\), ([\d.]+) \(fp16, (\d+) rows\)"
)
"""Part of the sentence of `published_step_tables.mean_errors` on a group of rows."""

NOT_AT_HAND = "; its source is not at hand: an earlier version's figure"
"""Said of rows of the README whose measurements were not there when the page was made."""


def published_rows(page: str, missing: Iterable[str] = ()) -> list[list[str]]:
    """Means of the published steps that `docs/accuracy.md` lists; rows used for tuning have rows of their own.

    Args:
        page: text of `docs/accuracy.md`.
        missing: blocks of the page whose sources are not at hand.

    Raises:
        InputError: the page lacks one of the blocks, or its sentence or row.
    """
    said = {name: NOT_AT_HAND for name in missing}
    try:
        steps, gnmt = block(page, "published"), block(page, "translation")
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
            *_group_rows(
                "training step", steps, (UNTOUCHED, SAME_GPU, TUNED), said.get("published", "")
            ),
            *_group_rows("GNMT training step", gnmt, (UNTOUCHED,), said.get("translation", "")),
            *_dlrm_rows(table_rows(block(page, "dlrm")), said.get("dlrm", "")),
            [
                "busy share of a DLRM step (percentage points)",
                f"36 steps of Lin et al.{said.get('busy', '')}",
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
                f"Lin et al. GMAE {lin['Lin et al.']['GMAE %']}{said.get('busy', '')}",
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
            f"docs/accuracy.md: {str(error) or 'a table row'} is missing; run benchmarks/steps/*.py"
            " --write docs/accuracy.md"
        ) from None
    return rows


def _group_rows(what: str, text: str, groups: Iterable[str], note: str) -> list[list[str]]:
    """A row per group of rows that the sentence of mean errors names."""
    rows = []
    for group in groups:
        if said := re.search(_BY_PRECISION.format(re.escape(group)), text):
            full, full_rows, half, half_rows = said.groups()
            counts = f"{int(full_rows) + int(half_rows)} steps, {group}{note}"
            rows.append([f"published {what}", counts, _by_precision(full, half), "", ""])
        elif group == UNTOUCHED:
            raise KeyError(f"the mean error of {what}s")
    return rows


def _dlrm_rows(table: list[dict[str, str]], note: str) -> list[list[str]]:
    """Mean absolute error of all training steps of DLRM, by GPU; rows of several kinds of steps are weighted by their number."""
    rows = []
    for gpu in ("V100", "A100"):
        means, count = [], 0
        for precision in ("fp32 or TF32", "fp16"):
            kinds = [
                row
                for row in table
                if row["step"].startswith("train") and row["step"].endswith(f", {precision}")
            ]
            counts = [int(row[f"{gpu}: rows"]) for row in kinds]
            errors = [float(row[f"{gpu}: mean absolute %"] or 0) for row in kinds]
            if not sum(counts):
                raise KeyError(f"the error of DLRM steps of the {gpu} in {precision}")
            means.append(
                f"{sum(n * e for n, e in zip(counts, errors, strict=True)) / sum(counts):.1f}"
            )
            count += sum(counts)
        name = f"{count} steps of NVIDIA's example, tables one by one included{note}"
        rows.append([f"published DLRM training step, {gpu}", name, _by_precision(*means), "", ""])
    return rows


def _by_precision(full: str, half: str) -> str:
    return f"{full} (fp32, TF32), {half} (fp16)"


def held_sentence(text: str) -> str:
    """How many published steps lie inside p10 to p90, and in the right order, from the page's tables of them."""
    rows = table_rows(text[text.find("| inside p10 to p90") :])
    said = [
        f"Of published steps on GPUs not used for tuning, {row[UNTOUCHED]} lie inside p10 to p90;"
        " the target is 80 %."
        for row in rows
        if row.get("inside p10 to p90") == "all"
    ]
    order = re.search(
        r"Of \d+ pairs of GPUs in training, \d+ are predicted in the right order\.", text
    )
    return " ".join([*said, *([order.group()] if order else [])])
