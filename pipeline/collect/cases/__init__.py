"""Build a runnable case from a row of a calls table: what a family states, or a module per group of kernel families."""

from collections.abc import Callable, Mapping

from pipeline.collect.cases import memory_cases as memory
from pipeline.collect.cases import product_cases as products
from pipeline.collect.cases import row_cases as rows
from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError
from pipeline.families import FAMILIES

__all__ = ["BUILDERS", "Case", "Maker", "Spec", "UnsupportedCallError", "build_case"]

BUILDERS: Mapping[str, Callable[[Spec, Maker], Case]] = {
    **{name: rows.stated for name, family in FAMILIES.items() if family.runs},
    "gemm": products.gemm,
    "bmm": products.bmm,
    "attention": products.attention,
    "rnn": products.rnn,
    **dict.fromkeys(
        ("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"), products.conv2d
    ),
    "embedding_forward": memory.embedding_forward,
    "embedding_backward": memory.embedding_backward,
    "tril_index_forward": memory.tril_index,
    "tril_index_backward": memory.tril_index,
    "index": memory.index,
    "concat": memory.concat,
    "copy": memory.copy,
    "memset": memory.memset,
    "optimizer": memory.optimizer,
    **dict.fromkeys(("memcpy_h2d", "memcpy_d2h", "memcpy_d2d"), memory.memcpy),
    "sort": memory.sort,
    "elementwise": rows.elementwise,
    "reduction": rows.reduction,
    "loss": rows.loss,
    "layer_norm": rows.layer_norm,
    "batch_norm": rows.batch_norm,
    "dropout": rows.dropout,
    "pooling": rows.pooling,
}
"""Families that can be measured by themselves. `collective` is missing because it needs several devices; `other` is
replayed from a graph."""


def build_case(spec: Spec, make: Maker) -> Case:
    """The runnable call of a specification.

    Raises:
        UnsupportedCallError: the family, the op or a dimension has no benchmark.
    """
    builder = BUILDERS.get(spec.family)
    if builder is None:
        raise UnsupportedCallError(f"family {spec.family}: no benchmark runs it by itself")
    return builder(spec, make)
