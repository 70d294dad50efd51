"""Capture of steps whose weights are sharded (FSDP2): what is exchanged, what waits for it, and what a rank holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from pipeline.answers.predict import predict
from pipeline.graph.capture import observe, sharding
from pipeline.graph.device_calls import map_calls, stream_waits, unknown_operators
from pipeline.graph.table import Graph, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.rank_layout import Layout
from pipeline.question.several_gpus import FsdpSettings
from pipeline.workloads.training_step import Step
from tests.graph.gloo_shards import Blocks, main
from tests.graph.real_processes import run_real

GPU = "A100-SXM4-80GB"


def captured(optimizer: str = "none", **changed: Any) -> tuple[Graph, pd.DataFrame]:
    """The operators and device calls of a step as one of two (or four) ranks runs it."""
    from pipeline.as_on_cuda.recording_group import recording_group

    options = {**asdict(FsdpSettings()), "sizes": [1, 2], **changed}
    groups, shards = options["sizes"]
    sizes = {"fsdp": shards, **({"dp": groups} if groups > 1 else {})}
    config = {"architecture": "custom", "optimizer": optimizer, "layout": sizes, "fsdp": options}
    with recording_group(Layout(tuple(sizes.items()))), sharding(config):
        with torch.device("meta"):
            model = Blocks()
        pool: Any = [(torch.empty(4, 33),)]
        step = Step([model], pool, lambda x: model(x).sum(), None, "meta", config)
        nodes, memory, *_ = observe(step, False, config)
    graph = Graph(write_nodes(nodes), memory)
    return graph, map_calls(graph, load_gpu(GPU))


def exchanged(calls: pd.DataFrame) -> list[tuple[str, int]]:
    own = calls[calls["family"] == "collective"]
    return list(zip(own["op"], own["bytes"].astype(int), strict=True))


@pytest.mark.nightly
def test_collectives_are_those_of_two_real_processes() -> None:
    real = run_real(main)
    graph, calls = captured()
    assert exchanged(calls) == real
    assert [op for op, _ in real].count("all_gather") == 7  # blocks twice, the rest once
    assert not unknown_operators(graph, calls)


def test_a_collective_never_begins_before_its_producer_ends() -> None:
    graph, calls = captured("adamw", mixed_precision="bf16")
    waits = stream_waits(graph.table, calls)
    names = calls["node_id"].map(graph.table.set_index("node_id")["name"])
    filled = {
        "nccl:all_gather": "fsdp::all_gather_copy_in",
        "nccl:reduce_scatter": "fsdp::chunk_cat",
    }
    collectives = calls.index[calls["family"] == "collective"]
    assert len(collectives) == 11
    for row in collectives:
        producer = names[:row].index[names[:row] == filled[names[row]]][-1]
        reached, ahead = set[int](), [row]
        while ahead:  # what has ended when it begins: waits, and earlier calls of a stream
            here = ahead.pop()
            same = calls.index[(calls["stream"] == calls.at[here, "stream"]) & (calls.index < here)]
            further = {*waits.get(here, ()), *same[-1:]} - reached
            reached |= further
            ahead += further
        assert producer in reached
    updates = calls.index[calls["phase"] == "optimizer"]
    last = calls.index[calls["op"] == "reduce_scatter"].max()
    assert any(last <= other < updates[0] for row in waits for other in waits[row])


def test_a_rank_holds_and_updates_its_part_and_gathers_a_block_at_a_time() -> None:
    whole = sum(weight.numel() for weight in Blocks().parameters())
    graph, calls = captured("adamw")
    memory = graph.memory
    assert memory.parameters == memory.gradients == pytest.approx(4 * whole / 2, rel=0.02)
    assert memory.optimizer == 2 * memory.parameters
    kept, _ = captured("adamw", reshard_after_forward=False)
    gathered = kept.memory.peak - memory.peak
    assert 0 < gathered < 4 * whole
    update = calls[(calls["phase"] == "optimizer") & (calls["op"] == "foreach_sqrt")]
    assert update["bytes_read"].sum() == memory.parameters


def test_half_precision_and_replicas_change_what_is_exchanged() -> None:
    _, plain = captured()
    _, half = captured(mixed_precision="bf16", reduce_dtype="same")
    assert [(op, size / 2) for op, size in exchanged(plain)] == exchanged(half)
    _, hybrid = captured(sizes=[2, 2])
    summed = hybrid[hybrid["op"] == "all_reduce"]
    assert len(summed) == 4
    axes = {json.loads(text)["axis"] for text in summed["attributes"]}
    assert axes == {"dp"}


def test_a_users_own_sharding_is_captured_as_written() -> None:
    def step(config: Any, batch_size: int, device: str) -> Step:
        from torch.distributed import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (torch.distributed.get_world_size(),))
        with torch.device(device):
            model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        for part in (*model, model):
            fully_shard(part, mesh=mesh)
        batch = (torch.rand(batch_size, 64),)
        return Step([model], [batch], lambda x: model(x).sum(), None, device, config)

    answer = predict(GPU, step=step, batch_size=8, devices=4)
    assert answer.calls is not None and answer.several is not None
    ops = answer.calls["op"].value_counts()
    assert (ops["all_gather"], ops["reduce_scatter"]) == (4, 2)
    assert answer.several.communication_us > 0


def test_more_ranks_hold_less_and_exchange_more() -> None:
    options: Any = {"model": Blocks, "loss": nn.CrossEntropyLoss(), "optimizer": "adamw"}
    batch = torch.rand(4, 33), torch.randint(7, (4,))
    few, many = (
        predict(GPU, **options, batch=batch, devices=devices, parallel="fsdp")
        for devices in (2, 64)
    )
    assert few.several is not None and many.several is not None
    assert many.memory_bytes < few.memory_bytes
    assert many.several.communication_us > few.several.communication_us
    assert (few.several.dp, many.several.dp) == (2, 64)
