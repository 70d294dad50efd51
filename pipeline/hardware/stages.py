"""The stages of a pipeline: which parts of the model each holds, and the order of its passes.

Orders: 1F1B (PipeDream-flush, arXiv:2006.09503), and interleaved where a stage holds several parts (arXiv:2104.04473).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Task(NamedTuple):
    """A pass of a micro-batch through one of the parts of a stage."""

    chunk: int
    micro_batch: int
    forward: bool


def order(stage: int, stages: int, chunks: int, count: int) -> list[Task]:
    """The passes of a stage: 1F1B, with several chunks a stage interleaved (Megatron-LM, core/pipeline_parallel/schedules.py).

    Args:
        stage: its place, from 0.
        stages: of the pipeline.
        chunks: parts of the model on each stage; with several, `count` is a multiple of `stages`.
        count: micro-batches.
    """
    total, group = count * chunks, stages * chunks

    def task(place: int, forward: bool) -> Task:
        chunk = place % group // stages
        return Task(
            chunk if forward else chunks - 1 - chunk,
            place // group * stages + place % stages if chunks > 1 else place,
            forward,
        )

    ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
    ahead = min(ahead, total)
    tasks = [task(place, True) for place in range(ahead)]
    for place in range(total - ahead):
        tasks += [task(ahead + place, True), task(place, False)]
    return tasks + [task(place, False) for place in range(total - ahead, total)]


def of_part(part: int, parts: int) -> int:
    """The piece of the model with which a part begins or ends, of the first, the last and the middle layer: its number there.

    The last of the pieces is the middle layer, and stands for all further layers.
    """
    return 0 if part == 0 else 1 if part == parts - 1 else -1


def held_pieces(stages: int, parts: int, layers: int, pieces: int) -> list[dict[int, int]]:
    """How often each stage holds each piece of the model, by the number of the piece.

    Args:
        stages: of the pipeline.
        parts: of the model.
        layers: of each part; 0 for a model whose only piece is the whole.
        pieces: how many there are (`of_part`).
    """
    found: list[dict[int, int]] = [{} for _ in range(stages)]
    for part in range(parts):
        held = found[part % stages]
        for piece, times in ((of_part(part, parts), 1), (-1, max(layers - 1, 0))):
            held[piece % pieces] = held.get(piece % pieces, 0) + times
    return found


def in_flight(stage: int, stages: int, count: int, sizes: Sequence[int]) -> int:
    """The largest sum of what the forward passes of a stage keep for their backward passes.

    Args:
        stage: its place, from 0.
        stages: of the pipeline.
        count: micro-batches.
        sizes: what a pass through each chunk of the stage keeps.
    """
    tasks = order(stage, stages, len(sizes), count)
    steps = [sizes[task.chunk] * (1 if task.forward else -1) for task in tasks]
    return int(np.cumsum(steps).max())
