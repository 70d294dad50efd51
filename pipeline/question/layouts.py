"""The layouts among which a plan of a decoder chooses where its space leaves them open: ranks along axes, and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from pipeline.question.checks import flatten
from pipeline.question.compose import Point, configuration, parse_grid
from pipeline.question.several_gpus import SPLIT_MODELS

TP, CP, PP, PASSES, SAMPLES = (
    "parallel.tp", "parallel.cp", "parallel.pp", "parallel.micro_batches", "batch_size",
)  # fmt: skip

TRIED = {TP: (1, 2, 4, 8), SAMPLES: (1, 2, 4, 8)}
"""Values that are tried. More tensor-parallel ranks than a usual node has GPUs are slow: they are tried where they are given."""

UPDATE_TOKENS = 4 << 20
"""Tokens of an update where no global batch is given: 4 million, as Llama's (arXiv:2302.13971, table 2)."""


def divisors(number: int) -> list[int]:
    """All divisors of a number, ascending."""
    return [each for each in range(1, number + 1) if number % each == 0]


def layouts_of(point: Point, global_batch: int | None = None) -> Iterator[Point]:
    """The points of a plan's space that a point stands for: decoders on several GPUs get every layout that it leaves open.

    Micro-batches are as many as make an update of `global_batch` samples. Layouts that do not divide the model are found out later.

    Args:
        point: overrides; those of `TP`, `PP`, `PASSES` and `SAMPLES` are kept as they are given.
        global_batch: samples of an update; None: of `UPDATE_TOKENS`, and at least one for each GPU.
    """
    given = {override.key: override.value for override in point}
    devices, name = given.get("devices", 1), given.get("model")
    several = isinstance(devices, int) and devices > 1
    model = configuration({"model": str(name)})["model"] if name and several else {}
    if model.get("architecture") not in SPLIT_MODELS:
        yield point
        return
    of = flatten({"model": model}) | given
    samples = global_batch or max(UPDATE_TOKENS // int(of["model.seq_len"]), devices)
    tried = {**TRIED, PP: divisors(gcd(devices, of["model.layers"]))}
    open_axes = {key: values for key, values in tried.items() if key not in given}
    for axes in parse_grid([f"{key}={','.join(map(str, v))}" for key, v in open_axes.items()]):
        chosen = given | {override.key: override.value for override in axes}
        shares = chosen[TP] * chosen.get(CP, 1) * chosen[PP]
        if devices % shares:
            continue
        if PASSES in given:
            yield point + axes
            continue
        passes, left = divmod(samples, devices // shares * chosen[SAMPLES])
        if not left:
            yield (*point, *axes, *parse_grid([f"{PASSES}={passes}"])[0])
