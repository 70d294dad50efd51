"""The memory that a step takes of a GPU: its tensors, and what PyTorch and CUDA add to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.graph.table import Memory
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.stages import held_pieces, in_flight, of_part
from pipeline.question.placed_tables import placed_by, tables_of
from pipeline.question.several_gpus import ParallelSettings, Ranks

BLOCK_BYTES = 512
"""PyTorch's allocator rounds each tensor up to a multiple of this: `kMinBlockSize` in c10/cuda/CUDACachingAllocator.cpp."""

SEGMENT_BYTES = 22 << 20
"""One partly used segment of each pool: 2 MiB for tensors up to 1 MiB, 20 MiB for those up to 10 MiB (`kSmallBuffer`,
`kLargeBuffer` there)."""

CONTEXT_BYTES_PER_SM = 3_700_000
"""Bytes of the CUDA context and loaded kernels per SM: median of nine out-of-memory messages, which state the memory in use
without PyTorch's (T4, RTX 2080 Ti, L4, RTX 3090, A100, L40, H100 and RTX 5090: 1.9 to 6.7 MB)."""


def widened_gradients(parallel: ParallelSettings, model: Mapping[str, Any]) -> int:
    """Bytes of a gradient that a decoder keeps and exchanges over those of its weight.

    Megatron-LM keeps and sums gradients of bf16 weights in fp32 (`accumulate_allreduce_grads_in_fp32`), unless they are exchanged
    in half precision.
    """
    halves = model["precision"] == "pure" and model["dtype"] == "bf16"
    return 2 if halves and parallel.compression == "none" else 1


def stage_memory(pieces: Sequence[Memory], ranks: Ranks, model: Mapping[str, Any]) -> Memory:
    """The need of the stage of a pipeline, or of the rank with its tables, that needs most.

    Args:
        pieces: need of one micro-batch in each piece of the model (`Question.chunks`).
        ranks: how many stages, parts, layers and micro-batches there are.
        model: section `model`.
    """
    if ranks.parallel.spreads:
        return _with_most_tables(pieces[0], model)
    needs = stage_memories(pieces, ranks, model) if ranks.layers else pieces
    return max(needs, key=lambda need: need.peak)


def _with_most_tables(need: Memory, model: Mapping[str, Any]) -> Memory:
    """The need of the rank with most tables, from that of the first rank (`Question.roles`)."""
    placed, of = placed_by(model), tables_of(model)
    assert placed is not None
    plan, rank = placed
    held = [sum(of.rows[table] * columns for table, columns in parts) for parts in plan.parts]
    more, states = 4 * (max(held) - held[rank]), of.states
    return replace(
        need,
        parameters=need.parameters + more,
        optimizer=need.optimizer + states * more,
        peak=need.peak + (1 + states) * more,
    )


def stage_memories(
    pieces: Sequence[Memory], ranks: Ranks, model: Mapping[str, Any]
) -> list[Memory]:
    """The need of each stage of a pipeline; arguments as of `stage_memory`."""
    of, needs = ranks.parallel, []
    widened = widened_gradients(of, model)
    for stage, held in enumerate(held_pieces(of.pp, of.parts, ranks.layers, len(pieces))):
        own = [pieces[number] for number, times in held.items() for _ in range(times)]
        begins = [of_part(part, of.parts) for part in range(stage, of.parts, of.pp)]
        sizes = [pieces[each].saved + (ranks.layers - 1) * pieces[-1].saved for each in begins]
        waiting = in_flight(stage, of.pp, of.micro_batches, sizes)
        needs.append(_of_stage(own, waiting, widened))
    return needs


def _of_stage(pieces: Sequence[Memory], waiting: int, widened: int) -> Memory:
    """The need of a stage with these pieces.

    Args:
        pieces: its layers, each a micro-batch.
        waiting: what forward passes keep for their backward passes, bytes.
        widened: bytes of a kept gradient over those of a weight.
    """
    states = [piece.parameters + piece.gradients + piece.optimizer for piece in pieces]
    working = max(p.peak - held - p.saved for p, held in zip(pieces, states, strict=True))
    more = (widened - 1) * sum(piece.gradients for piece in pieces)
    return Memory(
        parameters=sum(piece.parameters for piece in pieces),
        gradients=widened * sum(piece.gradients for piece in pieces),
        optimizer=sum(piece.optimizer for piece in pieces),
        inputs=max(piece.inputs for piece in pieces),
        blocks=sum(piece.blocks for piece in pieces),
        peak=sum(states) + more + working + waiting,
        saved=sum(piece.saved for piece in pieces),
    )


def needed_bytes(memory: Memory, gpu: GpuSpec) -> int:
    """The bytes that a process takes of a GPU's memory for a step: about what `nvidia-smi` shows."""
    if gpu.limits is None or not memory.peak:  # a CPU, or the graph of a trace
        return memory.peak
    threads = 2 if memory.gradients else 1  # the backward pass has a thread of its own
    return (
        memory.peak
        + BLOCK_BYTES * memory.blocks
        + SEGMENT_BYTES
        + gpu.generation.cublas_workspace_bytes * threads
        + CONTEXT_BYTES_PER_SM * gpu.sms
    )
