"""Sizes of Fourier transforms (cuFFT), and of Euclidean distances that are computed as a matrix product."""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.graph.sizes.matmul import matmul
from pipeline.graph.sizes.vocabulary import Rule, Work, filled, size
from pipeline.graph.table import Node, Tensor

REAL = {"complex64": "fp32", "complex128": "fp64"}
"""Complex dtype -> dtype of its real and imaginary parts."""


@size("fft")
def fft(node: Node, rule: Rule) -> list[Work]:
    """_fft_r2c, _fft_c2r, _fft_c2c (source: ATen/native/cuda/SpectralOps.cpp).

    * One memory-bound pass over all elements per dimension.
    * One multiplication if the result is normalised.
    * For c2r, a copy of the input, because cuFFT overwrites it.

    FLOPs are the usual 5·n·log2(n) of a complex transform of n elements, or half of this if one side is real.
    """
    x = node.tensor(0)
    result = node.result() or x
    sides = node.value(1)
    dims = [sides] if isinstance(sides, int) else list(sides or [-1])
    larger = x if x.numel >= result.numel else result
    real = x.dtype not in REAL or result.dtype not in REAL
    dtype = REAL.get(x.dtype, x.dtype)
    works = [_pass(x, x, 0.0, dtype, "copy")] if node.name.endswith("c2r") else []
    for place, dim in enumerate(dims):
        length = max(larger.shape[dim] if larger.shape else 1, 2)
        flops = 5.0 * larger.numel * math.log2(length) * (0.5 if real else 1.0)
        source = x if place == 0 else result
        works.append(_pass(source, result, flops, dtype, rule.op))
    if node.value(2, 0):
        works.append(_pass(result, result, 2.0 * result.numel, dtype, "mulu"))
    return works


def _pass(source: Tensor, target: Tensor, flops: float, dtype: str, op: str) -> Work:
    rows, width = target.rows_width()
    dims = {"B": rows, "H": width, "inputs": source.bytes, "outputs": target.bytes}
    return Work(dims, flops, float(source.bytes), float(target.bytes), dtype, "elementwise", op)


@size("euclidean")
def euclidean(node: Node, rule: Rule) -> list[Work]:
    """_euclidean_dist(x1, x2) with x1 (..., P, M) and x2 (..., R, M) (source: ATen/native/Distance.cpp).

    The steps are squares, their sums, two concatenations, one product, a clamp at zero, and a square root.
    """
    works, joined = [], []
    for place, x in enumerate((node.tensor(0), node.tensor(1))):
        norm = Tensor((*x.shape[:-1], 1), x.dtype)
        wide = Tensor((*x.shape[:-1], x.shape[-1] + 2), x.dtype)
        works += [_pass(x, x, float(x.numel), x.dtype, "powu"), _sum(x, norm), filled(norm)]
        works += [_pass(x, x, float(x.numel), x.dtype, "mulu")] if place == 0 else []
        moved = float(wide.bytes)
        works.append(Work({"bytes": wide.bytes, "tensors": 3, "B": wide.rows_width()[0], "H": wide.shape[-1]}, 0.0, moved,
                          moved, x.dtype, "concat", "cat"))  # fmt: skip
        joined.append(wide)
    a, b = joined
    batch = math.prod(a.shape[:-2])
    width = a.shape[-1]
    left = Tensor((batch, a.shape[-2], width), a.dtype) if batch > 1 else Tensor((a.shape[-2], width), a.dtype)
    right = Tensor((batch, width, b.shape[-2]), b.dtype) if batch > 1 else Tensor((width, b.shape[-2]), b.dtype)
    family = "bmm" if batch > 1 else "gemm"
    product = matmul(replace(node, inputs=(left, right), values=()), replace(rule, family=family, op=family))
    out = Tensor((batch, a.shape[-2], b.shape[-2]), a.dtype)
    works += [replace(work, family=family if work.family is None else work.family) for work in product or []]
    return [
        *works,
        _pass(out, out, float(out.numel), out.dtype, "relu"),
        _pass(out, out, float(out.numel), out.dtype, "sqrt"),
    ]


def _sum(x: Tensor, norm: Tensor) -> Work:
    rows, width = x.rows_width()
    dims = {"B": rows, "H": width, "inputs": x.bytes, "outputs": norm.bytes}
    return Work(dims, float(x.numel), float(x.bytes), float(norm.bytes), x.dtype, "reduction", "sum_columns")
