"""A rescaled graph equals a fresh capture; what cannot be rescaled or fused is refused."""

import pandas as pd
import pytest

from pipeline.errors import InputError
from pipeline.graph.capture import capture
from pipeline.graph.edits import fuse, rescale
from tests.workloads.small import config_of


@pytest.fixture(scope="module")
def graph():
    return capture(config_of("dlrm_small", rows=100), 8)


def test_a_rescaled_graph_equals_a_fresh_capture_below_and_above_the_two():
    """`test_batch_line.py` computes every workload; here the sizes lie on both sides, and tables are dense."""
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


def test_fusing_refuses_what_does_not_belong_together(graph):
    with pytest.raises(InputError, match="two or more"):
        fuse(graph, [3])
    mixed = [
        graph.nodes()[0].node_id,
        next(n.node_id for n in graph.nodes() if n.parent_id is not None),
    ]
    with pytest.raises(InputError, match="different parents"):
        fuse(graph, mixed)
