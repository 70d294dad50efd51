"""A pipeline of four stages in four real processes, by PyTorch's own schedules: its passes, and what each rank sends."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.workloads.decoder_operators import Shards
from pipeline.workloads.parallel_decoder import DecoderLayer
from tests.workloads.tiny_decoder import tiny_sizes

STAGES = 4
TOKENS, SAMPLES, WIDTH = 8, 2, 32
MICRO_BATCHES = 8

Passes = list[tuple[int, int, bool]]
"""Chunk, micro-batch, and whether forward, in the order of a rank."""

Sends = list[tuple[int, int]]
"""Bytes and the rank that gets them, in the order of a rank."""


class Part(nn.Module):
    """A layer of a decoder as a stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = DecoderLayer(tiny_sizes(Shards()))
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x, None)
        return y


class Sent(TorchDispatchMode):
    """Notes what a rank sends."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Sends = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "c10d.send.default":
            self.calls.append((sum(tensor.nbytes for tensor in args[0]), int(args[2])))
        return func(*args, **(kwargs or {}))


def run(rank: int, chunks: int) -> tuple[Passes, Sends]:
    """One step of a rank with some parts of the model."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

    stages = [
        PipelineStage(Part(), rank + STAGES * chunk, STAGES * chunks, torch.device("cpu"))
        for chunk in range(chunks)
    ]
    passes: Passes = []

    def noted(usual: Any, chunk: int, forward: bool) -> Any:
        def call(number: int, *args: Any, **named: Any) -> Any:
            passes.append((chunk, number, forward))
            return usual(number, *args, **named)

        return call

    def loss(y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return y.sum()

    schedule: Any = (
        Schedule1F1B(stages[0], MICRO_BATCHES, loss)
        if chunks == 1
        else ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss)  # type: ignore[arg-type]
    )
    # the first axis of a whole batch is cut into micro-batches
    x = torch.rand(MICRO_BATCHES * TOKENS, SAMPLES, WIDTH)
    given = (x,) if rank == 0 else ()
    target = {"target": x} if rank == STAGES - 1 else {}
    schedule.step(*given, **target)  # the first step asks for shapes
    for chunk, stage in enumerate(stages):
        changed: Any = stage
        changed.forward_one_chunk = noted(stage.forward_one_chunk, chunk, True)
        changed.backward_one_chunk = noted(stage.backward_one_chunk, chunk, False)
    with Sent() as sent:
        schedule.step(*given, **target)
    return passes, sent.calls


def main(rank: int) -> dict[int, list[tuple[Passes, Sends]]]:
    found = {}
    for chunks in (1, 2):
        own, all_ranks = run(rank, chunks), [None] * STAGES
        dist.all_gather_object(all_ranks, own)
        found[chunks] = all_ranks
    return found  # type: ignore[return-value]
