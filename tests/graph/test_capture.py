"""Capture without a GPU: what is recorded, how it is named, and that nothing is left out silently."""

import tempfile

import pandas as pd
import pytest

from pipeline.errors import ConfigError, SteptimeError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.graph.lookups import FUSED_AUTOGRAD, FUSED_FORWARD
from tests.commands import full_disk
from tests.workloads.small import config_of


@pytest.fixture(scope="module")
def dlrm():
    return capture(config_of("dlrm_default"), 2048)


def test_inputs_are_copied_from_pinned_memory_without_waiting(dlrm):
    calls = map_calls(dlrm)
    copies = calls[calls["family"] == "memcpy_h2d"]
    assert list(copies["bytes"]) == [2048 * 512 * 4, 2048 * 8 * 100 * 8, 2048 * 8 * 8, 2048 * 4]
    assert not copies["blocking"].any()


def test_backward_runs_on_the_autograd_thread_and_the_rest_on_the_main_one(dlrm):
    table = dlrm.table.assign(under=dlrm.table["name"].str.startswith("autograd::"))
    assert set(table.loc[table["under"], "thread"]) == {1}
    assert set(table.loc[table["phase"] != "backward", "thread"]) == {0}


def test_fused_lookup_is_named_as_fbgemm_names_it_and_carries_its_tables(dlrm):
    names = set(dlrm.table["name"])
    assert FUSED_FORWARD.format(optimizer="sgd") in names
    assert f"autograd::engine::evaluate_function: {FUSED_AUTOGRAD.format(optimizer='sgd')}" in names
    lookup = map_calls(dlrm).query("family == 'embedding_forward'").iloc[0]
    assert list(lookup[["B", "E", "T", "L", "D"]]) == [2048, 1_000_000, 8, 100, 64]


def test_fused_lookup_leaves_no_weight_gradient_to_store(dlrm):
    dense = capture(config_of("dlrm_default", embedding="dense"), 2048)
    assert dlrm.memory.gradients < 2**25 < dense.memory.gradients
    assert dlrm.memory.parameters == dense.memory.parameters


def test_tables_with_many_uses_per_row_are_updated_by_the_block_kernel():
    calls = map_calls(capture(config_of("dlrm_mlperf"), 2048))
    updates = calls[(calls["family"] == "embedding_backward")]
    assert list(updates["T"]) == [6, 20]  # six tables of at most 64 rows


@pytest.mark.parametrize("embedding", ["sparse", "joint_sparse"])
def test_a_sparse_gradient_becomes_the_weights_without_a_copy(embedding):
    """Regression: fake tensors clone it at the size of the whole weight, which added a copy of all tables to each step."""
    graph = capture(config_of("dlrm_ddp", embedding=embedding), 64)
    calls = map_calls(graph)
    table = 80_000 * 128 * 4
    assert (calls["bytes_read"] + calls["bytes_written"]).max() < table / 2


@pytest.mark.parametrize("embedding", ["joint_sparse", "joint_rows"])
def test_a_gradient_that_lies_in_a_larger_one_is_copied_before_its_rows_are_kept(embedding):
    """The lookups' part of the concatenation's gradient: fake tensors show a clone without the copy that it is."""
    calls = map_calls(capture(config_of("dlrm_ddp", embedding=embedding, lookups=1), 64))
    part = 64 * 8 * 128 * 4
    copies = calls[(calls["family"] == "copy") & (calls["bytes_written"] == part)]
    assert list(copies["phase"]) == ["backward"]


def test_one_row_per_table_needs_no_offsets_and_no_gradient_kernel():
    bags, rows = (
        map_calls(capture(config_of("dlrm_ddp", embedding=each, lookups=1), 64))
        for each in ("joint_sparse", "joint_rows")
    )
    assert "embedding_backward" not in set(rows["family"])
    sent = [each.loc[each["family"] == "memcpy_h2d", "bytes"].sum() for each in (bags, rows)]
    assert sent[0] - sent[1] == 64 * 8 * 8


def test_several_lookups_per_table_need_bags():
    with pytest.raises(ConfigError, match="needs one lookup per table"):
        capture(config_of("dlrm_ddp", embedding="joint_rows"), 64)


def test_autocast_casts_the_same_beside_sparse_gradients_as_beside_others():
    """Fake tensors hide the copy that a cast is, and a batched product's casts inside the product."""
    sizes = []
    for embedding in ("fused", "joint_sparse"):
        calls = map_calls(capture(config_of("dlrm_ddp", embedding=embedding, dtype="fp16"), 64))
        assert set(calls.loc[calls["family"].isin(["gemm", "bmm"]), "dtype"]) == {"fp16"}
        casts = calls["op"].isin(["copy", "copy_", "cast"]) & (calls["family"] != "memcpy_h2d")
        sizes.append(calls.loc[casts, "bytes_written"].sum())
    assert sizes[1] == pytest.approx(
        sizes[0], rel=0.1
    )  # beside one cast of the bottom MLP's output


def test_gradients_accumulate_where_there_is_no_optimizer():
    adds = []
    for optimizer in ("none", "sgd"):
        nodes = capture(config_of("dlrm_small", optimizer=optimizer, rows=100), 8).nodes()
        under = {n.node_id for n in nodes if n.name == "torch::autograd::AccumulateGrad"}
        adds.append(sum(n.parent_id in under and n.name.startswith("aten::add") for n in nodes))
    assert adds[0] > 0 == adds[1]


def test_mixed_precision_computes_losses_in_fp32():
    config = config_of("dlrm_small", dtype="bf16", loss="bce_logits", rows=100)
    calls = map_calls(capture(config, 8))
    assert set(calls.loc[calls["family"] == "loss", "dtype"]) == {"fp32"}
    assert (calls["op"] == "cast").any()


@pytest.mark.usefixtures("shallow")
def test_convolutions_have_two_gradients_except_the_first():
    calls = map_calls(capture(config_of("resnet50", image_size=64), 2))
    main = calls[calls["op"] == "conv"]["family"].value_counts()
    assert main.to_dict() == {
        "conv2d_forward": 17,
        "conv2d_backward_weight": 17,
        "conv2d_backward_data": 16,
    }


def test_dropout_is_one_fused_operator_as_on_cuda():
    table = capture(config_of("gnmt", width=16, vocabulary=50, seq_len=5), 4).table
    names = set(table["name"])
    assert {"aten::dropout", "aten::native_dropout", "aten::native_dropout_backward"} <= names
    assert not names & {"aten::bernoulli_"}


def test_two_captures_of_a_step_are_equal():
    one, two = (capture(config_of("dlrm_small", rows=100), 8).table for _ in range(2))
    pd.testing.assert_frame_equal(one, two)


def test_activations_of_a_transformer_layer_follow_the_published_formula():
    """Korthikanti et al. 2022, equation 1, in fp32: tokens · batch · width · (66 + 9 · heads · tokens / width) bytes."""
    sizes = {"width": 256, "heads": 8, "vocabulary": 100, "positions": 512, "seq_len": 512}
    one, three = (
        capture(config_of("bert_large", layers=n, **sizes), 4).memory.activations for n in (1, 3)
    )
    assert (three - one) / 2 == pytest.approx(512 * 4 * 256 * (66 + 9 * 8 * 512 / 256), rel=0.01)


def test_a_full_temporary_folder_is_said_and_is_no_bad_input():
    said = f"{tempfile.gettempdir()}: .* could not be written completely"
    with full_disk(4096), pytest.raises(SteptimeError, match=said) as raised:
        capture(config_of("dlrm_small"), 4)
    assert raised.value.exit_code == 1
