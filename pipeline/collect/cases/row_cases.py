"""Elementwise operations, reductions, losses, normalisations and pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.collect.cases.case import (
    Case,
    Maker,
    Spec,
    UnsupportedCallError,
    differentiable,
)
from pipeline.families import family

Operation = Callable[..., Any]


def _unary() -> dict[str, Operation]:
    """Operations on one tensor; `addu` and the like take a scalar."""
    same_name = (
        "relu",
        "sigmoid",
        "tanh",
        "sqrt",
        "rsqrt",
        "exp",
        "log",
        "neg",
        "abs",
        "clone",
        "tril",
        "triu",
        "ones_like",
        "zeros_like",
    )
    return {
        **{name: getattr(torch, name) for name in same_name},
        **{name: getattr(F, name) for name in ("gelu", "silu", "leaky_relu")},
        "clamp_min": lambda x: x.clamp_min(0),
        "addu": lambda x: x + 0.5,
        "subu": lambda x: x - 0.5,
        "mulu": lambda x: x * 0.5,
        "divu": lambda x: x / 2.5,
        "powu": lambda x: x.pow(2),
        "pow": lambda x: x.pow(3),
        "fill": lambda x: x.fill_(1.0),
        "zero": lambda x: x.zero_(),
        "arange": lambda x: torch.arange(x.numel(), device=x.device),
        "cast": lambda x: x.bfloat16() if x.dtype == torch.float32 else x.float(),
        "other": lambda x: x * 0.5,
    }


def _binary() -> dict[str, Operation]:
    """Operations on two tensors; the second one may be broadcast."""
    aten = torch.ops.aten
    gradients = ("sigmoid_backward", "tanh_backward", "gelu_backward", "silu_backward")
    return {
        **{
            name: getattr(torch, name)
            for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum")
        },
        **{name: getattr(aten, name) for name in gradients},
        **dict.fromkeys(
            ("relu_backward", "threshold_backward"), lambda x, y: aten.threshold_backward(x, y, 0)
        ),
        "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.01, False),
        "where": lambda x, y: torch.where(x > 0, x, y),
        "lerp": lambda x, y: torch.lerp(x, y, 0.5),
        "addcmul": lambda x, y: torch.addcmul(x, x, y),
        "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    }


def elementwise(spec: Spec, make: Maker) -> Case:
    """Elementwise operation on B rows of width H.

    `inputs` (bytes) shows whether the second operand is broadcast. An op that ends in `_` works in place.
    """
    b, h = spec.get("B", 1), spec["H"]
    unary, binary = _unary(), _binary()
    name = spec.name
    if spec.phase == "backward" and f"{name}_backward" in binary:
        name = f"{name}_backward"
    x = make.tensor(b, h, dtype=spec.dtype)
    in_place = spec.op.endswith("_")
    full = b * h * spec.element_bytes
    if name in binary:
        second = max(spec.get("inputs", 2 * full) - full, 0)
        if second >= full:
            y = make.tensor(b, h, dtype=spec.dtype)
        elif second == 0:  # only one tensor operand: the other is a scalar
            name = f"{name}u" if f"{name}u" in unary else name
            y = make.tensor(1, 1, dtype=spec.dtype)
        else:
            column = second * b < full or (second * h == full and b != h)  # one number per row
            y = (
                make.tensor(b, 1, dtype=spec.dtype)
                if column
                else make.tensor(1, h, dtype=spec.dtype)
            )
        if name in binary:
            return Case(
                spec,
                _in_place(binary[name], name, x, y) if in_place else lambda: binary[name](x, y),
                (x,),
            )
    if name not in unary:
        raise UnsupportedCallError(
            f"elementwise {spec.op}: no benchmark; give the graph to run the op from it"
        )
    return Case(spec, _in_place(unary[name], name, x) if in_place else lambda: unary[name](x), (x,))


def _in_place(operation: Operation, name: str, x: Tensor, *rest: Tensor) -> Callable[[], Any]:
    """The in-place form of an operation, if tensors have one."""
    method = getattr(x, f"{name}_", None)
    if method is None:
        return lambda: operation(x, *rest)
    # a tiny step keeps values finite after many repetitions
    return lambda: method(*rest, alpha=-1e-6) if name in ("add", "sub") else method(*rest)


def reduction(spec: Spec, make: Maker) -> Case:
    """Reduce B x H over rows, columns or all, as the op says: `sum_rows`, `sum_all`."""
    b, h = spec.get("B", 1), spec["H"]
    x = make.tensor(b, h, dtype=spec.dtype)
    operations: dict[str, Callable[..., Any]] = {
        **{name: getattr(torch, name) for name in ("sum", "mean", "amax", "var", "argmax")},
        "max": torch.amax,
        "min": torch.amin,
        "norm": torch.linalg.vector_norm,
        "any": lambda x, **k: torch.any(x > 2, **k),
        "all": lambda x, **k: torch.all(x > 2, **k),
    }
    name, _, side = spec.name.partition("_")
    operation, over = spec.chosen(operations, name), {"rows": {"dim": 0}, "all": {}}
    return Case(spec, partial(operation, x, **over.get(side, {"dim": 1})), (x,))


def loss(spec: Spec, make: Maker) -> Case:
    """`mse_loss`, `binary_cross_entropy` and `nll_loss` over B samples (of H classes)."""
    b, h = spec["B"], max(spec.get("H", 1), 1)
    kind = spec.name.removesuffix("_backward").removesuffix("_forward")
    names = ("mse_loss", "binary_cross_entropy", "nll_loss")
    operation = spec.chosen({name: getattr(F, name) for name in names}, kind)
    if kind == "nll_loss":
        x, y = make.tensor(b, h, dtype=spec.dtype), make.indices(h, b)
    else:
        x, y = (make.tensor(b * h, dtype=spec.dtype).abs_().clamp_(0.01, 0.99) for _ in range(2))
    return differentiable(spec, make, lambda: operation(x, y), [x])


def stated(spec: Spec, make: Maker) -> Case:
    """What the call's family says that a benchmark runs (`Family.runs`), or its gradient."""
    kind = family(spec.family)
    operation = spec.chosen(kind.runs, spec.name.removesuffix("_backward"))
    x = make.tensor(spec.get("B", 1), spec["H"], dtype=spec.dtype)
    if kind.any_phase:
        return Case(spec, lambda: operation(x), (x,))
    return differentiable(spec, make, lambda: operation(x), [x])


