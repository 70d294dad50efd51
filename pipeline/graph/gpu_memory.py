"""The memory that a step takes of a GPU: its tensors, and what PyTorch and CUDA add to them."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.graph.table import Memory
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.stages import held_pieces, in_flight
from pipeline.question.several_gpus import Ranks

BLOCK_BYTES = 512
"""PyTorch's allocator rounds each tensor up to a multiple of this: `kMinBlockSize` in c10/cuda/CUDACachingAllocator.cpp."""

SEGMENT_BYTES = 22 << 20
"""One partly used segment of each pool: 2 MiB for tensors up to 1 MiB, 20 MiB for those up to 10 MiB (`kSmallBuffer`,
`kLargeBuffer` there)."""

CONTEXT_BYTES_PER_SM = 3_700_000
"""Bytes of the CUDA context and loaded kernels per SM: median of nine out-of-memory messages, which state the memory in use
without PyTorch's (T4, RTX 2080 Ti, L4, RTX 3090, A100, L40, H100 and RTX 5090: 1.9 to 6.7 MB)."""


def stage_memory(pieces: Sequence[Memory], ranks: Ranks) -> Memory:
    """The need of the stage of a pipeline that needs most; without layers of their own, that of the only piece.

    Args:
        pieces: need of one micro-batch in each piece of the model (`Question.chunks`).
        ranks: how many stages, parts, layers and micro-batches there are.
    """
    if not ranks.layers:
        return pieces[0]
    of, needs = ranks.parallel, []
    for stage, held in enumerate(held_pieces(of.pp, of.parts, ranks.layers, len(pieces))):
        own = [pieces[number] for number, times in held.items() for _ in range(times)]
        waiting = in_flight(stage, of.pp, of.virtual_stages, of.micro_batches)
        needs.append(_of_stage(own, waiting / of.virtual_stages))
    return max(needs, key=lambda need: need.peak)


def _of_stage(pieces: Sequence[Memory], waiting: float) -> Memory:
    """The need of a stage with these pieces, where at most `waiting` forward passes through all wait for their backward passes."""
    saved = sum(piece.saved for piece in pieces)
    states = [piece.parameters + piece.gradients + piece.optimizer for piece in pieces]
    working = max(p.peak - held - p.saved for p, held in zip(pieces, states, strict=True))
    return Memory(
        parameters=sum(piece.parameters for piece in pieces),
        gradients=sum(piece.gradients for piece in pieces),
        optimizer=sum(piece.optimizer for piece in pieces),
        inputs=max(piece.inputs for piece in pieces),
        blocks=sum(piece.blocks for piece in pieces),
        peak=sum(states) + working + round(waiting * saved),
        saved=saved,
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
