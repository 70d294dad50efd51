"""Operators that compute only shapes, for the meta device: this project's, and PyTorch's whose shape function is missing or slow.

Capture gives the operators of this project the names of CUDA's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.torch_names import has_kernel

_LIBRARIES: list[Any] = []
"""Keeps the libraries alive, because their operators are deleted with them."""


def meta_operators(namespace: str, operators: Mapping[str, Callable[..., Any]]) -> Any:
    """Register operators for the meta device; call once per namespace.

    Args:
        namespace: the part of an operator's name before `::`.
        operators: schema (`lookup(Tensor weight, ...) -> Tensor`) -> function that makes results of the correct shapes.

    Returns:
        `torch.ops.<namespace>`.
    """
    library: Any = torch.library.Library(namespace, "DEF")  # type: ignore[no-untyped-call]
    for schema, function in operators.items():
        library.define(schema)
        library.impl(schema.split("(")[0], function, "Meta")
    _LIBRARIES.append(library)
    return getattr(torch.ops, namespace)


def is_fake(tensor: Tensor) -> bool:
    """Whether a tensor is one of FakeTensorMode's."""
    return type(tensor).__name__ == "FakeTensor"


def is_empty(tensor: Tensor) -> bool:
    """Whether a tensor has a shape but no data."""
    return tensor.device.type == "meta" or is_fake(tensor)


def apply(function: Any, *arguments: Any) -> Tensor:
    """Call `function.apply(...)` of an autograd function with one result; the result is typed."""
    result: Tensor = function.apply(*arguments)
    return result


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, lengths: Any, target_lengths: Any, *_: Any, **__: Any
) -> Any:
    """Losses (batch), and the alphas (batch, frames, 2 x longest target + 1) that the backward pass reads."""
    frames, batch, _classes = log_probs.shape
    if isinstance(target_lengths, Tensor):
        known = not is_empty(target_lengths)
        longest = targets.shape[-1] if targets.dim() > 1 else -(-targets.numel() // max(batch, 1))
        longest = max(target_lengths.tolist(), default=0) if known else longest
    else:
        longest = max(target_lengths, default=0)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, frames, 2 * longest + 1)


def _bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Counts of the values from 0 on, or sums of weights: as many as asked, because indices are valid."""
    if not minlength:
        raise NotImplementedError("torch.bincount: how many entries it has depends on data")
    return x.new_empty(minlength, dtype=torch.long if weights is None else weights.dtype)


def _norm(x: Tensor, sums: Sequence[int]) -> tuple[Tensor, ...]:
    """The result of a norm, and its means and divisors in the shape `sums`, which the backward pass reads."""
    kept = x.new_empty(sums, dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.empty_like(x), kept, torch.empty_like(kept)


def _batch_norm(x: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return _norm(x, x.shape[1:2])


def _batch_norm_backward(g: Tensor, x: Tensor, weight: Tensor | None, *rest: Any) -> Any:
    """Gradients of the input, and of weight and bias where they are asked for."""
    of_channels = (x if weight is None else weight).new_empty(x.shape[1])
    return torch.empty_like(x), *(
        torch.empty_like(of_channels) if asked else None for asked in rest[-1][1:]
    )


def _layer_norm(x: Tensor, shape: Any, *_: Any) -> tuple[Tensor, ...]:
    return _norm(x, (*x.shape[: x.dim() - len(shape)], *[1] * len(shape)))


def _layer_norm_backward(g: Tensor, x: Tensor, _: Any, *rest: Any) -> Any:
    """Gradients of input, weight and bias where they are asked for."""
    *_, weight, bias, mask = rest
    return tuple(
        None if each is None or not asked else each.new_empty(each.shape)
        for each, asked in zip((x, weight, bias), mask, strict=True)
    )


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The result and the mask."""
    return torch.empty_like(x) if train and p else x, torch.empty_like(x, dtype=torch.bool)


def _like(place: int) -> Callable[..., Any]:
    """A shape function of an operator whose results all have the shape and dtype of one argument."""

    def shapes(*arguments: Any, **_: Any) -> Any:
        return torch.empty_like(arguments[place])

    return shapes


def _nothing(*_: Any, **__: Any) -> None:
    """The shape function of an operator that changes its arguments in place, or fills tensors that it is given."""


WITHOUT_SHAPES: Mapping[str, Callable[..., Any]] = {
    "bincount": _bincount,
    "_ctc_loss": _ctc_loss,
    "_ctc_loss.Tensor": _ctc_loss,
    **dict.fromkeys(("_ctc_loss_backward", "_ctc_loss_backward.Tensor"), _like(1)),
    **dict.fromkeys(("multi_margin_loss_backward", "multilabel_margin_loss_backward"), _like(1)),
    **dict.fromkeys(("fractional_max_pool3d_backward", "_masked_softmax_backward"), _like(1)),
    **dict.fromkeys(
        ("_logcumsumexp", "_masked_softmax", "_sample_dirichlet", "_dirichlet_grad"), _like(0)
    ),
    **dict.fromkeys(("_standard_gamma_grad", "binomial"), _like(0)),
    **dict.fromkeys(("_cummax_helper", "_cummin_helper"), _nothing),
    **{
        f"_fused_{name}_{kind}": _nothing
        for name in ("sgd", "adagrad", "adam", "adamw")
        for kind in ("", ".tensor_lr")
    },
}
"""Operators of training steps without a shape function in PyTorch (2.6 to 2.13) -> a shape function."""

QUICK: Mapping[str, Callable[..., Any]] = {
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_dropout": _dropout,
    "native_dropout_backward": _like(0),
    **{
        f"_foreach_{name}_.{kind}": _nothing
        for name in ("add", "mul", "div", "addcmul", "addcdiv")
        for kind in ("Scalar", "ScalarList")
    },
    **dict.fromkeys((f"_foreach_{name}_.List" for name in ("add", "mul", "div")), _nothing),
    "_foreach_lerp_.Scalar": _nothing,
}
"""Operators whose own shape functions run tens or thousands of small operators: half of the capture of ResNet-50, a third of that
of a language model -> a shape function."""


@cache
def register_shapes() -> Any:
    """Register shape functions of operators that have none, and `QUICK` ones; PyTorch 2.6 cannot replace its own."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name, shapes in WITHOUT_SHAPES.items():
        if has_kernel(f"aten::{name}", "CPU") and not has_kernel(f"aten::{name}", "Meta"):
            library.impl(name, shapes, "Meta")
    if "allow_override" in signature(torch.library.Library.impl).parameters:
        with warnings.catch_warnings(action="ignore"):  # the warning that functions are replaced
            for name, shapes in QUICK.items():
                library.impl(name, shapes, "Meta", allow_override=True)
    return library
