"""Matrix products on tensor cores: which calls run there, and which have operands that are aligned for fast kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, peak_gflop_per_s
from pipeline.kernels.work import ELEMENT_BYTES, Dims, values_of

BYTES = {name: float(ELEMENT_BYTES[name]) for name in DTYPES}
"""Bytes of an element, by dtype."""

HALF_DTYPES = ("bf16", "fp16")
"""Dtypes of two bytes. Tensor cores compute both at the same rate, so samples of one are used for both."""

ALIGNMENT_BYTES = 16.0
"""Alignment of a matrix's rows in memory, bytes. Kernels that copy whole vectors need rows of a multiple of this."""


def covered(calls: pd.DataFrame, gpu: GpuSpec) -> npt.NDArray[np.bool_]:
    """Whether the GPU's tensor cores compute each product and all its dims are known, shape (rows,)."""
    d = Dims(calls)
    able = {name: 1.0 for name in DTYPES if peak_gflop_per_s(gpu, name) is not None}
    sizes = d("M") + d("N") + d("K")
    return np.asarray((values_of(d.text("dtype", "fp32"), able, 0.0) > 0) & np.isfinite(sizes))


def misaligned(calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether a matrix of each product has rows that are not a multiple of `ALIGNMENT_BYTES` in memory, shape (rows,).

    `trans_a` and `trans_b` say whether the operands are stored transposed. Without these columns, the operands are
    taken to be stored as in a linear layer: the first as it is, and the second transposed. For gradients, both
    ways are then checked.
    """
    d = Dims(calls)
    size = values_of(d.text("dtype", "bf16"), BYTES, 2.0)
    known = np.isfinite(d("trans_a"))
    either = ~known & d.backward()
    m, n, k = (np.mod(d(name) * size, ALIGNMENT_BYTES) != 0 for name in ("M", "N", "K"))
    first = np.where(d("trans_a", 0.0) > 0, m, n)
    second = np.where(d("trans_b", 1.0) > 0, n, k)
    return np.asarray(first | second | k | (either & (m | n)))
