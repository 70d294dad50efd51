"""Reads of the loss on the host (`loss.item()`): the host waits until the device has finished the work before it.

Loops that only log read the loss at the end of a step; facebookresearch/dlrm reads it before the backward pass. If
nothing is computed there is no value to read. A stand-in operator replaces the read, and capture gives it the name that
a CUDA run records. A value that a custom step reads gets the answer of a run without problems. If there is no such
usual answer, the read is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from pipeline.workloads.shape_only_ops import is_fake, meta_operators

ASSUMED_NUMBER = 1.0
"""Assumed value, without unit, of a floating-point number that a step reads: finite and positive."""

ASSUMED_CHECKS = {
    "all": True,
    "any": False,
    "isfinite": True,
    "isnan": False,
    "isinf": False,
    "_is_all_true": True,
    "_is_any_true": False,
}
"""Assumed result of each check, as in a run without problems: values are valid and finite, and no error flag is set."""


def read(value: Tensor) -> None:
    """Read a tensor of one element on the host."""
    if is_empty(value):
        with torch.no_grad():
            _operators().read(value)
    else:
        value.item()


@contextmanager
def assumed_reads() -> Iterator[None]:
    """While the body runs, the host waits for each number or check that a step reads, and gets an assumed answer.

    The answers are `ASSUMED_NUMBER` and `ASSUMED_CHECKS`. A copy to the host (`.cpu()`) is also a wait; it returns only the shape.

    Floating-point numbers are mostly logged or checked to be finite. Integers (which become sizes) and results of
    comparisons have no usual answer, so PyTorch raises its error for them.
    """
    plain = {name: getattr(Tensor, name) for name in ("item", "__bool__", "__float__", "cpu")}

    def item(self: Tensor) -> Any:
        known = _answer(self)
        return plain["item"](self) if known is None else known

    def truth(self: Tensor) -> bool:
        known = _answer(self)
        return bool(plain["__bool__"](self) if known is None else known)

    def number(self: Tensor) -> float:
        known = _answer(self)
        return float(plain["__float__"](self) if known is None else known)

    def copied(self: Tensor, *given: Any, **named: Any) -> Tensor:
        if not is_empty(self) or is_fake(self):
            found: Tensor = plain["cpu"](self, *given, **named)
            return found
        read(self)  # the copy has all bytes; later work on the result is on the host
        return self.view_as(self)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(Tensor, item=item, __bool__=truth, __float__=number, cpu=copied))
        for name, usual in ASSUMED_CHECKS.items():
            for place in (torch, Tensor):
                if hasattr(place, name):
                    stack.enter_context(
                        mock.patch.object(place, name, _with_assumed_result(getattr(place, name), usual))
                    )
        yield


def _answer(value: Tensor) -> bool | float | None:
    """The assumed value of a tensor, after the host has waited for it.

    None if the tensor has a real value, or if there is no usual answer.
    """
    usual: bool | None = getattr(value, "_steptime_usual", None)
    there = not is_empty(value) or getattr(value, "constant", None) is not None  # a fake tensor with a known number
    if there or value.numel() != 1 or (usual is None and not value.is_floating_point()):
        return None
    read(value)
    return ASSUMED_NUMBER if usual is None else usual


def _with_assumed_result(check: Callable[..., Any], usual: bool) -> Callable[..., Any]:
    """Wrap a check so that its result carries the usual answer."""

    def noted(*given: Any, **named: Any) -> Any:
        found = check(*given, **named)
        if isinstance(found, Tensor) and is_empty(found):
            found._steptime_usual = usual  # type: ignore[attr-defined]
        return found

    return noted


def is_empty(value: Tensor) -> bool:
    """Whether a tensor has a shape but no data."""
    return value.device.type == "meta" or is_fake(value)


@cache
def _operators() -> Any:
    """The operator of the meta device, registered at the first use."""
    return meta_operators("steptime_loss", {"read(Tensor value) -> ()": lambda value: None})
