"""Sizes of matrix products (B x M x N) times (N x K); N is the reduction dimension. Distances are such products too."""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.graph.sizes.library_launches import auxiliary, splits_product
from pipeline.graph.sizes.pointwise import one_pass
from pipeline.graph.sizes.vocabulary import (
    Rule,
    Work,
    computing_dtype,
    element_bytes,
    filled,
    over,
    read_by_host,
    rows_width,
    size,
)
from pipeline.graph.table import Node, Tensor


@size("matmul")
def matmul(node: Node, rule: Rule) -> list[Work] | None:
    """mm, addmm, bmm, baddbmm: the last two tensors are the factors; a tensor before them is added.

    A bias vector is added in cuBLASLt's epilogue. PyTorch uses it if both the reduction and the output are wider than
    1. Otherwise the bias is first copied into the result (ATen/native/cuda/Blas.cpp, `addmm_out_cuda_impl`).
    """
    tensors = [argument for argument in node.inputs if isinstance(argument, Tensor)]
    a, b = tensors[-2], tensors[-1]
    added = tensors[0] if len(tensors) > 2 else None
    batch, m, n, k = _dims(a, b)
    if not batch * m * k:
        return None
    element = element_bytes(a)
    out = Tensor((batch, m, k), a.dtype)
    dims = {
        "B": batch,
        "M": m,
        "N": n,
        "K": k,
        "trans_a": _transposed(a),
        "trans_b": _transposed(b),
    }
    read = float((batch * m * n + _factor_size(b, batch) * n * k) * element)
    works = []
    if added is not None:
        vector = len([s for s in added.shape if s > 1]) <= 1
        fused = vector and n > 1 and k > 1
        read += added.stored_bytes if fused else out.bytes
        if not fused and node.value(3, 1) != 0:
            works.append(
                over((m, k), 0, added.stored_bytes, out.bytes, "elementwise", "copy", a.dtype)
            )
    operation = rule.op if added is not None or rule.family != "gemm" else "mm"
    dtype = computing_dtype(node, a)
    works.append(Work(dims, 2.0 * batch * m * n * k, read, out.bytes, dtype, op=operation))
    turned = dims["trans_b"] == 1 or (
        dims["trans_b"] is None and added is not None
    )  # the weight of a layer
    split = batch == 1 and splits_product(m, n, k, turned, rule.sms, rule.capability)
    return [*works, auxiliary(dtype, "split_k")] if split else works


@size("addbmm")
def addbmm(node: Node, rule: Rule) -> list[Work] | None:
    """addbmm(added, a, b): `added` is copied to the result, then each product is added in place, one after the other.

    Source: ATen/native/LinearAlgebra.cpp.
    """
    added, *factors = (node.tensor(i) for i in range(3))
    pair = tuple(Tensor(t.shape[1:], t.dtype, t.strides and t.strides[1:]) for t in factors)
    products = matmul(replace(node, inputs=pair, values=()), rule)
    if products is None:
        return None
    products[0].read += products[0].written
    out = int(products[0].written)
    rows = (pair[0].shape[0], pair[1].shape[1])
    start = over(rows, 0, added.stored_bytes, out, "elementwise", "copy", added.dtype)
    return [start, *products * factors[0].shape[0]]


GROUPED_KERNEL = range(9, 11)
"""Major compute capabilities for which PyTorch has a grouped bf16 kernel (ATen/native/cuda/GroupedBlas.cpp)."""


