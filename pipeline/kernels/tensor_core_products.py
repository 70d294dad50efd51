"""Matrix products that tensor cores compute: which calls they are, and which lie in memory as their kernels like it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.tensor_cores import DTYPES, peak_gflop_per_s
from pipeline.kernels.work import ELEMENT_BYTES, Dims, values_of

BYTES = {name: float(ELEMENT_BYTES[name]) for name in DTYPES}
"""Bytes of an element."""

HALF_DTYPES = ("bf16", "fp16")
"""Dtypes of two bytes: tensor cores run both at the same rate, so samples of one stand for both."""

ALIGNMENT_BYTES = 16.0
"""Rows of a matrix in memory must be a multiple of this for kernels that copy whole vectors."""


def covered(calls: pd.DataFrame, gpu: GpuSpec) -> npt.NDArray[np.bool_]:
    """Products that tensor cores of the GPU compute, with all their dims; shape (rows,)."""
    d = Dims(calls)
    able = {name: 1.0 for name in DTYPES if peak_gflop_per_s(gpu, name) is not None}
    sizes = d("M") + d("N") + d("K")
    return np.asarray((values_of(d.text("dtype", "fp32"), able, 0.0) > 0) & np.isfinite(sizes))


def misaligned(calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Products of which a matrix has rows that are no multiple of `ALIGNMENT_BYTES` in memory; shape (rows,).

    Rows of an operand lie along the sum unless it is stored transposed. Where a table does not say how they are stored,
    the first lies as it is and the second transposed, as a linear layer has them, and gradients either way.
    """
    d = Dims(calls)
    size = values_of(d.text("dtype", "bf16"), BYTES, 2.0)
    known = np.isfinite(d("trans_a"))
    either = ~known & d.backward()
    m, n, k = (np.mod(d(name) * size, ALIGNMENT_BYTES) != 0 for name in ("M", "N", "K"))
    first = np.where(d("trans_a", 0.0) > 0, m, n)
    second = np.where(d("trans_b", 1.0) > 0, n, k)
    return np.asarray(first | second | k | (either & (m | n)))
