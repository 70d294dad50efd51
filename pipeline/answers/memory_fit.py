"""What would fit: for a step that needs more memory than its GPU has, and the largest batch of one that fits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from pipeline.answers.fitting_layouts import least_change
from pipeline.errors import SteptimeError
from pipeline.hardware.find_gpu import list_gpus
from pipeline.prediction import Prediction
from pipeline.question.question import Question

MemoryBytes = Callable[[Question, int], int]
"""Memory need in bytes of a question's step at a batch size."""

GROWTH = 8
"""How many times as large the next batch size may be whose memory is asked for: numbers of far larger batches mislead."""

MAX_TRIES = 8
"""Batch sizes that an estimate asks for, beside the first two."""


def with_what_fits(
    prediction: Prediction, question: Question, memory_bytes: MemoryBytes
) -> Prediction:
    """A prediction that does not fit, with about the largest batch that fits, and the GPUs that its own batch fits on."""
    enough = [spec for spec in list_gpus() if spec.usable_memory_bytes >= prediction.memory_bytes]
    names = tuple(
        spec.name for spec in sorted(enough, key=lambda spec: (spec.memory_bytes, spec.name))
    )
    largest, change = None, ""
    with suppress(SteptimeError):  # the step cannot be captured at another batch size
        largest = largest_batch(question, memory_bytes)
    if question.ranks is not None and question.ranks.layers:
        change = least_change(question, lambda each: memory_bytes(each, each.batch_size))
    return replace(prediction, largest_batch=largest, fitting_gpus=names, fitting_change=change)


def largest_batch(question: Question, memory_bytes: MemoryBytes) -> int | None:
    """About the largest batch whose memory need fits the GPU, down to two digits; None where not even one sample fits.

    The need is convex over the batch size: it is the largest of the lines of all moments of the step. So the line through a
    size that fits and one that does not meets the limit at a size that fits. A user's own step is not captured at more than
    `GROWTH` times its batch, because it may fill its inputs with numbers: the line goes on from there.
    """
    if question.local:
        return None
    room, batch = question.gpu.usable_memory_bytes, max(question.batch_size, 2)
    most = (
        GROWTH * batch if question.workload.get("architecture", "custom") == "custom" else room
    )  # a sample takes a byte or more
    half = batch // 2
    needs = {half: memory_bytes(question, half)}
    if half == 1 and needs[1] > room:
        return None
    needs[batch] = memory_bytes(question, batch)
    for _ in range(MAX_TRIES):
        low, high = sorted(needs, key=lambda size: (needs[size] > room, abs(needs[size] - room)))[
            :2
        ]
        too_large = [size for size in needs if needs[size] > room]
        if too_large and len(too_large) < len(needs):
            low, high = max(set(needs).difference(too_large)), min(too_large)
        slope = (needs[high] - needs[low]) / (high - low)
        flat = 0 if len(too_large) == len(needs) else most
        largest = int(low + (room - needs[low]) / slope) if slope > 0 else flat
        size = min(largest, GROWTH * max(needs), most)
        if size < 1 or min(abs(size / known - 1) for known in needs) < 0.005:
            break
        needs[size] = memory_bytes(question, size)
    return first_digits(largest) if largest > 0 else None


def first_digits(number: int) -> int:
    """Round a whole number down: all but its first two digits are set to zero."""
    unit: int = 10 ** max(len(str(number)) - 2, 0)
    return number // unit * unit
