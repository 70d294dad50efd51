"""The page of compiled steps: its summaries follow from its tables."""

import pytest

from evaluation.pages.compiled_tables import (
    KERNELS,
    LAYER_COLUMNS,
    NETWORK_COLUMNS,
    NETWORKS,
    PAGE,
    layer_summary,
    network_summary,
)
from evaluation.pages.markdown import block, table_rows
from pipeline.paths import project_dir


@pytest.mark.parametrize(
    ("name", "columns", "summary"),
    [
        (NETWORKS, NETWORK_COLUMNS, network_summary),
        (KERNELS, LAYER_COLUMNS, layer_summary),
    ],
)
def test_a_summary_is_that_of_the_table_above_it(name, columns, summary) -> None:
    text = block((project_dir() / PAGE).read_text(encoding="utf-8"), name)
    table = [[row[each] for each in columns] for row in table_rows(text)]
    assert len(table) >= 14
    assert text.endswith(summary(table))


def test_errors_of_a_speed_up_are_means_of_their_sizes() -> None:
    said = network_summary(
        [
            ["vit_a", "224", "8", "20", "10", "20.0", "10.0", "2.00", "2.00", "+0.0"],
            ["resnet_b", "224", "8", "20", "10", "30.0", "15.0", "2.00", "1.60", "-20.0"],
        ]
    )
    assert "over 2 networks: 10.0 %" in said and "1 that are mostly attention 0.0 %" in said
