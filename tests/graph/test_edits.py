"""Edits of graphs: none changes its argument, and a rescaled graph equals a fresh capture."""

import pandas as pd
import pytest

from pipeline.errors import InputError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.edits import fuse, remove, rescale, substitute
from pipeline.graph.table import Node, Tensor
from tests.workloads.small import config_of


@pytest.fixture(scope="module")
def graph():
    return capture(config_of("dlrm_small", rows=100), 8)


def test_a_rescaled_graph_equals_a_fresh_capture_below_and_above_the_two():
    """Every workload is rescaled in test_properties.py; here the sizes lie on both sides, and tables are dense."""
    config = config_of("dlrm_ddp", embedding="dense")
    one = capture(config, 128)
    other = capture(config, 512)
    for wanted in (33, 4096):
        scaled = rescale(one, other, wanted)
        fresh = capture(config, wanted)
        pd.testing.assert_frame_equal(scaled.table, fresh.table)
        assert scaled.memory == fresh.memory


def test_rows_that_sparse_optimizers_touch_are_no_line_in_the_batch_size():
    config = config_of("dlrm_ddp", embedding="sparse", optimizer="adagrad", rows=100)
    with pytest.raises(InputError, match="do not grow linearly with the batch size"):
        rescale(capture(config, 8), capture(config, 16), 13)


def test_rescaling_needs_two_batch_sizes_of_one_step(graph):
    with pytest.raises(InputError, match="batch size 8"):
        rescale(graph, graph, 16)
    with pytest.raises(InputError, match="different operators"):
        rescale(graph, capture(config_of("dlrm_small", rows=100, mode="inference"), 16), 32)


def test_removing_takes_what_lies_under_and_leaves_the_original(graph):
    before = graph.table.copy()
    edited = remove(graph, lambda node: node.name == "aten::linear")
    assert not set(edited.table["name"]) & {"aten::linear", "aten::addmm"}
    pd.testing.assert_frame_equal(graph.table, before)
    assert list(edited.table["node_id"]) == list(range(len(edited.table)))


def test_a_substitute_takes_the_place_of_an_operator(graph):
    target = next(node for node in graph.nodes() if node.name == "aten::relu")
    x = target.tensor(0)
    edited = substitute(
        graph, target.node_id, [Node(0, "aten::gelu", inputs=(x,), outputs=(x,), values=(None,))]
    )
    place = edited.table.iloc[target.order]
    assert place["name"] == "aten::gelu" and place["phase"] == "forward"
    assert len(edited.table) == len(graph.table)


def test_fusing_keeps_intermediate_results_off_the_memory(graph):
    chain = [node for node in graph.nodes() if node.name in ("aten::sigmoid", "aten::squeeze")]
    x = Tensor((64, 32), "fp32", (32, 1))
    pair = [
        Node(0, "aten::mul", inputs=(x, x), outputs=(x,), values=(None, None)),
        Node(1, "aten::relu", inputs=(x,), outputs=(x,), values=(None,)),
    ]
    apart = substitute(graph, chain[0].node_id, pair)
    ids = [node.node_id for node in apart.nodes() if node.name in ("aten::mul", "aten::relu")][-2:]
    fused = fuse(apart, ids)
    name = next(n for n in fused.table["name"] if n.startswith("fused::"))
    assert name == "fused::mul+relu"
    calls = map_calls(fused)
    row = calls[calls["op"] == "fused"].iloc[0]
    assert (row["bytes_read"], row["bytes_written"]) == (2 * x.bytes, x.bytes)
    assert len(calls) == len(map_calls(apart)) - 1


def test_fusing_refuses_what_does_not_belong_together(graph):
    with pytest.raises(InputError, match="two or more"):
        fuse(graph, [3])
    mixed = [
        graph.nodes()[0].node_id,
        next(n.node_id for n in graph.nodes() if n.parent_id is not None),
    ]
    with pytest.raises(InputError, match="different parents"):
        fuse(graph, mixed)
