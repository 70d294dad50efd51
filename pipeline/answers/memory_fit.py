"""What would fit, for a step that needs more memory than its GPU has: a smaller batch, or other GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pipeline.errors import SteptimeError
from pipeline.hardware.find_gpu import list_gpus
from pipeline.hardware.spec import GpuSpec
from pipeline.prediction import Prediction


def with_what_fits(prediction: Prediction, gpu: GpuSpec, memory_of: Callable[[int], int]) -> Prediction:
    """The prediction with the largest batch that fits, and the GPUs that its own batch fits on.

    A prediction that fits is returned as it is.

    Args:
        prediction: a predicted step.
        gpu: its GPU.
        memory_of: memory need in bytes of the same step at another batch size.
    """
    if prediction.fits:
        return prediction
    enough = [spec for spec in list_gpus() if spec.memory_bytes >= prediction.memory_bytes]
    names = tuple(spec.name for spec in sorted(enough, key=lambda spec: (spec.memory_bytes, spec.name)))
    largest = largest_fitting(prediction.batch_size, prediction.memory_bytes, gpu.memory_bytes, memory_of)
    return replace(prediction, largest_batch=largest, fitting_gpus=names)


def largest_fitting(batch_size: int, memory_bytes: int, room: int, memory_of: Callable[[int], int]) -> int | None:
    """The largest batch below `batch_size` whose memory need is at most `room`; None where not even one sample fits.

    Memory is nearly a line over the batch size. Each try is where the line through the two nearest known sizes meets
    `room`; every second try halves the range, so that a curve ends too. Batch sizes at which the step cannot be built
    count as not fitting.
    """
    known = {batch_size: memory_bytes}
    fits, too_large, halve = 0, batch_size, True
    while too_large - fits > 1:
        tries = [(fits + too_large) // 2]
        if not halve and len(known) > 1:
            near = sorted(known, key=lambda size: abs(known[size] - room))[:2]
            slope = (known[near[0]] - known[near[1]]) / (near[0] - near[1])
            line = near[0] + (room - known[near[0]]) / slope if slope > 0 else tries[0]
            guess = min(max(int(line), fits + 1), too_large - 1)
            tries = [size for size in (guess, guess + 1) if size < too_large]
        for size in tries:
            try:
                need = memory_of(size)
            except SteptimeError:
                need = room + 1
            else:
                known[size] = need
            if need > room:
                too_large = size
                break
            fits = size
        halve = not halve
    return fits or None
