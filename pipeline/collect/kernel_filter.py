"""Which kernels of a microbenchmark are the call that the graph means.

An operator often launches more than its main kernel. Where the graph (`pipeline.graph.sizes`) counts those others as
calls of their own (a fill, a sort, the mean of a loss), they must not be counted a second time in the main one's sample.
Launches that the graph calls `auxiliary` are counted with the main kernel, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

ROWS = r"embedding|grad_weight|sum_and_scatter|index_?(add|func|select)|gather|scatter"
"""Kernels that move rows of a table or of its gradient, as against fills, sorts and scans.
Source: ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu, Indexing.cu (`indexFuncLargeIndex` adds rows)."""

NO_MEMSET = r"^(?!mem(set|cpy))"
"""All but memory operations: sums that cross blocks clear their semaphores first."""

ELEMENTS = r"^(?!mem(set|cpy)|.*(FillFunctor|reduce_kernel))"
"""All but memory operations, fills, and the reduction that follows an elementwise loss."""

ADDITION = r"indexing_backward"
"""The addition of an `index_put`, after arithmetic on its indices and their sort."""

BY_FAMILY: Mapping[str, str] = {
    "embedding_backward": ROWS,
    "softmax": r"softmax",  # its gradient multiplies two tensors first
    "reduction": NO_MEMSET,
    "loss": ELEMENTS,
    "pooling": ELEMENTS,
}
ADDING_OPS = ("index_put", "_index_put_impl")


def counted(family: str, op: str) -> str:
    """Regular expression (whatever the case of letters) of the kernels that are the call; empty where all are.

    Args:
        family: of the call.
        op: of the call, without namespace and in-place mark.
    """
    if family in ("tril_index_backward", "index") and op in ADDING_OPS:
        return ADDITION
    return BY_FAMILY.get(family, "")
