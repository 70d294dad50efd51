"""Calls that move memory: lookups, index operations, copies, fills, concatenation, sorting, optimizer updates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError
from pipeline.collect.device import FLOAT_BYTES
from pipeline.schemas import SUBSTITUTE

DEFAULT_ROWS = 512
"""Rows of a concatenation or transposition that states only its bytes; the value is a small batch size."""
SORT_PASS_BITS = 40
"""Keys of a sort are below 2**SORT_PASS_BITS, like row numbers of embedding tables."""
LEARNING_RATE = 1e-6
"""Learning rate of updates; small, so that weights stay finite over many repetitions."""


def _lookup(spec: Spec, make: Maker) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """One weight for all tables, flat indices in order (table, sample, lookup), bag offsets, and notes."""
    batch, tables, lookups, width = spec["B"], spec.get("T", 1), spec.get("L", 1), spec["D"]
    rows = spec.attributes.get("rows", [])
    rows = rows if len(rows) == tables else [spec["E"]] * tables
    distribution = str(spec.attributes.get("distribution", "uniform"))
    weight = make.tensor(sum(rows), width, dtype=spec.dtype)
    starts = [sum(rows[:t]) for t in range(tables)]
    index = torch.cat(
        [
            make.indices(n, batch * lookups, distribution) + s
            for n, s in zip(rows, starts, strict=True)
        ]
    )
    if spec.attributes.get("index_bytes") == 4:
        index = index.int()
    offsets = torch.arange(
        0, batch * tables * lookups, lookups, device=make.device, dtype=index.dtype
    )
    return weight, index, offsets, {"distinct_rows": int(torch.unique(index).numel())}


def embedding_forward(spec: Spec, make: Maker) -> Case:
    """`fused` and `bag`: the sum of L rows per bag; `gather`: one row per index."""
    weight, index, offsets, note = _lookup(spec, make)
    if spec.name == "gather":
        return Case(spec, lambda: torch.index_select(weight, 0, index), (index,), note=note)
    bag = torch.ops.aten._embedding_bag.default
    if spec.name == "fused":  # without FBGEMM, the workloads run one bag over all tables instead
        note |= SUBSTITUTE
    return Case(
        spec, lambda: bag(weight, index, offsets, False, 0, True), (index, offsets), note=note
    )


def embedding_backward(spec: Spec, make: Maker) -> Case:
    """`sparse` and `dense` gradients of bags, and `fused_sgd`, which also updates the weight.

    Without FBGEMM, `fused_sgd` runs what the workloads run instead: gradient rows are repeated and added to the weight.
    """
    weight, index, offsets, note = _lookup(spec, make)
    aten, bags, rows = torch.ops.aten, offsets.numel(), weight.shape[0]

    grad = make.tensor(bags, spec["D"], dtype=spec.dtype)
    bag_of = torch.arange(bags, device=make.device, dtype=index.dtype).repeat_interleave(
        spec.get("L", 1)
    )

    def sparse() -> Tensor:
        values = torch.index_select(grad, 0, bag_of)
        return torch.sparse_coo_tensor(
            index.view(1, -1), values, (rows, spec["D"]), check_invariants=False
        )

    def update_rows() -> Tensor:
        row_grads = torch.index_select(grad, 0, bag_of)
        return weight.index_add_(0, index, row_grads, alpha=-LEARNING_RATE)

    if spec.name == "dense":
        dense = aten._embedding_bag_dense_backward.default
        sizes = torch.full((bags,), spec.get("L", 1), device=make.device, dtype=index.dtype)
        return Case(
            spec,
            lambda: dense(grad, index, bag_of, sizes, sizes, rows, False, 0, None, -1),
            (grad,),
            note=note,
        )
    if spec.name == "sparse":
        return Case(spec, sparse, (grad,), note=note)
    if spec.name == "fused_sgd":
        return Case(spec, update_rows, (grad,), note=note | SUBSTITUTE)
    raise UnsupportedCallError(f"embedding_backward {spec.op}: known are dense, sparse, fused_sgd")


def tril_index(spec: Spec, make: Maker) -> Case:
    """Gather the lower triangle of B matrices F x F by row and column numbers, or scatter it back."""
    batch, f = spec["B"], spec["F"]
    low = torch.tril_indices(f, f, -1, device=make.device)
    rows, columns = low[0].contiguous(), low[1].contiguous()
    z = make.tensor(batch, f, f, dtype=spec.dtype)
    if spec.family == "tril_index_forward":
        return Case(spec, lambda: z[:, rows, columns], (z,))
    grad = make.tensor(batch, rows.numel(), dtype=spec.dtype)
    positions = [None, rows, columns]
    put = torch.ops.aten._index_put_impl_.default
    # the graph counts clearing the gradient as a separate memset
    return Case(spec, lambda: put(z, positions, grad, True, True), (grad, z))


def index(spec: Spec, make: Maker) -> Case:
    """Gather or scatter rows of width H by B row numbers; if B is not given, it follows from `bytes` (moved bytes)."""
    width = spec.get("H", spec.get("D", 64))
    count = max(spec.get("B", spec.get("bytes", 4096) // (spec.element_bytes * width)), 1)
    table_rows = spec.get("E", count)
    table, values = (
        make.tensor(table_rows, width, dtype=spec.dtype),
        make.tensor(count, width, dtype=spec.dtype),
    )
    rows = make.indices(table_rows, count)

    def gather() -> Tensor:
        return torch.index_select(table, 0, rows)

    def scatter() -> Tensor:
        return table.index_add_(0, rows, values)

    gathers = dict.fromkeys(("gather", "index_select", "repeat_interleave"), gather) | {
        "index": lambda: table[rows]
    }
    scatters = dict.fromkeys(("scatter", "scatter_add", "index_add"), scatter) | {
        "index_copy": lambda: table.index_copy_(0, rows, values),
        "index_put": lambda: table.index_put_((rows,), values, accumulate=True),
    }
    return Case(
        spec, spec.chosen({**gathers, **scatters}), (values,) if spec.name in scatters else ()
    )


def concat(spec: Spec, make: Maker) -> Case:
    """`cat` of parts along a dimension; the parts have equal width unless the attributes give `widths`."""
    elements, count = max(spec["bytes"] // spec.element_bytes, 1), max(spec.get("tensors", 2), 1)
    rows = spec.get("B", 0) or next(
        (r for r in (DEFAULT_ROWS, 64, 8, 1) if elements // (r * count)), 1
    )
    widths = [int(w) for w in spec.attributes.get("widths", [])] or _split(
        max(elements // rows, count), count
    )
    parts = tuple(make.tensor(rows, width, dtype=spec.dtype) for width in widths)
    if spec.name == "stack" and len(set(widths)) == 1:
        return Case(spec, lambda: torch.stack(parts, 1), parts)
    return Case(spec, lambda: torch.cat(parts, 1), parts)


def copy(spec: Spec, make: Maker) -> Case:
    """`copy` (contiguous), `transpose` (to another order of dimensions)."""
    elements = max(spec["bytes"] // spec.element_bytes, 1)
    if spec.name == "transpose":
        rows = next((r for r in (DEFAULT_ROWS, 64, 8, 1) if elements // r), 1)
        x = make.tensor(rows, elements // rows, dtype=spec.dtype)
        return Case(spec, lambda: x.t().contiguous(), (x,))
    x, y = make.tensor(elements, dtype=spec.dtype), make.tensor(elements, dtype=spec.dtype)
    return Case(spec, lambda: y.copy_(x), (x,))


def memcpy(spec: Spec, make: Maker) -> Case:
    """Copies between host and device (`pinned` or `pageable`) and within the device; on a CPU plain copies."""
    size = max(spec["bytes"], 1)
    here = make.counted(torch.ones(size, dtype=torch.uint8, device=make.device))
    there = (
        make.counted(torch.ones_like(here))
        if spec.family == "memcpy_d2d"
        else torch.ones(size, dtype=torch.uint8)
    )
    pinned = spec.family != "memcpy_d2d" and spec.op != "pageable"
    there = there.pin_memory() if pinned and make.device.type == "cuda" else there
    target, source = (there, here) if spec.family == "memcpy_d2h" else (here, there)
    return Case(spec, lambda: target.copy_(source, non_blocking=pinned))


def memset(spec: Spec, make: Maker) -> Case:
    """Clear a buffer. CUDA clears any dtype with cudaMemsetAsync if the value is zero bytes."""
    x = make.tensor(-(-max(spec["bytes"], 1) // 4))
    return Case(spec, x.zero_)


def optimizer(spec: Spec, make: Maker) -> Case:
    """One of the fused list operations of optimizers over `bytes` in `tensors` tensors, in place."""
    count = max(spec.get("tensors", 1), 1)
    dtype = spec.dtype if spec.dtype in FLOAT_BYTES else "fp32"
    sizes = _split(max(spec["bytes"] // FLOAT_BYTES[dtype], count), count)
    tensors, others = ([make.tensor(n, dtype=dtype) for n in sizes] for _ in range(2))
    third = [torch.ones_like(t) for t in others] if "addc" in spec.name else []
    # add and copy have a second list if the call read twice the bytes that it wrote (for copy: as many bytes)
    pair = spec.get("inputs", 2 * spec["bytes"]) > 1.5 * spec["bytes"]
    scalar_or_list = (others,) if pair else (1e-6,)
    weight = {"alpha": 1e-6} if pair else {}
    operations: dict[str, Callable[[], Any]] = {
        "add": lambda: torch._foreach_add_(tensors, *scalar_or_list, **weight),
        "sub": lambda: torch._foreach_sub_(tensors, *scalar_or_list, **weight),
        "mul": lambda: torch._foreach_mul_(tensors, 0.9999999),
        "div": lambda: torch._foreach_div_(tensors, 1.0000001),
        "lerp": lambda: torch._foreach_lerp_(tensors, others, 1e-6),
        "neg": lambda: torch._foreach_neg_(tensors),
        "sqrt": lambda: torch._foreach_sqrt(tensors),
        "zero": lambda: torch._foreach_zero_(tensors),
        "norm": lambda: torch._foreach_norm(tensors),
        "copy": lambda: torch._foreach_copy_(tensors, others),
        "addcmul": lambda: torch._foreach_addcmul_(tensors, others, third, value=1e-6),
        "addcdiv": lambda: torch._foreach_addcdiv_(tensors, others, third, value=-1e-6),
    }
    return Case(spec, spec.chosen(operations, spec.name.removeprefix("foreach_")))


def sort(spec: Spec, make: Maker) -> Case:
    """`sort` or `unique` of int64 row numbers."""
    keys = make.counted(
        torch.randint(1 << SORT_PASS_BITS, (max(spec["bytes"] // 8, 1),), device=make.device)
    )
    operation = spec.chosen({"sort": torch.sort, "unique": torch.unique})
    return Case(spec, lambda: operation(keys), (keys,))


def _split(total: int, parts: int) -> list[int]:
    """Split `total` into `parts` sizes that differ by at most one; every size is at least one."""
    small, rest = divmod(max(total, parts), parts)
    return [small + (i < rest) for i in range(parts)]
