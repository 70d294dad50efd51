"""Tables of published scaling efficiencies: throughput of N GPUs over N times that of one, beside what a command predicts.

The table of the page is the only place of these rows: it is read, predicted again and written (`evaluation/compare_published.py`).
"""

from __future__ import annotations

import pandas as pd

from evaluation.pages.markdown import markdown, table_rows
from pipeline.errors import InputError

HEAD = (
    "machine",
    "what states its fabric",
    "model",
    "dtype",
    "batch of a GPU",
    "measured (%)",
    "predicted (%)",
    "difference",
    "command",
)
GIVEN = ("machine", "stated", "model", "dtype", "batch_size", "measured", "command")
"""Columns of the rows that are read; `measured` is an efficiency in %."""


def read_scaling(text: str) -> pd.DataFrame:
    """The rows of a page's table (`GIVEN`).

    Raises:
        InputError: the text has no such table.
    """
    shown = pd.DataFrame(table_rows(text))
    try:
        rows = shown[[*HEAD[:6], "command"]].set_axis(list(GIVEN), axis="columns")
        return rows.assign(
            measured=rows["measured"].astype(float), command=rows["command"].str.strip("`")
        )
    except (KeyError, ValueError) as error:
        raise InputError(f"a table of scaling: {error} is missing or no number") from None


def with_predictions(rows: pd.DataFrame, efficiencies: list[float]) -> pd.DataFrame:
    """The rows with `predicted` (%), and `points`, the difference in percentage points."""
    found = rows.assign(predicted=[100 * each for each in efficiencies])
    return found.assign(points=found["predicted"] - found["measured"])


def summary(rows: pd.DataFrame) -> str:
    """Table by machine, and of all: mean absolute difference and the worst row."""
    groups = [*rows.groupby(["machine", "stated"]), (("**all**", ""), rows)]
    lines = []
    for (machine, stated), group in groups:
        worst = group.loc[group["points"].abs().idxmax()]
        mean = f"{group['points'].abs().mean():.1f}"
        of_worst = f"{worst['points']:+.1f} ({worst['model']}, {worst['dtype']})"
        lines.append([str(machine), str(stated), str(len(group)), mean, of_worst])
    return markdown([*HEAD[:2], "rows", "mean difference (points)", "worst (points)"], lines)


def table(rows: pd.DataFrame) -> str:
    """Table with one line per row (`HEAD`)."""
    shown = rows.assign(command="`" + rows["command"] + "`")
    for name, form in (("measured", "{:.1f}"), ("predicted", "{:.1f}"), ("points", "{:+.1f}")):
        shown[name] = shown[name].map(form.format)
    return markdown(
        HEAD, shown[[*GIVEN[:6], "predicted", "points", "command"]].astype(str).to_numpy()
    )
