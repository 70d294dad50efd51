"""Layouts of a decoder that fit where one does not: the least change of it, and the least number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from pipeline.errors import SteptimeError
from pipeline.question.layouts import PASSES, PP, SAMPLES, TP, TRIED, divisors
from pipeline.question.question import Question, expand

CHECKPOINTING, ZERO = "model.checkpointing", "parallel.zero"

Change = dict[str, object]
"""Options with the values that they get."""


def least_change(question: Question, memory_bytes: Callable[[Question], int]) -> str:
    """The overrides that make a decoder fit its GPUs with its batch: first one option, then two; empty where none do."""
    return next(_fitting(question, _changes(question), memory_bytes), "")


def least_devices(question: Question, memory_bytes: Callable[[Question], int]) -> str:
    """The layout with the fewest GPUs, of one replica and one sample a pass, that a decoder fits; empty where none does."""
    assert question.ranks is not None
    of, stages = question.ranks.parallel, divisors(int(question.workload["layers"]))
    shares = sorted(product(TRIED[TP], stages), key=lambda each: each[0] * each[1])
    changes: Iterable[Change] = (
        {"devices": tp * pp * of.cp, TP: tp, PP: pp, PASSES: max(of.micro_batches, pp), SAMPLES: 1}
        for tp, pp in shares
    )
    return next(_fitting(question, changes, memory_bytes), "")


def _changes(question: Question) -> Iterator[Change]:
    """Changes of a layout that lessen its memory, the least first."""
    assert question.ranks is not None
    of, kept = question.ranks.parallel, question.workload["checkpointing"]
    eager = question.workload["attention"] != "fused"  # fused attention keeps little
    less: list[Change] = [{CHECKPOINTING: "selective"}] * (kept == "none" and eager)
    less += [{ZERO: "true"}] * (not of.zero and question.ranks.replicas > 1)
    split: list[Change] = [
        {key: size * more} for more in (2, 4, 8) for key, size in ((TP, of.tp), (PP, of.pp))
    ]
    full: list[Change] = [{CHECKPOINTING: "full"}] * (kept != "full")
    yield from (*less, *split[:2], *full, *split[2:])
    yield from ({**whole, **each} for each in (*less, *split) for whole in full)


def _fitting(
    question: Question, changes: Iterable[Change], memory_bytes: Callable[[Question], int]
) -> Iterator[str]:
    """The changes with which a question fits its GPU, as overrides; layouts that cannot be are left out."""
    for change in changes:
        own = {"gpu": question.gpu.name, "model": question.model, SAMPLES: question.batch_size}
        own |= dict(text.split("=", 1) for text in question.overrides if "nodes=" not in text)
        try:
            (asked,) = expand([f"{key}={value}" for key, value in {**own, **change}.items()])
            fits = memory_bytes(asked) <= asked.gpu.usable_memory_bytes
        except SteptimeError:
            continue
        if fits:
            yield " ".join(f"{key}={value}" for key, value in change.items())
