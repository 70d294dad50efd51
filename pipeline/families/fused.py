"""Fused kernels that PyTorch's compiler writes in Triton: chains of element-wise operators, with reductions among them.

Their time is that of their traffic. Each tensor that a kernel needs is read once and each result written once, whatever is
computed in between. Kernels that reduce move it at a share of the rate of those that do not.
"""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array
from pipeline.families.dims import Dims, Work, values_of
from pipeline.families.family import ELEMENTS_PER_CLOCK, IO, Calls, Family, Law

SHARES = {"pointwise": 0.95, "scatter": 0.95, "reduction": 0.8, "columns": 0.8, "both": 0.8}
"""Rate of traffic by op, over the rate of streaming. `pointwise`: lookups of whole rows of an embedding on an A100-SXM4-80GB,
compiled (Liger Kernel). `reduction` of rows, of `columns`, and of `both` in one kernel: compiled norms and their gradients on a
GB200, half of the rows of cudnn-frontend's benchmark (docs/compiled.md)."""

PER_CLOCK = {"columns": 2.1, "both": 1.3, "scatter": ELEMENTS_PER_CLOCK["atomic"]}
"""Elements per SM and clock of kernels that reduce columns (the same rows), or add to looked-up elements."""

REDUCING_US = 1.0
"""What a reduction takes longer to start, us (the same rows)."""

REDUCTIONS = ("reduction", "columns", "both")

FUSED_OPS = tuple(SHARES)
"""Kinds of kernels; `scatter` adds to elements that several threads find by an index."""


def fused_work(d: Dims) -> Work:
    """One operation for each element that is computed; bytes as the compiler counts them, dims `inputs` and `outputs`."""
    elements, size = d("B", 1.0) * d("H", 1.0), d.element_bytes()
    outputs = np.where(d.op_in(REDUCTIONS), d("B", 1.0), elements) * size
    return Work(elements, d("inputs", elements * size), d("outputs", outputs))


def fused_us(c: Calls) -> Array:
    """Time of the traffic; sums of columns and additions to the same elements take at least the time of their elements."""
    moving = c.moving_us / values_of(c.d.op, SHARES, 1.0)
    elements = c.d("B", 1.0) * c.d("H", 1.0)
    by_element = elements / values_of(c.d.op, PER_CLOCK, np.inf) / c.chip.clocks_per_us()
    waiting = np.where(c.d.op_in(REDUCTIONS), REDUCING_US, 0.0)
    return c.start + waiting + np.maximum(moving, by_element)


FAMILIES = (
    Family(
        "fused", ("B", "H"), Law.MOVEMENT, fused_work, FUSED_OPS, IO,
        time=fused_us, colour="#8FBF4F",
    ),
)  # fmt: skip