@size("grouped")
def grouped(node: Node, rule: Rule) -> list[Work] | None:
    """_grouped_mm(a, b, offsets): multiplies each group of rows, columns or summands by its own matrix.

    A factor with two dimensions is split into groups. The lengths of groups are data; equal lengths are assumed.

    * In bf16 on Hopper and Blackwell this is one kernel.
    * Otherwise the host waits for the offsets, reads them, and launches one product per group
      (`_grouped_mm_fallback` in GroupedMMUtils.h).
    """
    a, b = node.tensor(0), node.tensor(1)
    offsets = node.inputs[2] if len(node.inputs) > 2 else None
    groups = offsets.numel if isinstance(offsets, Tensor) else a.shape[0]
    m, n, k = a.shape[-2], a.shape[-1], b.shape[-1]
    if not groups * m * n * k:
        return None
    flat = (len(a.shape) == 2, len(b.shape) == 2)
    once = (
        1 if any(flat) else groups
    )  # the sizes read above are of all groups if a factor is split into groups
    flops = 2.0 * once * m * n * k
    if flat == (True, True):
        n = -(-n // groups)
    elif flat[0]:
        m = -(-m // groups)
    elif flat[1]:
        k = -(-k // groups)
    result = node.result()
    written = float(result.bytes if result else groups * m * k * element_bytes(a))
    dtype = computing_dtype(node, a)
    dims = {
        "B": groups,
        "M": m,
        "N": n,
        "K": k,
        "trans_a": _transposed(a),
        "trans_b": _transposed(b),
    }
    if (a.dtype == "bf16" and int(rule.capability) in GROUPED_KERNEL) or not isinstance(
        offsets, Tensor
    ):
        return [Work(dims, flops, float(a.bytes + b.bytes), written, dtype)]
    flops, read, written = flops / groups, (a.bytes + b.bytes) / groups, written / groups
    one = Work({**dims, "B": 1}, flops, read, written, dtype, "gemm", "mm")
    return [read_by_host(offsets), *[one] * groups]


@size("linear")
def linear(node: Node, rule: Rule) -> list[Work] | None:
    """linear as one operator (on a CPU): input (..., N), weight (K, N), optional bias."""
    x, w = node.tensor(0), node.tensor(1)
    rows, width = x.rows_width()
    flat = replace(
        node,
        inputs=(
            Tensor((rows, width), x.dtype),
            Tensor((w.shape[1], w.shape[0]), w.dtype, (1, width)),
        ),
        values=(),
    )
    works = matmul(flat, rule)
    for work in works or []:
        work.op = "linear" if len(node.tensors()) > 2 else "mm"
    return works


@size("euclidean")
def euclidean(node: Node, rule: Rule) -> list[Work]:
    """_euclidean_dist(x1, x2) with x1 (..., P, M) and x2 (..., R, M) (source: ATen/native/Distance.cpp).

    The steps are squares, their sums, two concatenations, one product, a clamp at zero, and a square root.
    """
    works, joined = [], []
    for number, x in enumerate((node.tensor(0), node.tensor(1))):
        norm = Tensor((*x.shape[:-1], 1), x.dtype)
        wide = Tensor((*x.shape[:-1], x.shape[-1] + 2), x.dtype)
        works += [
            one_pass(x, x, x.numel, "powu"),
            over(x, x.numel, x.bytes, norm.bytes, "reduction", "sum_columns"),
            filled(norm),
        ]
        works += [one_pass(x, x, x.numel, "mulu")] if number == 0 else []
        joined_dims = {"bytes": wide.bytes, "tensors": 3, **rows_width(wide)}
        works.append(Work(joined_dims, 0, wide.bytes, wide.bytes, x.dtype, "concat", "cat"))
        joined.append(wide)
    a, b = joined
    batch = math.prod(a.shape[:-2])
    width = a.shape[-1]
    several = (batch,) if batch > 1 else ()
    left = Tensor((*several, a.shape[-2], width), a.dtype)
    right = Tensor((*several, width, b.shape[-2]), b.dtype)
    family = "bmm" if several else "gemm"
    product = matmul(
        replace(node, inputs=(left, right), values=()), replace(rule, family=family, op=family)
    )
    out = Tensor((batch, a.shape[-2], b.shape[-2]), a.dtype)
    works += [
        replace(work, family=family if work.family is None else work.family)
        for work in product or []
    ]
    return [
        *works,
        one_pass(out, out, out.numel, "relu"),
        one_pass(out, out, out.numel, "sqrt"),
    ]


def _dims(a: Tensor, b: Tensor) -> tuple[int, int, int, int]:
    batch = max([1, *(factor.shape[0] for factor in (a, b) if len(factor.shape) == 3)])
    m = a.shape[-2] if len(a.shape) > 1 else 1
    return batch, m, a.shape[-1], b.shape[-1] if len(b.shape) > 1 else 1


def _factor_size(b: Tensor, batch: int) -> int:
    expanded = len(b.shape) < 3 or (b.strides or (1,))[0] == 0
    return 1 if expanded else batch


def _transposed(tensor: Tensor) -> int | None:
    """1 if a matrix is stored transposed (column by column), else 0; None if strides are unknown."""
    if tensor.strides is None:
        return None
    if len(tensor.shape) < 2:
        return 0
    return int(tensor.strides[-1] != 1 and tensor.shape[-1] > 1 and tensor.strides[-2] == 1)
