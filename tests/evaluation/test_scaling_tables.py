"""Tables of scaling efficiencies: what is read is what was written, and what is summed up."""

from __future__ import annotations

import pandas as pd
import pytest

from evaluation.pages import scaling_tables
from evaluation.pages.markdown import table_rows
from pipeline.errors import InputError

ROWS = pd.DataFrame(
    [
        ("2x A", "the page", "resnet50", "fp32", "128", 90.0, "steptime predict gpu=A"),
        ("2x A", "the page", "bert_base", "fp16", "8", 80.0, "steptime predict gpu=A b"),
        ("4x B", "a script", "resnet50", "fp32", "64", 70.0, "steptime predict gpu=B"),
    ],
    columns=list(scaling_tables.GIVEN),
)
PREDICTED = [(0.91, 0.85, 0.95), (0.75, 0.7, 0.78), (0.72, 0.6, 0.8)]


def test_rows_are_read_as_they_were_written() -> None:
    shown = scaling_tables.table(scaling_tables.with_predictions(ROWS, PREDICTED))
    pd.testing.assert_frame_equal(scaling_tables.read_scaling(shown), ROWS)
    with pytest.raises(InputError, match="a table of scaling"):
        scaling_tables.read_scaling(shown.replace("command", "order"))


def test_each_machine_has_its_mean_and_its_worst_row() -> None:
    rows = table_rows(scaling_tables.summary(scaling_tables.with_predictions(ROWS, PREDICTED)))
    means = {row["machine"]: row["mean difference (points)"] for row in rows}
    assert means == {
        "2x A": "3.0",
        "4x B": "2.0",
        "**all that did not set it**": "2.0",
        "**all**": "2.7",
    }
    assert rows[0]["worst (points)"] == "-5.0 (bert_base, fp16)"
    assert [row["inside p10 to p90"] for row in rows] == ["1 of 2", "1 of 1", "1 of 1", "2 of 3"]
