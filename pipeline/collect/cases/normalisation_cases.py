"""Softmax, layer norm, batch norm, dropout and pooling, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.collect.cases.case import Case, Maker, Spec, UnsupportedCallError

if TYPE_CHECKING:
    from torch import Tensor


def softmax(spec: Spec, make: Maker) -> Case:
    """`softmax` or `log_softmax` over rows of width H."""
    import torch

    aten, x = torch.ops.aten, make.tensor(spec.get("B", 1), spec["H"], dtype=spec.dtype)
    log = "log" in spec.name
    forward = torch.log_softmax if log else torch.softmax
    if not spec.backward:
        return Case(spec, lambda: forward(x, 1), (x,))
    out, grad = forward(x, 1), make.tensor(*x.shape, dtype=spec.dtype)
    backward = aten._log_softmax_backward_data.default if log else aten._softmax_backward_data.default
    return Case(spec, lambda: backward(grad, out, 1, x.dtype), (grad,))


def layer_norm(spec: Spec, make: Maker) -> Case:
    """Layer norm with scale and shift; `..._weight...` is the gradient of only these two, `..._input` that of x."""
    import torch

    aten, h = torch.ops.aten, spec["H"]
    x = make.tensor(spec.get("B", 1), h, dtype=spec.dtype)
    w, v = make.tensor(h, dtype=spec.dtype), make.tensor(h, dtype=spec.dtype)
    if not spec.backward and "weight" not in spec.name:
        return Case(spec, lambda: aten.native_layer_norm.default(x, [h], w, v, 1e-5), (x,))
    _, mean, deviation = aten.native_layer_norm.default(x, [h], w, v, 1e-5)
    grad = make.tensor(*x.shape, dtype=spec.dtype)
    weights, inputs = "weight" in spec.name, "input" in spec.name
    mask = [not weights, not inputs, not inputs]
    backward = aten.native_layer_norm_backward.default
    return Case(spec, lambda: backward(grad, x, [h], mean, deviation, w, v, mask), (grad,))


def batch_norm(spec: Spec, make: Maker) -> Case:
    """Batch norm in training over B images of C channels and HW pixels."""
    import torch.nn.functional as F

    b, c, hw = spec["B"], spec["C"], spec["HW"]
    x, w, v = make.tensor(b, c, hw, 1, dtype=spec.dtype), make.tensor(c), make.tensor(c)
    mean, variance = make.tensor(c), make.tensor(c).abs_()
    return _differentiable(spec, make, lambda: F.batch_norm(x, mean, variance, w, v, True), [x, w, v])


def dropout(spec: Spec, make: Maker) -> Case:
    """Dropout of 10 % of B x H elements."""
    import torch

    aten, x = torch.ops.aten, make.tensor(spec.get("B", 1), spec["H"], dtype=spec.dtype)
    if not spec.backward:
        return Case(spec, lambda: aten.native_dropout.default(x, 0.1, True), (x,))
    _, kept = aten.native_dropout.default(x, 0.1, True)
    return Case(spec, lambda: aten.native_dropout_backward.default(x, kept, 1 / 0.9), (x,))


def pooling(spec: Spec, make: Maker) -> Case:
    """`max`, `average` or `adaptive` (to one pixel) pooling of square images."""
    import torch.nn.functional as F

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
    name = {"max_pool2d": "max", "avg_pool2d": "average", "adaptive_avg_pool2d": "adaptive"}.get(name, name)
    if name not in forward:
        raise UnsupportedCallError(f"pooling {spec.op}: known are {', '.join(forward)}")
    return _differentiable(spec, make, forward[name], [x])


def _differentiable(spec: Spec, make: Maker, forward: Callable[[], Tensor], wrt: Sequence[Tensor]) -> Case:
    """The forward call, or its backward by autograd.

    Direct calls of the backward operators are fragile, because they need cuDNN's reserve and saved indices.
    """
    import torch

    if not spec.backward:
        return Case(spec, forward, (wrt[0],))
    for tensor in wrt:
        tensor.requires_grad_()
    with torch.enable_grad():
        out = forward()
    grad = make.tensor(*out.shape, dtype=spec.dtype)
    return Case(spec, lambda: torch.autograd.grad(out, wrt, grad, retain_graph=True), (grad,))
