"""How large the device calls of an operator are: one small function per kind of kernel, found by name.

`opmap.yaml` names a size function for every device call; the function turns the operator's shapes into dims, FLOPs and
bytes. Bytes are real traffic (DESIGN section 2): broadcast operands count once, in-place operands once.
"""

from __future__ import annotations

from pipeline.graph.sizes.vocabulary import SIZES, Rule, Work

__all__ = ["SIZES", "Rule", "Work", "load_all"]


def load_all() -> None:
    """Register every size function."""
    from pipeline.graph.sizes import (  # noqa: F401
        convolution,
        embedding,
        matmul,
        movement,
        optimizer,
        pointwise,
        rows,
        sparse,
        transforms,
    )
