"""What would fit: for a step that needs more memory than its GPU has, and the largest batch of one that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
    """A prediction that does not fit, with the largest batch that fits, and the GPUs that its own batch fits on."""
    enough = [spec for spec in list_gpus() if spec.usable_memory_bytes >= prediction.memory_bytes]
    names = tuple(
        spec.name for spec in sorted(enough, key=lambda spec: (spec.memory_bytes, spec.name))
    )
    largest = largest_fitting(
        prediction.batch_size,
        prediction.memory_bytes,
        question.gpu.usable_memory_bytes,
        partial(memory_bytes, question),
    )
    split = question.ranks is not None and question.ranks.layers > 0
    change = (
        ""
        if not split
        else least_change(question, lambda each: memory_bytes(each, each.batch_size))
    )
    return replace(prediction, largest_batch=largest, fitting_gpus=names, fitting_change=change)


def largest_fitting(
    batch_size: int, memory_bytes: int, room: int, memory_of: Callable[[int], int]
) -> int | None:
    """The largest batch below `batch_size` whose memory need is at most `room`; None where not even one sample fits.

    Memory is nearly a line over the batch size. Each try is where the line through the two nearest known sizes meets
    `room`; every second try halves the range, so that a curve ends too. Batch sizes at which the step cannot be built
    count as not fitting.
    """
    needs = {batch_size: memory_bytes}
    fits, too_large, halve = 0, batch_size, True
    while too_large - fits > 1:
        tries = [(fits + too_large) // 2]
        if not halve and len(needs) > 1:
            near = sorted(needs, key=lambda size: abs(needs[size] - room))[:2]
            slope = (needs[near[0]] - needs[near[1]]) / (near[0] - near[1])
            line = near[0] + (room - needs[near[0]]) / slope if slope > 0 else tries[0]
            guess = min(max(int(line), fits + 1), too_large - 1)
            tries = [size for size in (guess, guess + 1) if size < too_large]
        for size in tries:
            try:
                need = memory_of(size)
            except SteptimeError:
                need = room + 1
            else:
                needs[size] = need
            if need > room:
                too_large = size
                break
            fits = size
        halve = not halve
    return fits or None


def estimated_largest_batch(question: Question, memory_bytes: MemoryBytes) -> int | None:
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
    needs = {size: memory_bytes(question, size) for size in (batch // 2, batch)}
    for _ in range(MAX_TRIES):
        low, high = sorted(needs, key=lambda size: (needs[size] > room, abs(needs[size] - room)))[
            :2
        ]
        too_large = [size for size in needs if needs[size] > room]
        if too_large and len(too_large) < len(needs):
            low, high = max(set(needs).difference(too_large)), min(too_large)
        slope = (needs[high] - needs[low]) / (high - low)
        largest = int(low + (room - needs[low]) / slope) if slope > 0 else most
        size = min(largest, GROWTH * max(needs), most)
        if size < 1 or min(abs(size / known - 1) for known in needs) < 0.005:
            break
        needs[size] = memory_bytes(question, size)
    return first_digits(largest) if largest > 0 else None


def first_digits(number: int) -> int:
    """Round a whole number down: all but its first two digits are set to zero."""
    unit: int = 10 ** max(len(str(number)) - 2, 0)
    return number // unit * unit
