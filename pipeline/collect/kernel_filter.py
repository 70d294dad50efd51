"""Select the kernels of a microbenchmark that belong to the call in the graph.

An operator often launches more kernels than its main one. The graph (`pipeline.graph.sizes`) counts some of these as
separate calls: a fill, a sort, the mean of a loss. They must not be counted again in the sample of the main kernel.
Launches that the graph calls `auxiliary` are counted with the main kernel, here and in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping

ROW_KERNELS = r"embedding|grad_weight|sum_and_scatter|index_?(add|func|select)|gather|scatter"
"""Kernels that move rows of a table or of its gradient, in contrast to fills, sorts and scans.
Source: ATen/native/cuda/EmbeddingBag.cu, EmbeddingBackwardKernel.cu, Indexing.cu (`indexFuncLargeIndex` adds rows)."""

ALL_BUT_MEMORY_OPS = r"^(?!mem(set|cpy))"
"""All kernels except memory operations; sums over several blocks clear their semaphores first."""

ELEMENTWISE_KERNELS = r"^(?!mem(set|cpy)|.*(FillFunctor|reduce_kernel))"
"""All kernels except memory operations, fills, and the reduction after an elementwise loss."""

ADDITION_KERNEL = r"indexing_backward"
"""The addition kernel of `index_put`; it runs after index arithmetic and a sort of the indices."""

BY_FAMILY: Mapping[str, str] = {
    "embedding_backward": ROW_KERNELS,
    "softmax": r"softmax",  # its gradient multiplies two tensors first
    "reduction": ALL_BUT_MEMORY_OPS,
    "loss": ELEMENTWISE_KERNELS,
    "pooling": ELEMENTWISE_KERNELS,
}
"""Pattern of the counted kernels per family; all kernels count in families that are not listed."""
ADDING_OPS = ("index_put", "_index_put_impl")
"""Ops of the families `tril_index_backward` and `index` of which only the addition kernel (`ADDITION_KERNEL`) counts."""


def counted_kernels(family: str, op: str) -> str:
    """Case-insensitive regular expression of the kernels that belong to the call; empty if all do.

    Args:
        family: family of the call.
        op: op of the call, without namespace and in-place mark.
    """
    if family in ("tril_index_backward", "index") and op in ADDING_OPS:
        return ADDITION_KERNEL
    return BY_FAMILY.get(family, "")
