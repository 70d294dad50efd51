"""Elementwise operations, reductions and losses, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError
from pipeline.collect.device import FLOAT_BYTES

if TYPE_CHECKING:
    from torch import Tensor

Operation = Callable[..., Any]


def _unary() -> dict[str, Operation]:
    """Operations on one tensor; `addu` and the like take a scalar."""
    import torch
    import torch.nn.functional as F

    return {
        "relu": torch.relu,
        "clamp_min": lambda x: x.clamp_min(0),
        "sigmoid": torch.sigmoid,
        "gelu": F.gelu,
        "tanh": torch.tanh,
        "silu": F.silu,
        "leaky_relu": F.leaky_relu,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "exp": torch.exp,
        "log": torch.log,
        "neg": torch.neg,
        "abs": torch.abs,
        "addu": lambda x: x + 0.5,
        "subu": lambda x: x - 0.5,
        "mulu": lambda x: x * 0.5,
        "divu": lambda x: x / 2.5,
        "powu": lambda x: x.pow(2),
        "pow": lambda x: x.pow(3),
        "fill": lambda x: x.fill_(1.0),
        "zero": lambda x: x.zero_(),
        "ones_like": torch.ones_like,
        "zeros_like": torch.zeros_like,
        "clone": torch.clone,
        "tril": torch.tril,
        "triu": torch.triu,
        "arange": lambda x: torch.arange(x.numel(), device=x.device),
        "cast": lambda x: x.bfloat16() if x.dtype == torch.float32 else x.float(),
        "other": lambda x: x * 0.5,
    }


def _binary() -> dict[str, Operation]:
    """Operations on two tensors; the second one may be broadcast."""
    import torch

    aten = torch.ops.aten
    return {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "pow": torch.pow,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "where": lambda x, y: torch.where(x > 0, x, y),
        "lerp": lambda x, y: torch.lerp(x, y, 0.5),
        "addcmul": lambda x, y: torch.addcmul(x, x, y),
        "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
        "relu_backward": lambda x, y: aten.threshold_backward(x, y, 0),
        "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0),
        "sigmoid_backward": aten.sigmoid_backward,
        "tanh_backward": aten.tanh_backward,
        "gelu_backward": aten.gelu_backward,
        "silu_backward": aten.silu_backward,
        "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.01, False),
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
    in_place = spec.op.endswith("_") or bool(spec.attributes.get("in_place"))
    full = b * h * FLOAT_BYTES.get(spec.dtype, 8)
    if name in binary:
        second = max(spec.get("inputs", 2 * full) - full, 0)
        if second >= full:
            y = make.tensor(b, h, dtype=spec.dtype)
        elif second == 0:  # only one tensor operand: the other is a scalar
            name = f"{name}u" if f"{name}u" in unary else name
            y = make.tensor(1, 1, dtype=spec.dtype)
        else:
            column = second * b < full or (second * h == full and b != h)  # one number per row
            y = make.tensor(b, 1, dtype=spec.dtype) if column else make.tensor(1, h, dtype=spec.dtype)
        if name in binary:
            return Case(spec, _in_place(binary[name], name, x, y) if in_place else lambda: binary[name](x, y), (x,))
    if name not in unary:
        raise UnsupportedCallError(f"elementwise {spec.op}: no benchmark; give the graph to run the op from it")
    return Case(spec, _in_place(unary[name], name, x) if in_place else lambda: unary[name](x), (x,))


def _in_place(operation: Operation, name: str, x: Tensor, *rest: Tensor) -> Callable[[], Any]:
    """The in-place form of an operation, if tensors have one."""
    method = getattr(x, f"{name}_", None)
    if method is None:
        return lambda: operation(x, *rest)
    # a tiny step keeps values finite after many repetitions
    return lambda: method(*rest, alpha=-1e-6) if name in ("add", "sub") else method(*rest)


def reduction(spec: Spec, make: Maker) -> Case:
    """Reduce B x H over rows, columns or all; the op (`sum_rows`, `sum_all`) or `outputs` (bytes) selects which."""
    import torch

    b, h = spec.get("B", 1), spec["H"]
    x = make.tensor(b, h, dtype=spec.dtype)
    operations: dict[str, Callable[..., Any]] = {
        "sum": torch.sum,
        "mean": torch.mean,
        "max": torch.amax,
        "amax": torch.amax,
        "min": torch.amin,
        "norm": lambda x, **k: torch.linalg.vector_norm(x, **k),
        "var": torch.var,
        "argmax": torch.argmax,
        "any": lambda x, **k: torch.any(x > 2, **k),
        "all": lambda x, **k: torch.all(x > 2, **k),
    }
    name, _, side = spec.name.partition("_")
    if name not in operations:
        raise UnsupportedCallError(f"reduction {spec.op}: known are {', '.join(operations)}")
    operation, element = operations[name], FLOAT_BYTES.get(spec.dtype, 8)
    size = spec.get("outputs", b * element) // element
    inferred = None if size <= 1 < b * h else 0 if size == h != b else 1
    dim = {"all": None, "rows": 0, "columns": 1}.get(side, inferred)
    return Case(spec, (lambda: operation(x)) if dim is None else (lambda: operation(x, dim=dim)), (x,))


def loss(spec: Spec, make: Maker) -> Case:
    """`mse`, `bce`, `nll` and `cross_entropy` over B samples (of H classes)."""
    import torch
    import torch.nn.functional as F

    aten, b, h = torch.ops.aten, spec["B"], max(spec.get("H", 1), 1)
    kind = spec.name.removesuffix("_backward").removesuffix("_loss").removesuffix("_forward")
    kind = {"binary_cross_entropy": "bce", "binary_cross_entropy_with_logits": "logits"}.get(kind, kind)
    if kind in ("mse", "bce", "logits"):
        x, y = (make.tensor(b * h, dtype=spec.dtype).abs_().clamp_(0.01, 0.99) for _ in range(2))
        one = make.tensor(1, dtype=spec.dtype).squeeze()
        run: dict[tuple[str, bool], Callable[[], Any]] = {
            ("mse", False): lambda: F.mse_loss(x, y),
            ("bce", False): lambda: F.binary_cross_entropy(x, y),
            ("logits", False): lambda: F.binary_cross_entropy_with_logits(x, y),
            ("logits", True): lambda: torch.sigmoid(x).sub_(y).mul_(one),
            ("mse", True): lambda: aten.mse_loss_backward.default(one, x, y, 1),
            ("bce", True): lambda: aten.binary_cross_entropy_backward.default(one, x, y, None, 1),
        }
        return Case(spec, run[kind, spec.backward], (x,))
    if kind not in ("nll", "cross_entropy"):
        raise UnsupportedCallError(f"loss {spec.op}: known are mse, bce, nll, cross_entropy")
    label, logits = make.indices(h, b), make.tensor(b, h, dtype=spec.dtype)
    forward = F.nll_loss if kind == "nll" else F.cross_entropy
    if not spec.backward:
        return Case(spec, lambda: forward(logits, label), (logits,))
    with torch.enable_grad():
        value = forward(logits.requires_grad_(), label)
    return Case(spec, lambda: torch.autograd.grad(value, logits, retain_graph=True))
