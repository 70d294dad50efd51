"""Decoders that are split over ranks: what they compute, exchange and keep."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

from pipeline.answers.engine import STEPS, Engine
from pipeline.errors import ConfigError, InputError, SteptimeError
from pipeline.graph.table import Memory
from pipeline.question.question import Question, ask
from pipeline.show.figures.figure_data import layout_families
from pipeline.workloads.decoder_operators import Shards
from pipeline.workloads.parallel_decoder import DecoderLayer
from tests.workloads.tiny_decoder import tiny_sizes

SMALL = (
    "gpu=A100-SXM4-80GB", "model.layers=4", "model.width=512", "model.heads=8",
    "model.seq_len=256", "model.vocabulary=1024", "batch_size=2",
)  # fmt: skip


def question(*words: str, model: str = "gpt") -> Question:
    given = dict(word.split("=", 1) for word in (*SMALL, f"model={model}", *words))
    return ask([f"{key}={value}" for key, value in given.items()])


def step_us(*words: str, model: str = "gpt") -> float:
    (answer,) = Engine().predict([question(*words, model=model)], with_interval=False)
    return answer.whole().predicted_us


def piece(kind: str, asked: Question) -> Question:
    return next(chunk for chunk in asked.chunks if chunk.workload["part"] == kind)


def calls(kind: str, *words: str, model: str = "gpt") -> pd.DataFrame:
    return STEPS.calls(piece(kind, question("devices=2", *words, model=model)))


@pytest.mark.parametrize(
    "given, forward, backward",
    [
        ("parallel.sequence=false", ["all_reduce"] * 2, ["all_reduce"] * 2),
        (
            "parallel.sequence=true",
            ["all_gather", "reduce_scatter"] * 2,
            ["all_gather", "all_gather", "reduce_scatter"] * 2,
        ),
    ],
)
def test_a_layer_exchanges_what_megatron_exchanges(
    given: str, forward: Sequence[str], backward: Sequence[str]
) -> None:
    table = calls("middle", "parallel.tp=2", given)
    table = table[table["family"] == "collective"]
    activations = 2 * 256 * 512 * 2
    assert set(table["bytes_written"].clip(lower=activations)) == {activations}
    assert table["op"][table["phase"] == "forward"].tolist() == forward
    assert sorted(table["op"][table["phase"] == "backward"]) == sorted(backward)


def test_collectives_run_on_a_stream_of_their_axis_and_groups_are_on_a_node() -> None:
    table = calls("middle", "parallel.tp=2", "devices=16")
    moved = table[table["family"] == "collective"]
    assert set(moved["stream"]) == {2} and set(moved["ranks"]) == {2} and set(moved["nodes"]) == {1}


def _ranks_agree(rank: int, place: str) -> None:
    """One of two real processes: a layer that is split computes what the whole layer computes."""
    os.environ |= {"MASTER_ADDR": "localhost", "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", f"file://{place}", rank=rank, world_size=2)
    for sequence in (False, True):
        _layer_agrees(rank, sequence)
    dist.destroy_process_group()


def _layer_agrees(rank: int, sequence: bool) -> None:
    torch.manual_seed(0)
    whole = DecoderLayer(tiny_sizes(Shards()))
    for weight in whole.parameters():
        nn.init.normal_(weight, std=0.2)
    own = DecoderLayer(tiny_sizes(Shards(2, sequence, dist.group.WORLD)))
    for full, part in zip(whole.parameters(), own.parameters(), strict=True):
        axis = next((a for a in range(full.dim()) if full.shape[a] != part.shape[a]), None)
        data = full if axis is None else full.chunk(2, axis)[rank]
        part.data.copy_(data)
    x = torch.randn(8, 2, 32, requires_grad=True)
    mine = x.detach().chunk(2)[rank] if sequence else x.detach()
    mine.requires_grad_()
    expected = whole.eval()(x, None)
    got = own.eval()(mine, None)
    expected.sum().backward()
    got.sum().backward()
    wanted = expected.chunk(2)[rank] if sequence else expected
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    gradient = x.grad.chunk(2)[rank] if sequence else x.grad
    torch.testing.assert_close(mine.grad, gradient, rtol=1e-4, atol=1e-4)
    up, part = whole.feed_forward.up.weight.grad, own.feed_forward.up.weight.grad
    torch.testing.assert_close(part, up.chunk(2)[rank], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not dist.is_gloo_available(), reason="PyTorch was built without gloo")
def test_ranks_that_share_a_layer_compute_what_one_does(tmp_path: Path) -> None:
    processes.spawn(_ranks_agree, (str(tmp_path / "store"),), nprocs=2)


def test_timelines_and_figures_show_the_stages_of_a_pipeline() -> None:
    asked = question("devices=4", "parallel.pp=4", "parallel.micro_batches=6")
    answer = Engine().predict_one(asked)
    rows = [e["args"]["name"] for e in answer.other_rank if e["name"] == "thread_name"]
    assert [row.partition(",")[0] for row in rows] == [f"stage {n}" for n in range(4)]
    passes = [e for e in answer.other_rank if e["name"].startswith("backward of micro-batch")]
    assert len(passes) == 4 * 6
    axes = answer.whole().plot("stages").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == rows
    with pytest.raises(InputError, match="no pipeline"):
        Engine().predict_one(question("devices=2")).whole().plot("stages")


def test_steps_of_other_layouts_are_drawn_by_their_parts() -> None:
    asked = [question("devices=4", f"parallel.tp={tp}") for tp in (1, 4)]
    found = [answer.whole() for answer in Engine().predict(asked, with_interval=False)]
    table = layout_families(found)
    assert set(table["gpu"]) == {"dp 4", "dp 1, tp 4"}
    times = table.groupby("gpu")["device_us"].sum()
    assert sorted(times) == pytest.approx(sorted(p.predicted_us for p in found), rel=1e-3)
    assert layout_families(found[:1]).empty


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
        step_us(*words, option)
        for option in (
            "predict.wait_each_step=true",
            "predict.cuda_graph=true",
            "predict.launch_blocking=true",
        )
    )
    assert graphs < 0.8 * eager < 0.7 * waiting


def test_what_is_computed_again_counts_as_forward_kernels() -> None:
    kinds = {
        name: calls("middle", f"model.checkpointing={name}")
        for name in ("none", "selective", "full")
    }
    forward = {name: int((table["phase"] == "forward").sum()) for name, table in kinds.items()}
    assert forward["none"] < forward["selective"] < forward["full"]
    flops = {name: table["flops"].sum() for name, table in kinds.items()}
    assert flops["full"] == pytest.approx(flops["none"] * 4 / 3, rel=0.02)


def needs(*words: str) -> int:
    return STEPS.memory_bytes(question(*words))


def test_memory_counts_the_passes_that_wait_and_what_is_computed_again() -> None:
    pipeline = ("devices=4", "parallel.pp=4", "model.width=1024", "model.seq_len=1024")
    one, many = (needs(*pipeline, f"parallel.micro_batches={count}") for count in (1, 8))
    asked = question(*pipeline)
    saved = _memory(piece("first", asked)).saved
    assert many - one == pytest.approx(3 * saved, rel=0.1)
    assert (
        _memory(piece("first", question(*pipeline, "model.checkpointing=full"))).saved < saved / 4
    )


def _memory(asked: Question) -> Memory:
    return STEPS.graph(asked).memory


def test_a_distributed_optimizer_holds_its_part_of_the_states() -> None:
    words = ("devices=8", "model.width=1024")
    whole, part = (
        _memory(piece("middle", question(*words, f"parallel.zero={zero}"))).optimizer
        for zero in ("false", "true")
    )
    assert part == pytest.approx(whole / 8, rel=0.02)


def test_results_of_collectives_are_not_kept() -> None:
    split = _memory(piece("middle", question("devices=2", "parallel.tp=2")))
    alone = _memory(piece("middle", question("devices=2")))
    assert split.saved < alone.saved


def test_an_answer_says_how_the_work_is_shared() -> None:
    words = ("devices=16", "parallel.tp=2", "parallel.pp=4", "parallel.micro_batches=8")
    (answer,) = Engine().predict(
        [
            question(
                *words,
                model="llama",
            )
        ]
    )
    told = answer.whole().as_dict()
    layout = {key: told[key] for key in ("dp", "tp", "cp", "pp", "micro_batches")}
    assert layout == {"dp": 2, "tp": 2, "cp": 1, "pp": 4, "micro_batches": 8}
    assert told["global_batch"] == 2 * 2 * 8 and told["efficiency"] is None
    assert told["p10_us"] < told["predicted_us"] < told["p90_us"]
    assert 0 < told["exposed_communication_us"] <= told["communication_us"]
    assert told["active_us"] < told["predicted_us"]
    parts = answer.whole().drawn
    assert parts is None or np.isfinite(sum(parts.parts().values())).all()
    json.dumps(told)


@pytest.mark.parametrize(
    "given, says",
    [
        ("devices=6 parallel.tp=4", "devices=6: not a multiple of tp x cp x pp = 4 x 1 x 1 = 4"),
        ("devices=8 parallel.pp=3", "not a multiple"),
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
        ("model.checkpointing=some", "choose one of full, none, selective"),
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


def test_any_model_has_micro_batches() -> None:
    words: Any = ["gpu=A100", "model=resnet50", "batch_size=16"]
    one, four = (
        next(Engine().predict([ask([*words, *more])], with_interval=False)).whole()
        for more in ([], ["parallel.micro_batches=4"])
    )
    assert four.global_batch == 4 * one.global_batch
    assert 3 * one.predicted_us < four.predicted_us < 4.05 * one.predicted_us
