"""Tables of published scaling efficiencies: throughput of N GPUs over N times that of one, beside what a command predicts.

The table of the page is the only place of these rows: it is read, predicted again and written (`evaluation/compare_published.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from evaluation.pages.markdown import markdown, table_rows
from evaluation.pages.step_tables import counted
from pipeline.errors import InputError

HEAD = (
    "machine",
    "what states its fabric",
    "model",
    "dtype",
    "batch of a GPU",
    "measured (%)",
    "predicted (%)",
    "p10 to p90",
    "difference",
    "command",
)
GIVEN = ("machine", "stated", "model", "dtype", "batch_size", "measured", "command")
"""Columns of the rows that are read; `measured` is an efficiency in %."""

ENDS = ("predicted", "low", "high")
"""Columns of a predicted efficiency and its p10 and p90, in %."""


def read_scaling(text: str) -> pd.DataFrame:
    """The rows of a page's table (`GIVEN`).

    Raises:
        InputError: the text has no such table.
    """
    shown = pd.DataFrame(table_rows(text))
    try:
        rows = shown[[*HEAD[:6], "command"]].set_axis(GIVEN, axis=1)
        return rows.assign(
            measured=rows["measured"].astype(float), command=rows["command"].str.strip("`")
        )
    except (KeyError, ValueError) as error:
        raise InputError(f"a table of scaling: {error} is missing or no number") from None


def with_predictions(rows: pd.DataFrame, found: Sequence[Sequence[float]]) -> pd.DataFrame:
    """The rows with `predicted` (%), its `low` and `high`, and `points`, the difference in percentage points.

    Args:
        rows: what was measured.
        found: the efficiency of each row, its p10 and its p90.
    """
    rows = rows.assign(**dict(zip(ENDS, 100 * np.transpose(found), strict=True)))
    return rows.assign(points=rows["predicted"] - rows["measured"])


def summary(rows: pd.DataFrame) -> str:
    """Table by machine, of those that set no width of an interval (every second, by name), and of all."""
    judges = rows["machine"].isin(np.unique(rows["machine"])[1::2])
    groups = [
        *rows.groupby(["machine", "stated"]),
        (("**all that did not set it**", ""), rows[judges]),
        (("**all**", ""), rows),
    ]
    lines = []
    for (machine, stated), group in groups:
        apart = group["points"].abs()
        worst = group.loc[apart.idxmax()]
        of_worst = f"{worst['points']:+.1f} ({worst['model']}, {worst['dtype']})"
        inside = group["measured"].between(group["low"], group["high"])
        lines.append([machine, stated, f"{apart.mean():.1f}", of_worst, counted(inside)])
    heads = [*HEAD[:2], "mean difference (points)", "worst (points)", "inside p10 to p90"]
    return markdown(heads, lines)


def table(rows: pd.DataFrame) -> str:
    """Table with one line per row (`HEAD`)."""
    shown = rows.assign(command="`" + rows["command"] + "`")
    for name in ("measured", *ENDS):
        shown[name] = shown[name].map("{:.1f}".format)
    shown["points"] = shown["points"].map("{:+.1f}".format)
    shown["ends"] = shown["low"] + " to " + shown["high"]
    columns = [*GIVEN[:6], "predicted", "ends", "points", "command"]
    return markdown(HEAD, shown[columns].astype(str).to_numpy())
