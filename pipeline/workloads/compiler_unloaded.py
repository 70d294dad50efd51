"""Runs steps without PyTorch's compiler, whose import takes as long as that of PyTorch itself."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from inspect import getclosurevars, unwrap
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch._compile import _disable_dynamo

COMPILER = "torch._dynamo"

OPTIMIZERS = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam)
"""Optimizers of shipped workloads."""

SHIELDED = "__dynamo_disable"
"""Attribute of a function under which PyTorch keeps the form of it that the compiler leaves alone."""


@contextmanager
def compiler_unloaded() -> Iterator[None]:
    """While the body runs, PyTorch does not load its compiler to shield functions from it.

    PyTorch shields methods of optimizers and the shape rules of many operators. The first call of each would load the
    compiler. They are called unshielded instead, which makes no difference where nothing is compiled. Nothing is done if
    the compiler is loaded already.
    """
    if COMPILER in sys.modules:
        yield
        return
    functions = [each for each in _to_shield() if not hasattr(each, SHIELDED)]
    for function in functions:
        setattr(function, SHIELDED, function)
    try:
        with ExitStack() as stack:
            for kind in OPTIMIZERS:
                plain = torch.no_grad()(unwrap(kind.step))
                stack.enter_context(mock.patch.object(kind, "step", plain))
            yield
    finally:
        for function in functions:
            delattr(function, SHIELDED)


@cache
def _to_shield() -> list[Any]:
    """The functions that PyTorch shields when they are first called. All their wrappers have the same code."""
    example = _disable_dynamo(_to_shield)
    if not isinstance(example, FunctionType):
        return []
    wrappers = [each for each in gc.get_referrers(example.__code__) if isinstance(each, FunctionType)]
    found = {id(fn): fn for each in wrappers if (fn := getclosurevars(each).nonlocals.get("fn")) is not None}
    return [each for each in found.values() if each is not _to_shield]
