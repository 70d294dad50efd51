"""Size functions by the name that `opmap.yaml` uses for them: from an operator's shapes to dims, FLOPs and bytes.

Bytes are the actual memory traffic: a broadcast operand counts once, and an in-place operand counts once.
"""

from pipeline.graph.sizes import (
    boxes,
    convolution,
    embedding,
    matmul,
    movement,
    optimizer,
    pointwise,
    reduction,
    rows,
    spread_features,
)
from pipeline.graph.sizes.vocabulary import REGISTERED

MODULES = (
    boxes,
    convolution,
    embedding,
    spread_features,
    matmul,
    movement,
    optimizer,
    pointwise,
    reduction,
    rows,
)
"""Modules that register their functions when they are imported."""

SIZES = dict(REGISTERED)
"""Size functions by name."""
