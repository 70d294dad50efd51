"""What every edit of a graph keeps, whatever is edited."""

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.graph.capture import capture
from pipeline.graph.edits import rewrite
from tests.workloads.small import small

BY_GRAPH = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def graph():
    return capture(small("transformer", mode="inference"), 4)


@given(data=st.data())
@BY_GRAPH
def test_removing_keeps_the_rest_as_it_was(graph, data):
    gone = data.draw(st.sets(st.sampled_from(list(graph.table["node_id"])), max_size=8))
    before = graph.table.copy()
    table = rewrite(graph, dict.fromkeys(gone, ())).table
    lost = set(gone)
    for node in graph.nodes():
        lost |= {node.node_id} if node.parent_id in lost else set()
    kept = graph.table[~graph.table["node_id"].isin(lost)].reset_index(drop=True)
    numbers = ["node_id", "parent_id", "order"]
    pd.testing.assert_frame_equal(table.drop(columns=numbers), kept.drop(columns=numbers))
    pd.testing.assert_frame_equal(graph.table, before)
    # ids count up in host order, parents come first, and top-level means without a parent
    assert list(table["node_id"]) == list(table["order"]) == list(range(len(table)))
    assert (table["parent_id"].dropna() < table["node_id"][table["parent_id"].notna()]).all()
    assert (table["parent_id"].isna() == table["is_top_level"]).all()
