"""Every workload understands every override that makes sense for it, and each does what it says."""

import json
from functools import cache
from itertools import product

import pandas as pd
import pytest

from pipeline import predict
from pipeline.errors import ConfigError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.paths import config_dir
from pipeline.question.options import FREE_OPTIONS
from pipeline.question.question import expand
from tests.workloads.small import (
    SMALL,
    options_of,
    small,
)

pytestmark = pytest.mark.usefixtures("shallow", "no_line")
STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "none": 0}


@cache
def calls_of(name, batch_size=4, **changes):
    """The memory and the calls of a small step, all of known operators; several tests ask for the same."""
    graph = capture(small(name, **changes), batch_size)
    calls = map_calls(graph)
    assert unknown_operators(graph, calls) == {}
    return graph.memory, calls


CASES = [(name, option, value) for name in SMALL for option, value in options_of(name)]


def test_every_workload_of_the_zoo_is_tried():
    assert set(SMALL) == {path.stem for path in (config_dir() / "model").glob("*.yaml")} - {
        *FREE_OPTIONS
    }


@pytest.mark.parametrize("name, option, value", CASES, ids=lambda item: str(item))
def test_a_workload_understands_an_option(name, option, value):
    config = small(name, **{option: value})
    many = {"batch_size": 1024} if option == "seq_len" else {}
    memory, calls = calls_of(name, **{option: value}, **many)
    assert memory.parameters > 0 and memory.inputs > 0 and len(calls) > 5
    training, phases = config["mode"] == "train", set(calls["phase"])
    assert ("backward" in phases) == training and (training or "optimizer" not in phases)
    assert memory.activations > 0 and (memory.gradients > 0) == training
    assert ("attention" in set(calls["family"])) == (option == "attention")
    waits = set(calls.loc[calls["blocking"], "family"])
    assert waits == {"copies": {"memcpy_h2d"}, "read_loss": {"memcpy_d2h"}}.get(option, set())
    if option == "optimizer":
        states = memory.optimizer / memory.parameters
        assert states == pytest.approx(STATES[value], rel=0.02, abs=1e-9)
        assert ("optimizer" in phases) == (value != "none")
    if option == "dtype":
        products = calls["family"].isin(["gemm", "bmm", "conv2d_forward", "rnn"])
        assert set(calls.loc[products, "dtype"]) == {value}
    if option == "copies":
        assert (calls.loc[calls["family"] == "memcpy_h2d", "op"] == "pageable").all()
    if option == "embedding":
        ops = set(calls.loc[calls["family"] == "embedding_backward", "op"])
        assert ops == {{"fused": "fused_sgd"}.get(value, value.removeprefix("joint_"))}
    if option == "seq_len":
        longer = capture({**config, option: 2 * value}, 1024).memory
        assert longer.peak > 1.3 * memory.peak  # of so many samples, activations take most


def calls_with(option):
    """The workloads that have an option, with its values."""
    return pytest.mark.parametrize(
        "name, value", [(name, value) for name, each, value in CASES if each == option], ids=str
    )


