"""What the rank of a stage holds follows from its layers, their passes in flight, and the dtype of gradients."""

from __future__ import annotations

import pytest

from pipeline.graph.gpu_memory import stage_memories
from pipeline.graph.table import Memory
from pipeline.question.question import ask

SIZES = "model.layers=12 model.width=512 model.heads=8 model.seq_len=1024 batch_size=4"
LAYER = Memory(parameters=10, gradients=10, optimizer=60, peak=480, saved=100)
HEAD = Memory(parameters=50, gradients=50, optimizer=300, peak=1200, saved=300)


@pytest.mark.parametrize(
    "more, gradients, peak",
    [
        # 3 layers, the head among them: 9 chunks of 1 layer are in flight, one of them with the head
        ("dtype=bf16 parallel.virtual_stages=3", 140, 560 + 70 + 500 + 1100),
        ("dtype=bf16", 140, 560 + 70 + 500 + 500),
        ("dtype=bf16 parallel.compression=bf16", 70, 560 + 500 + 500),
        ("dtype=fp16", 70, 560 + 500 + 500),
    ],
)
def test_the_last_stage_keeps_its_head_once_and_bf16_gradients_in_fp32(
    more: str, gradients: int, peak: int
) -> None:
    words = f"gpu=A100-SXM4-80GB model=gpt devices=4 parallel.pp=4 {SIZES} model.{more}"
    question = ask([*words.split(), "parallel.micro_batches=8"])
    assert question.ranks is not None
    last = stage_memories([HEAD, HEAD, LAYER], question.ranks, question.workload)[-1]
    assert (last.gradients, last.peak) == (gradients, peak)
