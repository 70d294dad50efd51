"""Concatenation, copies, transpositions, memory copies and fills, optimizer updates, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError
from pipeline.collect.device import FLOAT_BYTES

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_ROWS = 512
"""Rows of a concatenation or transposition that states only its bytes; the value is a small batch size."""
SORT_PASS_BITS = 40
"""Keys of a sort are below 2**SORT_PASS_BITS, like row numbers of embedding tables."""


def concat(spec: Spec, make: Maker) -> Case:
    """`cat` of parts along a dimension; the parts have equal width unless the attributes give `widths`."""
    import torch

    element = FLOAT_BYTES.get(spec.dtype, 8)
    elements, count = max(spec["bytes"] // element, 1), max(spec.get("tensors", 2), 1)
    rows = spec.get("B", 0) or next((r for r in (DEFAULT_ROWS, 64, 8, 1) if elements // (r * count)), 1)
    widths = [int(w) for w in spec.attributes.get("widths", [])] or _split(max(elements // rows, count), count)
    parts = tuple(make.tensor(rows, width, dtype=spec.dtype) for width in widths)
    if spec.name == "stack" and len(set(widths)) == 1:
        return Case(spec, lambda: torch.stack(parts, 1), parts)
    return Case(spec, lambda: torch.cat(parts, 1), parts)


def copy(spec: Spec, make: Maker) -> Case:
    """`copy` (contiguous), `transpose` (to another order of dimensions), `cast` (to another dtype)."""
    import torch

    element = FLOAT_BYTES.get(spec.dtype, 8)
    elements = max(spec["bytes"] // element, 1)
    if spec.name == "cast":
        x = make.tensor(elements, dtype=spec.dtype)
        target = torch.float32 if spec.dtype in ("bf16", "fp16") else torch.bfloat16
        return Case(spec, lambda: x.to(target), (x,))
    shape = [int(size) for size in spec.attributes.get("shape", [])]
    order = tuple(int(axis) for axis in spec.attributes.get("permutation", ()))
    if shape and order and order != tuple(range(len(order))):
        x = make.tensor(*shape, dtype=spec.dtype)
        view = x.permute(order)
        return Case(spec, lambda: view.clone(memory_format=torch.contiguous_format), (x,))
    if spec.name in ("transpose", "contiguous"):
        rows = next((r for r in (DEFAULT_ROWS, 64, 8, 1) if elements // r), 1)
        x = make.tensor(rows, elements // rows, dtype=spec.dtype)
        return Case(spec, lambda: x.t().contiguous(), (x,))
    x, y = make.tensor(elements, dtype=spec.dtype), make.tensor(elements, dtype=spec.dtype)
    return Case(spec, lambda: y.copy_(x), (x,))


def memcpy(spec: Spec, make: Maker) -> Case:
    """Copies between host and device (`pinned` or `pageable`) and within the device; on a CPU plain copies."""
    import torch

    size = max(spec["bytes"], 1)
    here = make.counted(torch.ones(size, dtype=torch.uint8, device=make.device))
    there = make.counted(torch.ones_like(here)) if spec.family == "memcpy_d2d" else torch.ones(size, dtype=torch.uint8)
    pinned = spec.family != "memcpy_d2d" and spec.op != "pageable" and spec.attributes.get("pinned", True)
    there = there.pin_memory() if pinned and make.device.type == "cuda" else there
    target, source = (there, here) if spec.family == "memcpy_d2h" else (here, there)
    return Case(spec, lambda: target.copy_(source, non_blocking=bool(pinned)))


def memset(spec: Spec, make: Maker) -> Case:
    """Clear a buffer; with the attribute `fresh`, a new buffer each time."""
    import torch

    size = max(spec["bytes"], 1)
    if spec.attributes.get("fresh"):
        return Case(spec, lambda: torch.zeros(size, dtype=torch.uint8, device=make.device))
    # CUDA clears any dtype with cudaMemsetAsync if the value is zero bytes
    x = make.tensor(-(-size // 4))
    return Case(spec, lambda: x.zero_())


def optimizer(spec: Spec, make: Maker) -> Case:
    """One optimizer step over `bytes` of parameters in `tensors` tensors; on CUDA all tensors at once."""
    import torch

    count = max(spec.get("tensors", 1), 1)
    dtype = spec.dtype if spec.dtype in FLOAT_BYTES else "fp32"
    elements = max(spec["bytes"] // FLOAT_BYTES[dtype], count)
    parameters = [torch.nn.Parameter(make.tensor(n, dtype=dtype)) for n in _split(elements, count)]
    for parameter in parameters:
        parameter.grad = make.tensor(parameter.numel(), dtype=dtype)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "sgd_momentum": lambda p, **k: torch.optim.SGD(p, momentum=0.9, **k),
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
    }
    if spec.name.startswith("foreach_"):
        return _foreach(spec, [p.data for p in parameters], [p.grad for p in parameters if p.grad is not None])
    if spec.name not in kinds:
        raise UnsupportedCallError(f"optimizer {spec.op}: known are foreach_* and {', '.join(kinds)}")
    stepper = kinds[spec.name](parameters, lr=1e-6, foreach=make.device.type == "cuda")
    return Case(spec, stepper.step)


def _foreach(spec: Spec, tensors: list[Tensor], others: list[Tensor]) -> Case:
    """One of the fused list operations of optimizers, in place."""
    import torch

    third = [torch.ones_like(t) for t in others] if "addc" in spec.name else []
    # add and copy have a second list if the call read twice the bytes that it wrote (for copy: as many bytes)
    pair = spec.get("inputs", 2 * spec["bytes"]) > 1.5 * spec["bytes"]
    operations: dict[str, Callable[[], Any]] = {
        "add": lambda: (
            torch._foreach_add_(tensors, others, alpha=-1e-6) if pair else torch._foreach_add_(tensors, 1e-6)
        ),
        "sub": lambda: torch._foreach_sub_(tensors, others, alpha=1e-6) if pair else torch._foreach_sub_(tensors, 1e-6),
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
    kind = spec.name.removeprefix("foreach_")
    if kind not in operations:
        raise UnsupportedCallError(f"optimizer {spec.op}: known are foreach_ {', '.join(operations)}")
    return Case(spec, operations[kind])


def sort(spec: Spec, make: Maker) -> Case:
    """`sort`, `unique` or `topk` of int64 row numbers."""
    import torch

    keys = make.counted(torch.randint(1 << SORT_PASS_BITS, (max(spec["bytes"] // 8, 1),), device=make.device))
    operations: dict[str, Callable[[Tensor], Any]] = {
        "sort": torch.sort,
        "unique": torch.unique,
        "topk": lambda x: torch.topk(x, min(8, x.numel())),
        "argsort": torch.argsort,
    }
    if spec.name not in operations:
        raise UnsupportedCallError(f"sort {spec.op}: known are {', '.join(operations)}")
    return Case(spec, lambda: operations[spec.name](keys), (keys,))


def _split(total: int, parts: int) -> list[int]:
    """Split `total` into `parts` sizes that differ by at most one; every size is at least one."""
    small, rest = divmod(max(total, parts), parts)
    return [small + (i < rest) for i in range(parts)]
