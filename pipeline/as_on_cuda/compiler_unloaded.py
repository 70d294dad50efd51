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

import torch

from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import COMPILER, SHIELDED, disable_dynamo

OPTIMIZERS = (torch.optim.SGD, torch.optim.Adagrad, torch.optim.Adam)
"""Optimizers of shipped workloads."""


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
    functions = [function for function in _to_shield() if not hasattr(function, SHIELDED)]
    for function in functions:
        setattr(function, SHIELDED, function)
    try:
        with ExitStack() as stack:
            for kind in OPTIMIZERS:
                stack.enter_context(replaced(kind, step=torch.no_grad()(unwrap(kind.step))))
            yield
    finally:
        for function in functions:
            delattr(function, SHIELDED)


@cache
def _to_shield() -> list[Any]:
    """The functions that PyTorch shields when they are first called. All their wrappers have the same code."""
    example = disable_dynamo(_to_shield)
    if not isinstance(example, FunctionType):
        return []
    wrappers = [wrapper for wrapper in gc.get_referrers(example.__code__) if isinstance(wrapper, FunctionType)]
    functions = {id(fn): fn for wrapper in wrappers if (fn := getclosurevars(wrapper).nonlocals.get("fn")) is not None}
    return [function for function in functions.values() if function is not _to_shield]
