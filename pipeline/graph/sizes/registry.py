"""Every size function by the name that `opmap.yaml` uses for it.

A size function turns an operator's shapes into dims, FLOPs and bytes. Bytes are real traffic: a broadcast operand counts
once, an in-place operand once.
"""

from pipeline.graph.sizes import (
    convolution,
    embedding,
    matmul,
    movement,
    optimizer,
    pointwise,
    rows,
    sparse_gradients,
    transforms,
)
from pipeline.graph.sizes.vocabulary import REGISTERED

MODULES = (convolution, embedding, matmul, movement, optimizer, pointwise, rows, sparse_gradients, transforms)
"""Modules that register their functions when they are imported."""

SIZES = dict(REGISTERED)
"""Size functions by name."""
