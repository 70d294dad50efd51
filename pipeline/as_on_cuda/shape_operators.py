"""Operators of this project that compute only shapes, for the meta device. Capture gives them the names of CUDA's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

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
