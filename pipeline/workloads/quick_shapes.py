"""Quick shape functions for operators whose shapes PyTorch computes on the meta device by long Python code.

Half of the time of a capture of a large model went into them: each update of a list of 400 parameters runs as thousands of
small operators. A function here answers the usual case (dense, contiguous tensors of one shape). PyTorch's own function
answers all others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor

UPDATES = (
    "add_.Scalar", "add_.List", "add_.ScalarList", "mul_.Scalar", "mul_.List", "mul_.ScalarList", "div_.Scalar", "div_.List",
    "div_.ScalarList", "addcmul_.Scalar", "addcmul_.ScalarList", "addcdiv_.Scalar", "addcdiv_.ScalarList", "lerp_.Scalar",
    "sqrt_", "neg_",
)  # fmt: skip
"""Operators on lists of tensors that change their first list in place (`aten::_foreach_add_.Scalar`), so that no shape is
to be computed."""


def _unchanged(*given: Any, **named: Any) -> None:
    """An update in place."""


def _roots(tensors: list[Tensor]) -> list[Tensor]:
    """The square roots of a list."""
    return [torch.empty_like(tensor, dtype=_root_dtype(tensor)) for tensor in tensors]


def _root_dtype(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()


def _floating(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.is_contiguous()


def _alike(*tensors: Tensor) -> bool:
    """Whether floating-point tensors are contiguous, of one shape and one dtype."""
    first = tensors[0]
    return all(_floating(each) and each.shape == first.shape and each.dtype == first.dtype for each in tensors)


def _as_first(first: Tensor, *rest: Any, **named: Any) -> Tensor | None:
    """The result of an elementwise operator in the shape of all its tensors."""
    others = [each for each in rest if isinstance(each, Tensor)]
    return torch.empty_like(first) if _alike(first, *others) else None


def _softmax_backward(gradient: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor | None:
    return torch.empty_like(output) if _alike(gradient, output) and dtype == output.dtype else None


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    usual = _floating(x) and train and 0 < p < 1
    return (torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)) if usual else None


def _dropout_backward(gradient: Tensor, mask: Tensor, scale: float) -> Tensor | None:
    usual = _floating(gradient) and mask.is_contiguous() and mask.shape == gradient.shape
    return torch.empty_like(gradient) if usual else None


def _norm_backward(
    gradient: Tensor, x: Tensor, shape: list[int], mean: Tensor, deviation: Tensor, weight: Any, bias: Any, wanted: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    if weight is None or bias is None or not all(wanted) or not _alike(gradient, x) or not _alike(weight, bias):
        return None
    if weight.dtype != x.dtype or mean.dtype != x.dtype:
        return None
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


QUICK: dict[str, Callable[..., Any]] = {
    **{f"_foreach_{name}": _unchanged for name in UPDATES},
    "_foreach_sqrt": _roots,
    "gelu": _as_first,
    "gelu_backward": _as_first,
    "tanh_backward": _as_first,
    "_softmax_backward_data": _softmax_backward,
    "native_dropout": _dropout,
    "native_dropout_backward": _dropout_backward,
    "native_layer_norm_backward": _norm_backward,
}
"""Operators -> functions that return a result in the operator's shapes, or None where PyTorch's own shall answer."""


@contextmanager
def quick_shapes() -> Iterator[None]:
    """While the body runs, the meta device uses the functions in `QUICK`.

    PyTorch 2.6 cannot replace functions of its own. The body then runs with those, which takes longer.
    """
    if "allow_override" not in signature(torch.library.Library.impl).parameters:
        yield
        return
    scoped: Any = torch.library._scoped_library
    with scoped("aten", "IMPL") as library:
        with warnings.catch_warnings(action="ignore"):  # the warning that functions are replaced
            for name, quick in QUICK.items():
                operator, _, overload = name.partition(".")
                found: Any = getattr(getattr(torch.ops.aten, operator, None), overload or "default", None)
                if found is not None:
                    library.impl(name, _quick_or(quick, found), "Meta", allow_override=True)
        yield


def _quick_or(quick: Callable[..., Any], operator: Any) -> Callable[..., Any]:
    usual = _usual(operator)
    if usual is None:  # PyTorch has no function of its own, and `quick` answers every case
        return quick

    def shapes(*given: Any, **named: Any) -> Any:
        found = quick(*given, **named)
        return usual(*given, **named) if found is None else found

    return shapes


def _usual(operator: Any) -> Callable[..., Any] | None:
    """PyTorch's own shape function of an operator, in Python."""
    from torch._decomp import global_decomposition_table

    tables = ("meta", "post_autograd", "pre_autograd")  # the order in which PyTorch registers them
    return next(
        (global_decomposition_table[name][operator] for name in tables if operator in global_decomposition_table[name]),
        None,
    )
