"""Every workload understands every override that makes sense for it, and each does what it says."""

import json

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
    WITH_LOOPS_OF_THEIR_OWN,
    config_of,
    options_of,
    small,
)

pytestmark = pytest.mark.usefixtures("shallow")
STATES = {"sgd": 0, "adagrad": 1, "adam": 2, "none": 0}
LOSSES_OF_BOTH = ("dcgan", "before_backward")
"""The workload and place at which three losses are read: two of the discriminator, one of the generator."""
CASES = [(name, option, value) for name in SMALL for option, value in options_of(name)]


def test_every_workload_of_the_zoo_is_tried():
    assert set(SMALL) == {path.stem for path in (config_dir() / "model").glob("*.yaml")} - {
        *FREE_OPTIONS
    }


@pytest.mark.parametrize("name, option, value", CASES, ids=lambda item: str(item))
def test_a_workload_understands_an_option(name, option, value):
    config = small(name, **{option: value})
    graph = capture(config, 4)
    calls = map_calls(graph)
    assert unknown_operators(graph, calls) == {}
    assert graph.memory.parameters > 0 and graph.memory.inputs > 0 and len(calls) > 5
    training, phases = config["mode"] == "train", set(calls["phase"])
    assert ("backward" in phases) == training and (training or "optimizer" not in phases)
    assert graph.memory.activations > 0 and (graph.memory.gradients > 0) == training
    assert ("attention" in set(calls["family"])) == (option == "attention")
    waits = calls[calls["blocking"]]
    assert (set(waits["family"]) == {"memcpy_h2d"}) == (option == "copies")
    assert (set(waits["family"]) == {"memcpy_d2h"}) == (option == "read_loss")
    if option == "optimizer":
        states = graph.memory.optimizer / graph.memory.parameters
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
        short, longer = (
            capture(small(name, **{option: tokens}), 1024).memory for tokens in (value, 2 * value)
        )
        assert longer.peak > 1.3 * short.peak  # of so many samples, activations take most


def calls_with(option):
    """The workloads that have an option, with its values."""
    return pytest.mark.parametrize(
        "name, value", [(name, value) for name, each, value in CASES if each == option], ids=str
    )


