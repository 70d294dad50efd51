"""Matrix products, convolutions, recurrent layers and attention."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.collect.cases.case import (
    Case,
    Maker,
    Spec,
    UnsupportedCallError,
    differentiable,
)
from pipeline.collect.device import torch_dtype


def gemm(spec: Spec, make: Maker) -> Case:
    """`linear` and `addmm` (with bias) or `mm`: (B M x N) times (N x K).

    N is the reduction; `trans_a` and `trans_b` say whether an operand is stored transposed.
    """
    m, n, k = spec.get("B", 1) * spec["M"], spec["N"], spec["K"]
    a = _stored(make, spec, (m, n), bool(spec.get("trans_a", 0)))
    b = _stored(make, spec, (n, k), bool(spec.get("trans_b", 0)))
    if spec.name in ("linear", "addmm"):
        bias = make.tensor(k, dtype=spec.dtype)
        return Case(spec, lambda: torch.addmm(bias, a, b), (a,))
    # `b` is not recently written: an old activation for the weight gradient, a parameter for the data gradient
    return Case(spec, lambda: torch.mm(a, b), (a,))


def bmm(spec: Spec, make: Maker) -> Case:
    """`bmm` and `baddbmm`: B products of (M x N) times (N x K)."""
    count, m, n, k = spec.get("B", 1), spec["M"], spec["N"], spec["K"]
    a = _stored(make, spec, (count, m, n), bool(spec.get("trans_a", 0)))
    b = _stored(make, spec, (count, n, k), bool(spec.get("trans_b", 0)))
    if spec.name == "baddbmm":
        c = make.tensor(count, m, k, dtype=spec.dtype)
        return Case(spec, lambda: torch.baddbmm(c, a, b), (a, b))
    return Case(spec, lambda: torch.bmm(a, b), (a, b))


def conv2d(spec: Spec, make: Maker) -> Case:
    """Forward convolution, or its gradient for the data or the weights, depending on the family."""
    groups, side = spec.get("groups", 1), spec["kernel_size"]
    kernel = side, spec.get("kernel_size_w", side)
    stride = [spec.get("stride", 1), spec.get("stride_w", spec.get("stride", 1))]
    padding = [spec.get("padding", 0), spec.get("padding_w", spec.get("padding", 0))]
    c, size = spec["in_channels"], spec["input_size"]
    x = make.tensor(spec["B"], c, size, spec.get("input_size_w", size), dtype=spec.dtype)
    w = make.tensor(spec["out_channels"], c // groups, *kernel, dtype=spec.dtype)
    options = None, stride, padding, spec.get("dilation", 1), groups
    wrt = w if spec.family == "conv2d_backward_weight" else x
    return differentiable(spec, make, partial(F.conv2d, x, w, *options), [wrt])


def rnn(spec: Spec, make: Maker) -> Case:
    """LSTM, GRU or plain recurrent layer over B sequences of T steps.

    `attributes` may state `directions`, `gates` and `projected`. The backward call does not include the forward call.
    """
    gates = int(spec.attributes.get("gates", 4))
    kind: Any = {1: nn.RNN, 3: nn.GRU, 4: nn.LSTM}[gates]
    projected = int(spec.attributes.get("projected", 0))
    both = int(spec.attributes.get("directions", 1)) == 2
    net = kind(
        spec["I"],
        spec["H"],
        spec.get("layers", 1),
        batch_first=True,
        bidirectional=both,
        **({"proj_size": projected} if projected else {}),
    )
    net = net.to(make.device, torch_dtype(spec.dtype))
    x = make.tensor(spec["B"], spec["T"], spec["I"], dtype=spec.dtype).requires_grad_()
    if not spec.backward:

        def forward() -> Tensor:
            with torch.enable_grad():  # only then does cuDNN keep its reserve for the backward pass
                return net(x)[0]  # type: ignore[no-any-return]

        return Case(spec, forward, (x,))
    grad = make.tensor(
        spec["B"], spec["T"], (projected or spec["H"]) * (2 if both else 1), dtype=spec.dtype
    )
    wrt, last = [x, *net.parameters()], {}

    def prepare() -> None:
        with torch.enable_grad():
            last["out"] = net(x)[0]

    return Case(spec, lambda: torch.autograd.grad(last["out"], wrt, grad), (grad,), prepare)


def attention(spec: Spec, make: Maker) -> Case:
    """Fused scaled dot-product attention: B (samples x heads), M queries, N keys, K head width.

    Raises:
        UnsupportedCallError: it has a mask; a call states only the bytes of a mask, not its shape.
    """
    if spec.attributes.get("mask"):
        raise UnsupportedCallError("attention with a mask: its shape is not known")
    count, width = spec["B"], spec["K"]
    q, k, v = (
        make.tensor(1, count, rows, width, dtype=spec.dtype)
        for rows in (spec["M"], spec["N"], spec["N"])
    )
    causal = bool(spec.attributes.get("causal", False))
    forward = partial(F.scaled_dot_product_attention, q, k, v, is_causal=causal)
    return differentiable(spec, make, forward, [q, k, v], (q, k, v))


def _stored(make: Maker, spec: Spec, shape: tuple[int, ...], transposed: bool) -> Tensor:
    """A matrix of this shape; if `transposed`, its memory holds the transpose."""
    if min(shape) < 1:
        raise UnsupportedCallError(f"{spec.family} {spec.op}: shape {shape} has no elements")
    *batch, rows, columns = shape
    if not transposed:
        return make.tensor(*shape, dtype=spec.dtype)
    return make.tensor(*batch, columns, rows, dtype=spec.dtype).transpose(-1, -2)