@calls_with("attention")
def test_fused_attention_has_the_sizes_and_the_mask_of_its_layers(name, value):
    config = small(name, attention=value)
    _, calls = calls_of(name, attention=value)
    fused = calls[calls["family"] == "attention"]
    masks = {json.loads(text)["causal"] for text in fused["attributes"]}
    assert masks == {"bert": {False}, "transformer": {True, False}}.get(
        config["architecture"], {True}
    )
    heads, tokens = config["heads"], config["seq_len"]
    sizes = [4 * heads, tokens, tokens, config["width"] // heads]
    assert (fused[["B", "M", "N", "K"]] == sizes).all(axis=None)


def test_gradients_that_are_set_to_zero_are_a_few_more_calls():
    more, usual = (
        calls_of("bert_large", **changes)[1]["phase"].isin(["optimizer", "zero_grad"]).sum()
        for changes in ({"set_to_none": False}, {})
    )
    assert usual < more < usual + 8


@calls_with("read_loss")
def test_a_loss_is_read_where_the_option_says(name, value):
    _, calls = calls_of(name, read_loss=value)
    waits = calls[calls["blocking"]]
    done = set(calls.loc[: waits.index[0], "phase"])
    assert ("optimizer" in done) == (value == "at_end") or name == "dcgan"
    # two losses of DCGAN's discriminator and one of its generator are read one by one
    reads = 3 if (name, value) == ("dcgan", "before_backward") else 1
    assert waits["bytes"].tolist() == [4] * reads


@calls_with("memory_format")
def test_channels_last_is_said_of_images_and_changes_nothing_else(name, value):
    plain, calls = (calls_of(name, memory_format=layout)[1] for layout in ("contiguous", value))
    images = calls["family"].str.contains("^(?:batch_norm|pooling|conv2d)")
    assert calls.loc[images, "attributes"].eq('{"layout":"nhwc"}').all()
    assert not plain["attributes"].fillna("").str.contains("layout").any()
    one, other = (each.drop(columns="attributes") for each in (plain, calls))
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize(
    "embedding, optimizer",
    [
        ("fused", "adam"),
        ("dense", "adagrad"),
        *product(("joint_sparse", "sparse"), ("adagrad", "adam")),
    ],
)
def test_tables_take_any_optimizer_by_any_lookup(embedding, optimizer):
    changes = {"embedding": embedding, "optimizer": optimizer, "rows": 1000}
    memory, calls = calls_of("dlrm_ddp", 64, **changes)
    states = STATES[optimizer]
    assert memory.optimizer == states * (memory.parameters - 2 * 36 * 8)
    added = calls[(calls["phase"] == "optimizer") & (calls["op"] == "index_add")]
    of_a_table = 1000 * (1 - (1 - 1 / 1000) ** 640)  # the optimizer sees each row once
    if embedding == "sparse":
        assert added["B"].tolist() == [round(of_a_table)] * 8 * (1 + states)
    if embedding == "joint_sparse":  # one lookup, one gradient, one update for all tables together
        assert added["B"].tolist() == [round(8 * of_a_table)] * (1 + states)
        looked = calls[calls["family"] == "embedding_forward"]
        assert looked[["B", "E", "L"]].to_numpy().tolist() == [[64 * 8, 8 * 1000, 10]]


def test_a_fused_lookup_moves_its_optimizers_state_too():
    moved = []
    for optimizer in ("sgd", "adagrad", "adam"):
        _, calls = calls_of("dlrm_default", optimizer=optimizer)
        moved.append(calls.loc[calls["family"] == "embedding_backward", "bytes_written"].sum())
    assert moved == pytest.approx([moved[0], 2 * moved[0], 3 * moved[0]])


def test_reading_the_loss_costs_what_the_device_then_waits_for_the_host():
    never, before, at_end = (
        predict("V100", "dlrm_ddp", batch_size=2048, model__read_loss=read, predict__draws=10)
        for read in ("never", "before_backward", "at_end")
    )
    assert min(before.host_us, at_end.host_us) > never.host_us
    assert before.idle_us - never.idle_us > 50
    assert 0 < at_end.idle_us - never.idle_us < 50  # nothing is left to be launched


def test_copies_that_the_host_waits_for_hold_the_launches_up():
    plain, waiting = (
        predict("A100", "dlrm_ddp", batch_size=2048, model__copies=copies, predict__draws=10)
        for copies in ("pinned", "pageable")
    )
    copied = [each.families_us["memcpy_h2d"] for each in (plain, waiting)]
    assert copied[1] > 2 * copied[0]  # 11 GB/s of PCIe 4
    assert waiting.predicted_us - plain.predicted_us > waiting.active_us - plain.active_us


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_a_batch_that_is_on_the_device_is_not_copied_and_takes_memory_for_the_whole_step(mode):
    (before, copied), (memory, there) = (
        calls_of("gpt", mode=mode, copies=copies) for copies in ("pinned", "none")
    )
    assert not (there["family"] == "memcpy_h2d").any()
    rest = copied[copied["phase"] != "data"]
    assert there["family"].tolist() == rest["family"].tolist()
    assert memory.inputs == before.inputs == 2 * 4 * 8 * 8
    assert before.peak <= memory.peak <= before.peak + memory.inputs


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_an_optimizer_that_goes_parameter_by_parameter_moves_the_same_bytes(optimizer):
    updates = []
    for foreach in (True, False):
        _, calls = calls_of("gpt", optimizer=optimizer, foreach=foreach)
        updates.append(calls[calls["phase"] == "optimizer"][["bytes_read", "bytes_written"]])
    plain, each = updates
    assert len(each) > 10 * len(plain)
    assert each.sum(axis=None) == pytest.approx(plain.sum(axis=None), rel=0.5)


@pytest.mark.parametrize("optimizer, lists", [("sgd", 2), ("sgd_momentum", 3), ("adamw", 4)])
def test_a_fused_optimizer_updates_all_weights_in_one_pass(optimizer, lists):
    """It reads weights, gradients and states, and writes all of these but the gradients."""
    memory, calls = calls_of("dlrm_ddp", embedding="dense", optimizer=optimizer, foreach="fused")
    calls = calls.query("phase == 'optimizer' and op.str.startswith('fused')")
    weights = memory.gradients
    assert calls["bytes_read"].sum() == lists * weights
    assert calls["bytes_written"].sum() == (lists - 1) * weights
    assert memory.optimizer == pytest.approx((lists - 2) * weights, rel=0.01)


@pytest.mark.parametrize(
    "words, says",
    [
        ("resnet50 model.foreach=fusd", "model.foreach=fusd: give true or false or fused"),
        (
            "resnet50 model.foreach=fused model.optimizer=adagrad",
            "fused Adagrad runs on CPUs alone",
        ),
        (
            "dlrm_small model.foreach=fused model.embedding=sparse",
            "fused SGD takes no sparse gradients",
        ),
        (
            "dlrm_ddp model.embedding=sparse model.optimizer=sgd_momentum",
            "does not support sgd_momentum",
        ),
        (
            "dlrm_ddp model.mode=inference model.read_loss=at_end",
            r"model\.read_loss=at_end: inference has no loss",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(words, says):
    with pytest.raises(ConfigError, match=says):
        (point,) = expand(f"model={words}".split())
        capture(point.section("model"), 4)
