"""The shortest that a kernel can be: what a transfer predicts below it is raised, in one place for every method."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.physics import Physics

Array = npt.NDArray[np.float64]


def not_shorter(kernel_us: Array, family: str, gpu: GpuSpec, measured_us: Array | None = None) -> Array:
    """Kernel times raised to the duration of a family's kernel at negligible size (`heuristics.START_US`).

    Latencies above a host's floor do not show how long the shortest kernels take, and scaling a traced one knows no end.

    Args:
        kernel_us: predicted times, shape (rows,).
        family: a kernel family.
        gpu: the GPU that they are predicted for; a CPU has no kernels to start.
        measured_us: times of the same calls on another GPU; a call that was shorter there may be as short here.
    """
    if gpu.limits is None:
        return kernel_us
    start = np.full(len(kernel_us), Physics.of(gpu).start_us(family))
    return np.asarray(np.maximum(kernel_us, start if measured_us is None else np.minimum(start, measured_us)))