def layer_norm(spec: Spec, make: Maker) -> Case:
    """Layer norm with scale and shift; `..._weight...` is the gradient of only these two, `..._input` that of x."""
    h = spec["H"]
    x = make.tensor(spec.get("B", 1), h, dtype=spec.dtype)
    w, v = make.tensor(h, dtype=spec.dtype), make.tensor(h, dtype=spec.dtype)
    wrt = [w, v] if "weight" in spec.name else [x] if "input" in spec.name else [x, w, v]
    return differentiable(spec, make, lambda: F.layer_norm(x, [h], w, v), wrt)


def batch_norm(spec: Spec, make: Maker) -> Case:
    """Batch norm in training over B images of C channels and HW pixels."""
    b, c, hw = spec["B"], spec["C"], spec["HW"]
    x, w, v = make.tensor(b, c, hw, 1, dtype=spec.dtype), make.tensor(c), make.tensor(c)
    mean, variance = make.tensor(c), make.tensor(c).abs_()
    return differentiable(
        spec, make, lambda: F.batch_norm(x, mean, variance, w, v, True), [x, w, v]
    )


def dropout(spec: Spec, make: Maker) -> Case:
    """Dropout of 10 % of B x H elements."""
    x = make.tensor(spec.get("B", 1), spec["H"], dtype=spec.dtype)
    run = torch.ops.aten.native_dropout.default
    return differentiable(spec, make, lambda: run(x, 0.1, True)[0], [x])


def pooling(spec: Spec, make: Maker) -> Case:
    """`max`, `average` or `adaptive` (to one pixel) pooling of square images."""
    side = max(round(spec["HW"] ** 0.5), 1)
    x = make.tensor(spec["B"], spec["C"], side, side, dtype=spec.dtype)
    kernel = min(spec.get("kernel_size", 3), side)
    stride, padding = spec.get("stride", 2), min(spec.get("padding", kernel // 2), kernel // 2)
    forward: dict[str, Callable[[], Tensor]] = {
        "max": lambda: F.max_pool2d(x, kernel, stride, padding),
        "average": lambda: F.avg_pool2d(x, kernel, stride, padding),
        "adaptive": lambda: F.adaptive_avg_pool2d(x, 1),
    }
    name = spec.name.removesuffix("_backward")
    name = {"max_pool2d": "max", "avg_pool2d": "average", "adaptive_avg_pool2d": "adaptive"}.get(
        name, name
    )
    return differentiable(spec, make, spec.chosen(forward, name), [x])
