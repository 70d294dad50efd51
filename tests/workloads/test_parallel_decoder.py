"""Decoders that are split over ranks: what they compute, exchange and keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.answers.engine import STEPS, Engine
from pipeline.errors import ConfigError, InputError, SteptimeError
from pipeline.graph.table import Memory
from pipeline.prediction import Prediction
from pipeline.question.question import Question, ask
from pipeline.show.figures.figure_data import layout_families
from pipeline.workloads.decoder_operators import Shards
from pipeline.workloads.parallel_decoder import DecoderLayer
from tests.graph.real_processes import run_real
from tests.workloads.tiny_decoder import tiny_sizes

pytestmark = pytest.mark.usefixtures("no_line")
SMALL = (
    "gpu=A100-SXM4-80GB", "model.layers=4", "model.width=512", "model.heads=8",
    "model.seq_len=256", "model.vocabulary=1024", "batch_size=2",
)  # fmt: skip


def question(*words: str) -> Question:
    given = dict(word.split("=", 1) for word in (*SMALL, "model=gpt", *words))
    return ask([f"{key}={value}" for key, value in given.items()])


def answered(*words: str) -> Prediction:
    (answer,) = Engine().predict([question(*words)], with_interval=False)
    return answer.whole()


def step_us(*words: str) -> float:
    return answered(*words).predicted_us


def piece(kind: str, *words: str) -> Question:
    """The part of a question that is captured: the first layers, or one of the middle."""
    return next(c for c in question(*words).chunks if c.workload["part"] == kind)


def memory(kind: str, *words: str) -> Memory:
    return STEPS.graph(piece(kind, *words)).memory


def calls(*words: str) -> pd.DataFrame:
    return STEPS.calls(piece("middle", "devices=2", *words))


@pytest.mark.parametrize(
    "sequence, forward, backward",
    [
        ("false", ["all_reduce"] * 2, ["all_reduce"] * 2),
        (
            "true",
            ["all_gather", "reduce_scatter"] * 2,
            ["all_gather", "all_gather", "reduce_scatter"] * 2,
        ),
    ],
)
def test_a_layer_exchanges_what_megatron_exchanges(
    sequence: str, forward: Sequence[str], backward: Sequence[str]
) -> None:
    table = calls("devices=16", "parallel.tp=2", f"parallel.sequence={sequence}")
    table = table[table["family"] == "collective"]
    assert table["bytes_written"].max() == 2 * 256 * 512 * 2
    assert table["op"][table["phase"] == "forward"].tolist() == forward
    assert sorted(table["op"][table["phase"] == "backward"]) == sorted(backward)
    assert (table[["stream", "ranks", "nodes"]] == [2, 2, 1]).all(axis=None)


def _layer_agrees(sequence: bool, rank: int) -> None:
    """In one of two real processes: a layer that is split computes what the whole layer computes."""
    torch.manual_seed(0)
    whole = DecoderLayer(tiny_sizes(Shards()))
    for weight in whole.parameters():
        nn.init.normal_(weight, std=0.2)
    own = DecoderLayer(tiny_sizes(Shards(2, sequence, dist.group.WORLD)))
    for full, part in zip(whole.parameters(), own.parameters(), strict=True):
        axis = next((a for a in range(full.dim()) if full.shape[a] != part.shape[a]), None)
        part.data.copy_(full if axis is None else full.chunk(2, axis)[rank])

    def held(tensor: Any) -> Any:
        """The part of a tensor of whole sequences that this rank holds."""
        return tensor.chunk(2)[rank] if sequence else tensor

    x = torch.randn(8, 2, 32, requires_grad=True)
    mine = held(x.detach()).requires_grad_()
    expected, got = whole.eval()(x, None), own.eval()(mine, None)
    expected.sum().backward()
    got.sum().backward()
    up, part = whole.feed_forward.up.weight.grad, own.feed_forward.up.weight.grad
    pairs = (got, held(expected)), (mine.grad, held(x.grad)), (part, up.chunk(2)[rank])
    for found, wanted in pairs:
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
@pytest.mark.parametrize("sequence", [False, True])
def test_ranks_that_share_a_layer_compute_what_one_does(sequence: bool) -> None:
    run_real(partial(_layer_agrees, sequence))


def test_timelines_and_figures_show_the_stages_of_a_pipeline() -> None:
    answer = Engine().predict_one(
        question("devices=2", "parallel.pp=2", "parallel.micro_batches=3")
    )
    rows = [e["args"]["name"] for e in answer.other_rank if e["name"] == "thread_name"]
    assert [row.partition(",")[0] for row in rows] == [f"stage {n}" for n in range(2)]
    names = [e["name"] for e in answer.other_rank]
    assert sum(name.startswith("backward of micro-batch") for name in names) == 2 * 3
    axes = answer.whole().plot("stages").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == rows
    with pytest.raises(InputError, match="no pipeline"):
        answered("devices=2").plot("stages")
    found = [answered("devices=2", f"parallel.tp={tp}") for tp in (1, 2)]  # other layouts, by parts
    times = layout_families(found).groupby("gpu")["device_us"].sum()
    expected = {"dp 2": found[0].predicted_us, "dp 1, tp 2": found[1].predicted_us}
    assert times.to_dict() == pytest.approx(expected, rel=1e-3)


def test_equal_layers_are_captured_once_and_take_what_all_take() -> None:
    wide = ("model.width=2048", "model.seq_len=1024")  # the device decides
    whole = step_us(*wide, "model.set_to_none=false")
    two, three = (step_us(*wide, f"parallel.micro_batches={count}") for count in (2, 3))
    update = two - 2 * (three - two)
    assert three - two == pytest.approx(whole - update, rel=0.01)


def test_parts_of_a_pipeline_share_the_work_and_add_a_bubble() -> None:
    words = ("devices=4", "model.width=2048", "model.seq_len=1024", "parallel.micro_batches=4")
    replicas, stages = step_us(*words), step_us(*words, "parallel.pp=4")
    assert stages < replicas
    assert stages > 1.5 * replicas / 4  # four passes, and three for the stages before


def test_the_options_of_a_prediction_hold_for_passes_of_a_pipeline() -> None:
    words = ("devices=2", "parallel.pp=2", "parallel.micro_batches=4")  # the host decides
    eager, graphs, waiting = (
        step_us(*words, f"predict.{option}=true")
        for option in ("wait_each_step", "cuda_graph", "launch_blocking")
    )
    assert graphs < 0.8 * eager < 0.7 * waiting


def test_what_is_computed_again_counts_as_forward_kernels() -> None:
    kinds = [calls(f"model.checkpointing={name}") for name in ("none", "selective", "full")]
    forward = [(table["phase"] == "forward").sum() for table in kinds]
    assert forward[0] < forward[1] < forward[2]
    none, _, full = (table["flops"].sum() for table in kinds)
    assert full == pytest.approx(none * 4 / 3, rel=0.02)


def test_memory_counts_the_passes_that_wait_and_what_is_computed_again() -> None:
    pipeline = ("devices=4", "parallel.pp=4", "model.width=1024", "model.seq_len=1024")
    one, many = (
        STEPS.memory_bytes(question(*pipeline, f"parallel.micro_batches={count}"))
        for count in (1, 8)
    )
    saved = memory("first", *pipeline).saved
    assert many - one == pytest.approx(3 * saved, rel=0.1)
    assert memory("first", *pipeline, "model.checkpointing=full").saved < saved / 4


def test_a_distributed_optimizer_holds_its_part_of_the_states() -> None:
    whole, part = (
        memory("middle", "devices=8", f"parallel.zero={zero}").optimizer
        for zero in ("false", "true")
    )
    assert part == pytest.approx(whole / 8, rel=0.02)


def test_an_answer_says_how_the_work_is_shared() -> None:
    words = "model=llama devices=16 parallel.tp=2 parallel.pp=4 parallel.micro_batches=8"
    answer = Engine().predict_one(question(*words.split())).whole()
    told = json.loads(json.dumps(answer.as_dict()))
    layout = {"dp": 2, "tp": 2, "cp": 1, "pp": 4, "micro_batches": 8, "global_batch": 2 * 2 * 8}
    assert layout.items() <= told.items() and told["efficiency"] is None
    assert told["p10_us"] < told["predicted_us"] < told["p90_us"]
    assert 0 < told["exposed_communication_us"] <= told["communication_us"]
    assert told["active_us"] < told["predicted_us"]


@pytest.mark.parametrize(
    "given, says",
    [
        ("devices=6 parallel.tp=4", "devices=6: not a multiple of tp x cp x pp = 4 x 1 x 1 = 4"),
        (
            "devices=3 parallel.pp=3",
            "model.layers=4: not a multiple of pp x virtual_stages = 3 x 1",
        ),
        ("devices=16 parallel.tp=16", "model.kv_heads=8: must be a multiple of parallel.tp=16"),
        ("devices=2 parallel.cp=2", "take model.attention=fused"),
        ("devices=2 parallel.virtual_stages=2", "needs parallel.pp above 1"),
        (
            "devices=2 parallel.pp=2 parallel.virtual_stages=2 parallel.micro_batches=3",
            "parallel.micro_batches as a multiple of it",
        ),
        ("model.heads=7", "model.width=512: must be a multiple of model.heads=7"),
    ],
)
def test_what_does_not_divide_is_refused_in_one_line(given: str, says: str) -> None:
    with pytest.raises(SteptimeError) as raised:
        step_us(*given.split())
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_models_that_are_not_written_for_it_are_refused_with_what_is() -> None:
    with pytest.raises(ConfigError, match=r"resnet50 is not written for it; take model=gpt or"):
        ask(["gpu=A100", "model=resnet50", "devices=8", "parallel.tp=2"])


@pytest.mark.usefixtures("shallow")
def test_any_model_has_micro_batches() -> None:
    one, four = (
        next(
            Engine().predict([ask(["gpu=A100", "model=resnet50", *more])], with_interval=False)
        ).whole()
        for more in ([], ["parallel.micro_batches=4"])
    )
    assert four.global_batch == 4 * one.global_batch
    assert 3 * one.predicted_us < four.predicted_us < 4.05 * one.predicted_us
