"""Reading the loss on the host (`loss.item()`), for which the host waits until the device has caught up.

Loops that only log read at the end of a step; facebookresearch/dlrm reads before the backward pass. Where nothing is
computed there is no value to read: an operator of ours stands for it, and capture names it as CUDA runs record it. What a
step of the user's reads is answered as in a run in which nothing is amiss; what no such run tells is refused.
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

NUMBER = 1.0
"""What a floating number that a step reads is taken for: finite, and neither zero nor negative."""

USUAL = {
    "all": True,
    "any": False,
    "isfinite": True,
    "isnan": False,
    "isinf": False,
    "_is_all_true": True,
    "_is_any_true": False,
}
"""What checks say in a run in which nothing is amiss: all is valid, there is no sign of trouble, all numbers are numbers."""


def read(value: Tensor) -> None:
    """Read a tensor of one element on the host."""
    if is_empty(value):
        with torch.no_grad():
            _operators().read(value)
    else:
        value.item()


@contextmanager
def read_by_steps() -> Iterator[None]:
    """While the body runs, numbers and checks that a step reads are waits of the host with an answer (`NUMBER`, `USUAL`).

    So is a copy to the host (`.cpu()`), of which nothing but its shape comes along. A floating number is mostly logged, or
    checked for being one. Whole numbers, which become sizes, and truth values of comparisons have no usual answer: PyTorch
    refuses them.
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
        read(self)  # all of its bytes; what is done with it there is the host's
        return self.view_as(self)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(Tensor, item=item, __bool__=truth, __float__=number, cpu=copied))
        for name, usual in USUAL.items():
            for place in (torch, Tensor):
                if hasattr(place, name):
                    stack.enter_context(mock.patch.object(place, name, _noted(getattr(place, name), usual)))
        yield


def _answer(value: Tensor) -> bool | float | None:
    """What a value is taken for, once the host has waited for it; None where it is there, or cannot be told."""
    usual: bool | None = getattr(value, "_steptime_usual", None)
    there = not is_empty(value) or getattr(value, "constant", None) is not None  # a fake number that is known
    if there or value.numel() != 1 or (usual is None and not value.is_floating_point()):
        return None
    read(value)
    return NUMBER if usual is None else usual


def _noted(check: Callable[..., Any], usual: bool) -> Callable[..., Any]:
    """A check whose result remembers what it usually is."""

    def noted(*given: Any, **named: Any) -> Any:
        found = check(*given, **named)
        if isinstance(found, Tensor) and is_empty(found):
            found._steptime_usual = usual  # type: ignore[attr-defined]
        return found

    return noted


def is_empty(value: Tensor) -> bool:
    """Whether a tensor has a shape alone."""
    return value.device.type == "meta" or is_fake(value)


@cache
def _operators() -> Any:
    """The operator of the meta device, registered when first needed."""
    return meta_operators("steptime_loss", {"read(Tensor value) -> ()": lambda value: None})
