"""Minimum kernel durations. All transfer methods raise shorter predictions to them here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.physics import Physics

Array = npt.NDArray[np.float64]


def raised_to_min_duration(kernel_us: Array, family: str, gpu: GpuSpec, measured_us: Array | None = None) -> Array:
    """Kernel times raised to the duration of a family's kernel at negligible size (`physics.START_US`).

    The limit is needed for two reasons. Latencies above a host's floor do not show how long the shortest kernels take.
    Scaling a traced kernel has no lower limit.

    Args:
        kernel_us: predicted times, shape (rows,).
        family: a kernel family.
        gpu: the GPU of the prediction; a CPU starts no kernels, so its times are returned unchanged.
        measured_us: times of the same calls on another GPU; a call that was shorter there may be as short here.
    """
    if gpu.limits is None:
        return kernel_us
    start = np.full(len(kernel_us), Physics.of(gpu).start_us(family))
    return np.asarray(np.maximum(kernel_us, start if measured_us is None else np.minimum(start, measured_us)))
