"""Compute ops: the calls of a trace without a GPU, in which the CPU is the device.

A launch is the run of such an op. Of an op and the ops that it consists of, the outermost that PyTorch does not compose of
others is one call (`aten::addmm` inside `aten::linear`). Its helpers belong to it. Ops that only describe memory (views,
allocation) are host time.
"""

from __future__ import annotations

from pipeline.arrays import Flags
from pipeline.trace import nesting
from pipeline.trace.kineto_fields import Category
from pipeline.trace.linked_trace import Trace

COMPOSITE = frozenset(
    {
        "linear",
        "matmul",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "batch_norm",
        "_batch_norm_impl_index",
        "layer_norm",
        "group_norm",
        "instance_norm",
        "dropout",
        "feature_dropout",
        "embedding_bag",
        "max_pool2d",
        "adaptive_avg_pool2d",
        "cross_entropy_loss",
        "nll_loss",
        "nll_loss_nd",
        "softmax",
        "log_softmax",
        "reshape",
        "flatten",
        "to",
        "type_as",
        "contiguous",
        "concat",
        "hstack",
        "vstack",
        "stack_",
        "scaled_dot_product_attention",
        "lstm",
        "gru",
        "multi_head",
        "ones_like",
        "zeros_like",
        "rand_like",
        "one_hot",
        "square",
        "var_mean",
        "std",
        "pad",
        "tensordot",
        "outer",
        "binary_cross_entropy_with_logits",
        "item",
        "index_select_backward",
        "value_selecting_reduction_backward",
        "convolution",
        "_convolution",
        "zeros",
        "ones",
        "full",
        "sum_to_size",
        "expand_as",
        "relu6",
        "silu",
        "_to_copy",
        "div_",
        "chunk",
        "tensor_split",
        "embedding_backward",
        "_embedding_bag_backward",
        "_embedding_bag_sparse_backward",
        "coalesce",
        "_pack_padded_sequence",
        "norm",
        "matrix_norm",
        "linalg_vector_norm_",
        "clone_",
    }
)
"""Aten ops that consist of other aten ops, each of which is a separate call."""

VIEWS = frozenset(
    {
        "t",
        "transpose",
        "permute",
        "view",
        "_unsafe_view",
        "_reshape_alias",
        "as_strided",
        "expand",
        "slice",
        "select",
        "squeeze",
        "unsqueeze",
        "detach",
        "detach_",
        "alias",
        "narrow",
        "split",
        "split_with_sizes",
        "unbind",
        "diagonal",
        "numpy_T",
        "view_as",
        "resolve_conj",
        "resolve_neg",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "result_type",
        "is_nonzero",
        "_local_scalar_dense",
        "lift_fresh",
        "_has_compatible_shallow_copy_type",
        "record_stream",
        "_values",
        "_indices",
        "values",
        "indices",
        "sparse_dim",
        "dense_dim",
        "_nnz",
        "is_coalesced",
        "_sparse_coo_tensor_unsafe",
        "_sparse_coo_tensor_with_dims_and_tensors",
        "unfold_",
        "broadcast_tensors",
        "swapaxes",
        "movedim",
        "mT",
        "positive",
        "stride",
        "size",
        "data",
        "requires_grad_",
    }
)
"""Aten ops that read or write no elements. Their time is host time."""


def compute_ops(trace: Trace) -> Flags:
    """Which events are calls to the CPU as device."""
    work = trace.where("name", _computes) & trace.is_category(Category.OP)
    return work & (nesting.nearest(trace.columns["parent"], work) < 0)


def _computes(name: str) -> bool:
    space, _, op = name.partition("::")
    return space == "aten" and op not in COMPOSITE and op not in VIEWS
