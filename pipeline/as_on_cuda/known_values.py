"""Numbers that a step knows without a GPU: those that the host made, and all that follows from them.

Lengths, masks and token numbers of a batch decide how a step goes on (`int(lengths.max())`, `x[mask]`). On the meta device
tensors have no values. So each result keeps how it is computed from values of the host, and is computed when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.as_on_cuda.torch_names import tree_flatten, tree_unflatten

Make = Callable[[], Any]

MAKERS = (torch.arange, torch.as_tensor, torch.full, torch.ones, torch.tensor, torch.zeros)
"""Functions that make a tensor of numbers that the script says."""


def known(value: Tensor) -> Tensor | None:
    """The numbers of a tensor without data, on the host, if they are known; None if not."""
    make = _make(value) if is_empty(value) else None
    try:
        return None if make is None else make()
    except (RuntimeError, TypeError):  # the host cannot compute it
        return None


def keep_values(value: Tensor, make: Make) -> None:
    """Keep how the numbers of a tensor without data are made, until something writes to it."""
    value._steptime_values = _version(value), make  # type: ignore[attr-defined]


def follow_values(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Keep how the numbers that a call returns are made, if those that it was given are known.

    A count of unknown indices finds each value equally often, as the groups of a product by experts are.
    """
    several = isinstance(result, tuple)
    parts = list(enumerate(result if several else (result,)))
    parts = [(at, part) for at, part in parts if isinstance(part, Tensor) and is_empty(part)]
    if not parts or "out" in kwargs:
        return
    given, structure = tree_flatten(
        (args, {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})})
    )
    tensors = [each for each in given if isinstance(each, Tensor)]
    if any(part is each for _, part in parts for each in tensors):  # nothing new, or written to
        return
    made = [_make(each) if isinstance(each, Tensor) else _constant(each) for each in given]
    make: Make | None = None
    if func is Tensor.to:
        make = made[0]
    elif (tensors or func in MAKERS) and None not in made:
        make = cache(lambda: _called(func, made, structure))
    elif func in (torch.bincount, Tensor.bincount):
        make = _constant(_even_counts(tensors[0].numel(), len(result)))
    if make is None:
        return
    for at, part in parts:
        keep_values(part, _part(make, at if several else None, part.dtype))


def _make(value: Tensor) -> Make | None:
    """How the numbers of a tensor are made; None where they are not known."""
    if not is_empty(value):
        return _constant(value)
    version, make = getattr(value, "_steptime_values", (None, None))
    return make if version == _version(value) else None


def _version(value: Tensor) -> int:
    """How often something wrote to a tensor."""
    return 0 if value.is_inference() else value._version


def _even_counts(items: int, groups: int) -> Tensor:
    each, more = divmod(items, groups)
    return each + (torch.arange(groups, device="cpu") < more).long()


def _constant(value: Any) -> Make:
    return lambda: value


def _called(func: Any, made: Any, structure: Any) -> Any:
    args, kwargs = tree_unflatten([make() for make in made], structure)
    with torch.device("cpu"):
        return func(*args, **kwargs)


def _part(make: Make, at: int | None, dtype: torch.dtype) -> Make:
    return lambda: (make() if at is None else make()[at]).to(dtype)
