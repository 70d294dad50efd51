"""Steps of four ranks beside four real processes: FSDP2 around tensor parallelism, and pipelines."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from pipeline.answers.predict import predict
from pipeline.answers.scheduled_step import BETWEEN_STAGES, exchanges
from pipeline.as_on_cuda.one_gpu import one_gpu
from pipeline.graph.capture import first_rank, observe
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.table import Graph, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.stages import order
from pipeline.question.question import ask
from pipeline.workloads.training_step import Step
from tests.graph import gloo_mesh, gloo_stages
from tests.graph.real_processes import run_real

GPU = "A100-SXM4-80GB"


def shared_step(plan: str) -> Any:
    """A step of layers that are shared as in the real processes, with an optimizer."""

    def step(config: Any, batch_size: int, device: str) -> Step:
        torch.distributed.init_process_group("nccl")
        with torch.device(device):
            model = nn.Sequential(*(gloo_mesh.Layer() for _ in range(3)))
        gloo_mesh.share(model, "cuda", plan)
        optimizer = torch.optim.AdamW(model.parameters())

        def procedure(batch: Any, _: Any) -> None:
            gloo_mesh.train(model, *batch)
            optimizer.step()
            optimizer.zero_grad()

        batch = (torch.rand(batch_size, 8, 64),)
        return Step([model], [batch], None, None, device, config, procedure=procedure)

    return step


def collectives(calls: pd.DataFrame) -> list[tuple[str, int]]:
    own = calls[calls["family"] == "collective"]
    sizes = own[["bytes_read", "bytes_written"]].max(axis=1).astype(int)
    return list(zip(own["op"], sizes, strict=True))


@pytest.mark.nightly
def test_sharded_and_shared_layers_exchange_what_four_real_processes_exchange() -> None:
    real = run_real(gloo_mesh.main, 4)
    for plan in gloo_mesh.PLANS:
        answer = predict(GPU, step=shared_step(plan), batch_size=2, devices=4)
        assert answer.calls is not None
        assert collectives(answer.calls) == real[plan]


def test_operators_and_memory_of_shared_weights_are_those_of_one_rank() -> None:
    config = {"architecture": "custom", "layout": {"dp": 4}, "ddp": {}, "optimizer": "none"}
    with first_rank(config), one_gpu("meta"):
        nodes, memory, *_ = observe(shared_step("tensor")(config, 2, "meta"), False, config)
    graph = Graph(write_nodes(nodes), memory)
    calls = map_calls(graph, load_gpu(GPU))
    whole = sum(weight.numel() for weight in gloo_mesh.Layer().parameters())
    norm, bias = 2 * 64, 64  # not split by tensor parallelism
    own = 3 * 4 * ((whole - norm - bias) / 2 + norm + bias) / 2
    update = calls[(calls["phase"] == "optimizer") & (calls["op"] == "foreach_sqrt")]
    assert update["bytes_read"].sum() == own
    assert set(calls.loc[calls["op"] == "linear", "flops"]) == {2 * 16 * 64 * 128}
    assert not unknown_operators(graph, calls)
    assert memory.parameters == memory.gradients == own and memory.optimizer == 2 * own
    assert memory.peak < 4 * own + 2 * 2**20


@pytest.mark.nightly
def test_stages_pass_and_send_as_four_real_processes_do() -> None:
    real = run_real(gloo_stages.main, 4)
    stages, count = gloo_stages.STAGES, gloo_stages.MICRO_BATCHES
    words = (
        f"gpu={GPU} model=gpt devices={stages} parallel.pp={stages} parallel.micro_batches={count}"
        f" batch_size={gloo_stages.SAMPLES} model.width={gloo_stages.WIDTH} model.layers=4"
        f" model.seq_len={gloo_stages.TOKENS} model.heads=4 model.precision=autocast"
        " model.dtype=default"
    )
    exchanged = exchanges(ask(words.split()), [0, 0, 0])
    (size,) = exchanged.loc[exchanged["what"] == BETWEEN_STAGES, "bytes_read"]
    for chunks, ranks in real.items():
        for stage, (passes, sent) in enumerate(ranks):
            tasks = order(stage, stages, chunks, count)
            assert passes == [(t.chunk, t.micro_batch, t.forward) for t in tasks]
            nexts = [t.chunk * stages + stage + (1 if t.forward else -1) for t in tasks]
            there = [part for part in nexts if 0 <= part < stages * chunks]
            assert sent == [(size, part % stages) for part in there]