@calls_with("attention")
def test_fused_attention_has_the_sizes_and_the_mask_of_its_layers(name, value):
    config = small(name, attention=value)
    calls = map_calls(capture(config, 4))
    fused = calls[calls["family"] == "attention"]
    masks = {json.loads(text)["causal"] for text in fused["attributes"]}
    encoder = config["architecture"] == "bert"
    decoder = config["architecture"] in ("gpt2", "opt", "gpt", "llama")
    assert masks == ({True} if decoder else {False} if encoder else {True, False})
    heads, tokens = config["heads"], config["seq_len"]
    sizes = {"B": 4 * heads, "M": tokens, "N": tokens, "K": config["width"] // heads}
    assert (fused[list(sizes)] == pd.Series(sizes)).all(axis=None)


@pytest.mark.parametrize("option", ["foreach", "set_to_none"])
@pytest.mark.parametrize("name", WITH_LOOPS_OF_THEIR_OWN)
def test_updates_and_gradients_one_by_one_are_more_calls(name, option):
    many, few = (
        map_calls(capture(small(name, **changes), 4))["phase"]
        .isin(["optimizer", "zero_grad"])
        .sum()
        for changes in ({option: False}, {})
    )
    assert many > 3 * few if option == "foreach" else few < many < few + 8


@calls_with("read_loss")
def test_a_loss_is_read_where_the_option_says(name, value):
    calls = map_calls(capture(small(name, read_loss=value), 4))
    waits = calls[calls["blocking"]]
    done = set(calls.loc[: waits.index[0], "phase"])
    assert ("optimizer" in done) == (value == "at_end") or name == "dcgan"
    assert waits["bytes"].tolist() == [4] * (3 if (name, value) == LOSSES_OF_BOTH else 1)


@calls_with("memory_format")
def test_channels_last_is_said_of_images_and_changes_nothing_else(name, value):
    plain, calls = (
        map_calls(capture(small(name, memory_format=layout), 4)) for layout in ("contiguous", value)
    )
    images = calls["family"].str.contains("^(?:batch_norm|pooling|conv2d)")
    assert calls.loc[images, "attributes"].eq('{"layout":"nhwc"}').all()
    assert plain["attributes"].fillna("").str.contains("layout").sum() == 0
    pd.testing.assert_frame_equal(
        plain.drop(columns="attributes"), calls.drop(columns="attributes")
    )


@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("embedding", ["fused", "joint_sparse", "sparse", "dense"])
def test_tables_take_any_optimizer_by_any_lookup(embedding, optimizer):
    config = config_of("dlrm_ddp", embedding=embedding, optimizer=optimizer, rows=1000)
    graph = capture(config, 64)
    calls = map_calls(graph)
    assert unknown_operators(graph, calls) == {}
    assert (
        graph.memory.optimizer
        == STATES[optimizer] * graph.memory.parameters - STATES[optimizer] * 2 * 36 * 8
    )
    if embedding == "sparse":  # the optimizer sees each row once
        added = calls[(calls["phase"] == "optimizer") & (calls["op"] == "index_add")]
        distinct = 1000 * (1 - (1 - 1 / 1000) ** 640)
        assert len(added) == 8 * (1 + STATES[optimizer])
        assert (added["B"] == round(distinct)).all()
    if embedding == "joint_sparse":  # one lookup, one gradient, one update for all tables together
        distinct = 8 * 1000 * (1 - (1 - 1 / 1000) ** 640)
        added = calls[(calls["phase"] == "optimizer") & (calls["op"] == "index_add")]
        assert len(added) == 1 + STATES[optimizer]
        assert (added["B"] == round(distinct)).all()
        looked = calls[calls["family"] == "embedding_forward"]
        assert looked[["B", "E", "L"]].to_numpy().tolist() == [[64 * 8, 8 * 1000, 10]]


def test_a_fused_lookup_moves_its_optimizers_state_too():
    moved = {}
    for optimizer in ("sgd", "adagrad", "adam"):
        calls = map_calls(capture(config_of("dlrm_default", optimizer=optimizer), 64))
        moved[optimizer] = calls.loc[calls["family"] == "embedding_backward", "bytes_written"].sum()
    assert moved["adagrad"] / moved["sgd"] == pytest.approx(2)
    assert moved["adam"] / moved["sgd"] == pytest.approx(3)


@pytest.mark.parametrize("when", ["before_backward", "at_end"])
def test_reading_the_loss_costs_what_the_device_then_waits_for_the_host(when):
    found = {
        read: predict(gpu="V100", model="dlrm_ddp", batch_size=2048, **{"model.read_loss": read})
        for read in ("never", when)
    }
    assert found[when].host_us > found["never"].host_us
    lost = found[when].idle_us - found["never"].idle_us
    assert (
        lost > 50 if when == "before_backward" else 0 < lost < 50
    )  # at the end nothing is left to be launched


def test_copies_that_the_host_waits_for_hold_the_launches_up():
    plain, waiting = (
        predict(gpu="A100", model="dlrm_default", batch_size=512, **{"model.copies": copies})
        for copies in ("pinned", "pageable")
    )
    assert (
        waiting.families_us["memcpy_h2d"] > 2 * plain.families_us["memcpy_h2d"]
    )  # 11 GB/s of PCIe 4
    assert waiting.predicted_us - plain.predicted_us > waiting.active_us - plain.active_us


@pytest.mark.parametrize("model", ["dlrm_default", "resnet50"])
@pytest.mark.parametrize("mode", ["train", "inference"])
def test_a_batch_that_is_on_the_device_is_not_copied(model, mode):
    copied, there = (
        map_calls(capture(config_of(model, mode=mode, copies=copies), 8))
        for copies in ("pinned", "none")
    )
    assert not (there["family"] == "memcpy_h2d").any() and not (there["phase"] == "data").any()
    rest = copied[copied["phase"] != "data"]
    assert there["family"].tolist() == rest["family"].tolist()


def test_a_batch_that_is_on_the_device_takes_memory_for_the_whole_step():
    copied, there = (
        capture(config_of("resnet50", mode="inference", copies=copies), 8).memory
        for copies in ("pinned", "none")
    )
    batch_bytes = 8 * 3 * 224 * 224 * 4 + 8 * 8
    assert there.inputs == copied.inputs == batch_bytes
    assert copied.peak <= there.peak <= copied.peak + batch_bytes


@pytest.mark.parametrize("optimizer", ["sgd", "sgd_momentum", "adagrad", "adam"])
def test_an_optimizer_that_goes_parameter_by_parameter_moves_the_same_bytes(optimizer):
    plain, each = (
        map_calls(capture(small("resnet50", optimizer=optimizer, foreach=foreach), 4))
        for foreach in (True, False)
    )
    moved = [found[found["phase"] == "optimizer"] for found in (plain, each)]
    assert len(moved[1]) > 20 * len(moved[0])
    traffic = [(found["bytes_read"] + found["bytes_written"]).sum() for found in moved]
    assert traffic[1] == pytest.approx(traffic[0], rel=0.5)


def test_inference_has_no_loss_to_read():
    from pipeline.errors import ConfigError

    with pytest.raises(ConfigError, match=r"model\.read_loss=at_end: inference has no loss"):
        capture(config_of("dlrm_ddp", mode="inference", read_loss="at_end"), 8)


@pytest.mark.parametrize("name", ["dlrm_ddp", "dcgan"])
@pytest.mark.parametrize("when", ["before_backward", "at_end"])
def test_a_step_that_runs_reads_its_loss(monkeypatch, name, when):
    from pipeline.workloads import make_step
    from pipeline.workloads import training_step as step

    seen = []
    monkeypatch.setattr(step, "read", lambda loss: seen.append(loss.item()))
    make_step(small(name, read_loss=when, copies="pageable"), 4, "cpu").run()
    assert len(seen) == (3 if (name, when) == LOSSES_OF_BOTH else 1)
    assert all(0 < value < 100 for value in seen)


@pytest.mark.parametrize("embedding", ["fused", "sparse"])
def test_momentum_is_refused_where_it_would_make_updates_dense(embedding):
    from pipeline.errors import ConfigError

    with pytest.raises(ConfigError, match="does not support sgd_momentum"):
        capture(config_of("dlrm_ddp", embedding=embedding, optimizer="sgd_momentum"), 8)


@pytest.mark.parametrize(
    "optimizer, lists", [("sgd", 2), ("sgd_momentum", 3), ("adam", 4), ("adamw", 4)]
)
def test_a_fused_optimizer_updates_all_weights_in_one_pass(optimizer, lists):
    """It reads weights, gradients and states, and writes all of these but the gradients."""
    graph = capture(small("resnet50", optimizer=optimizer, foreach="fused"), 4)
    calls = map_calls(graph).query("phase == 'optimizer' and op.str.startswith('fused')")
    weights = graph.memory.gradients
    assert (
        calls["bytes_read"].sum() == lists * weights
        and calls["bytes_written"].sum() == (lists - 1) * weights
    )
    assert graph.memory.optimizer == pytest.approx((lists - 2) * weights, rel=0.01)


@pytest.mark.parametrize(
    "overrides, says",
    [
        (
            ["model=resnet50", "model.foreach=fusd"],
            "model.foreach=fusd: give true or false or fused",
        ),
        (
            ["model=resnet50", "model.foreach=fused", "model.optimizer=adagrad"],
            "fused Adagrad runs on CPUs alone",
        ),
        (
            ["model=dlrm_small", "model.foreach=fused", "model.embedding=sparse"],
            "fused SGD takes no sparse gradients",
        ),
    ],
)
def test_a_fused_update_that_pytorch_does_not_have_is_refused(overrides, says):
    with pytest.raises(ConfigError, match=says):
        capture(expand(overrides)[0].section("model"), 4)
