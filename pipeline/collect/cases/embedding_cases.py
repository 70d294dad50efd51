"""Embedding lookups and their gradients, and the gather, scatter and index operations of the feature interaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError
from pipeline.collect.device import FLOAT_BYTES

if TYPE_CHECKING:
    from torch import Tensor

LEARNING_RATE = 1e-6
"""Learning rate of updates; small, so that weights stay finite over many repetitions."""


def _lookup(spec: Spec, make: Maker) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
    """One weight for all tables, flat indices in order (table, sample, lookup), bag offsets, and notes."""
    import torch

    batch, tables, lookups, width = spec["B"], spec.get("T", 1), spec.get("L", 1), spec["D"]
    rows = [int(r) for r in spec.attributes.get("rows", [])]
    if len(rows) != tables:
        rows = [spec["E"]] * tables
    distribution = str(spec.attributes.get("distribution", "uniform"))
    weight = make.tensor(sum(rows), width, dtype=spec.dtype)
    starts = [sum(rows[:t]) for t in range(tables)]
    index = torch.cat([make.indices(n, batch * lookups, distribution) + s for n, s in zip(rows, starts, strict=True)])
    if spec.attributes.get("index_bytes") == 4:
        index = index.int()
    offsets = torch.arange(0, batch * tables * lookups, lookups, device=make.device, dtype=index.dtype)
    return weight, index, offsets, {"distinct_rows": int(torch.unique(index).numel())}


def embedding_forward(spec: Spec, make: Maker) -> Case:
    """`fused` and `bag`: the sum of L rows per bag; `gather`: one row per index."""
    import torch

    weight, index, offsets, note = _lookup(spec, make)
    if spec.name in ("gather", "embedding", "index_select"):
        return Case(spec, lambda: torch.index_select(weight, 0, index), (index,), note=note)
    bag = torch.ops.aten._embedding_bag.default
    if spec.name == "fused":  # without FBGEMM, the workloads run one bag over all tables instead
        note["kernel"] = "aten"
    return Case(spec, lambda: bag(weight, index, offsets, False, 0, True), (index, offsets), note=note)


def embedding_backward(spec: Spec, make: Maker) -> Case:
    """`sparse` and `dense` gradients of bags, and `fused_sgd`, which also updates the weight.

    Without FBGEMM, `fused_sgd` runs what the workloads run instead: gradient rows are repeated and added to the weight.
    """
    import torch

    weight, index, offsets, note = _lookup(spec, make)
    lookups, rows = spec.get("L", 1), weight.shape[0]
    grad = make.tensor(offsets.numel(), spec["D"], dtype=spec.dtype)
    bag_of = torch.arange(offsets.numel(), device=make.device, dtype=index.dtype).repeat_interleave(lookups)
    sizes = torch.full((offsets.numel(),), lookups, device=make.device, dtype=index.dtype)
    aten = torch.ops.aten
    if spec.name in ("dense", "embedding_dense_backward", "_embedding_bag_dense_backward"):
        if spec.attributes.get("bag", True) is False:
            each = make.tensor(index.numel(), spec["D"], dtype=spec.dtype)
            return Case(
                spec,
                lambda: aten.embedding_dense_backward.default(each, index, rows, -1, False),
                (each,),
                note=note,
            )
        dense = aten._embedding_bag_dense_backward.default
        return Case(
            spec,
            lambda: dense(grad, index, bag_of, sizes, sizes, rows, False, 0, None, -1),
            (grad,),
            note=note,
        )

    def sparse() -> Tensor:
        values = torch.index_select(grad, 0, bag_of)
        return torch.sparse_coo_tensor(index.view(1, -1), values, (rows, spec["D"]), check_invariants=False)

    if spec.name in ("sparse", "embedding_sparse_backward", "_embedding_bag_sparse_backward"):
        return Case(spec, sparse, (grad,), note=note)
    if spec.name == "sgd_sparse_update":
        update = sparse()
        return Case(spec, lambda: weight.add_(update, alpha=-LEARNING_RATE), note=note)
    if spec.name in ("fused_sgd", "fused"):

        def update_rows() -> Tensor:
            each = torch.index_select(grad, 0, bag_of)
            return weight.index_add_(0, index, each, alpha=-LEARNING_RATE)

        return Case(spec, update_rows, (grad,), note={**note, "kernel": "aten"})
    raise UnsupportedCallError(f"embedding_backward {spec.op}: known are dense, sparse, fused_sgd")


def tril_index(spec: Spec, make: Maker) -> Case:
    """Gather the lower triangle of B matrices F x F by row and column numbers, or scatter it back."""
    import torch

    batch, f = spec["B"], spec["F"]
    low = torch.tril_indices(f, f, -1, device=make.device)
    rows, columns = low[0].contiguous(), low[1].contiguous()
    z = make.tensor(batch, f, f, dtype=spec.dtype)
    if spec.family == "tril_index_forward":
        return Case(spec, lambda: z[:, rows, columns], (z,))
    grad = make.tensor(batch, rows.numel(), dtype=spec.dtype)
    place = [None, rows, columns]
    put = torch.ops.aten._index_put_impl_.default
    if spec.name in ("index_put", "_index_put_impl"):  # the graph counts clearing the gradient as a separate memset
        return Case(spec, lambda: put(z, place, grad, True, True), (grad, z))
    return Case(spec, lambda: put(torch.zeros_like(z), place, grad, True, True), (grad,))


def index(spec: Spec, make: Maker) -> Case:
    """Gather or scatter rows of width H by B row numbers; if B is not given, it follows from `bytes` (moved bytes)."""
    import torch

    element = FLOAT_BYTES.get(spec.dtype, 8)
    width = spec.get("H", spec.get("D", 64))
    count = max(spec.get("B", spec.get("bytes", 4096) // (element * width)), 1)
    table_rows = spec.get("E", count)
    table, values = make.tensor(table_rows, width, dtype=spec.dtype), make.tensor(count, width, dtype=spec.dtype)
    rows = make.indices(table_rows, count)
    gathers: dict[str, Callable[[], Any]] = {
        "gather": lambda: torch.index_select(table, 0, rows),
        "index_select": lambda: torch.index_select(table, 0, rows),
        "index": lambda: table[rows],
        "repeat_interleave": lambda: torch.index_select(table, 0, rows),
    }
    scatters: dict[str, Callable[[], Any]] = {
        "scatter": lambda: table.index_add_(0, rows, values),
        "scatter_add": lambda: table.index_add_(0, rows, values),
        "index_add": lambda: table.index_add_(0, rows, values),
        "index_copy": lambda: table.index_copy_(0, rows, values),
        "index_put": lambda: table.index_put_((rows,), values, accumulate=True),
    }
    if spec.name not in gathers and spec.name not in scatters:
        raise UnsupportedCallError(f"index {spec.op}: known are {', '.join([*gathers, *scatters])}")
    return Case(spec, {**gathers, **scatters}[spec.name], (values,) if spec.name in scatters else ())
