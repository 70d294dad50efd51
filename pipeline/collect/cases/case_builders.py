"""The builder of the benchmark of each kernel family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pipeline.collect.cases import embedding_cases as embedding
from pipeline.collect.cases import matmul_cases as matmul
from pipeline.collect.cases import movement_cases as movement
from pipeline.collect.cases import normalisation_cases as normalisation
from pipeline.collect.cases import pointwise_cases as pointwise
from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError

BUILDERS: Mapping[str, Callable[[Spec, Maker], Case]] = {
    "gemm": matmul.gemm, "bmm": matmul.bmm, "attention": matmul.attention, "rnn": matmul.rnn,
    "conv2d_forward": matmul.conv2d, "conv2d_backward_data": matmul.conv2d, "conv2d_backward_weight": matmul.conv2d,
    "embedding_forward": embedding.embedding_forward, "embedding_backward": embedding.embedding_backward,
    "tril_index_forward": embedding.tril_index, "tril_index_backward": embedding.tril_index, "index": embedding.index,
    "concat": movement.concat, "copy": movement.copy, "memset": movement.memset, "optimizer": movement.optimizer,
    "memcpy_h2d": movement.memcpy, "memcpy_d2h": movement.memcpy, "memcpy_d2d": movement.memcpy, "sort": movement.sort,
    "elementwise": pointwise.elementwise, "reduction": pointwise.reduction, "loss": pointwise.loss,
    "softmax": normalisation.softmax, "layer_norm": normalisation.layer_norm, "batch_norm": normalisation.batch_norm,
    "dropout": normalisation.dropout, "pooling": normalisation.pooling,
}  # fmt: skip
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
