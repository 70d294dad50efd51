"""The GPU that a question asks about, for steps whose code asks for its properties while they are captured.

A capture serves all GPUs, unless the code of the step reads what GPU it runs on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import InputError
from pipeline.hardware.spec import GpuSpec

_ASKED: list[GpuSpec] = []
"""The GPUs of the questions whose steps are captured now; the last one counts."""

READ: set[str] = set()
"""Names of the GPUs that the step which is captured has read: at most one. A capture empties it first."""


@contextmanager
def capturing_for(gpu: GpuSpec) -> Iterator[None]:
    """While the body runs, captures are for this GPU."""
    _ASKED.append(gpu)
    try:
        yield
    finally:
        _ASKED.pop()


def read_gpu() -> GpuSpec:
    """The GPU of the question, for the code of a step. The capture then is of this GPU alone.

    Raises:
        InputError: the step is captured without a question.
    """
    if not _ASKED:
        raise InputError(
            "torch.cuda: the properties of the GPU are known in a prediction alone; take them out"
            " of the step"
        )
    READ.add(_ASKED[-1].name)
    return _ASKED[-1]
