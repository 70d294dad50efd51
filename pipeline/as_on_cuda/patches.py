"""Attributes of PyTorch's modules and classes that have another value while a step is captured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Set attributes of a module or class while the body runs; after it, they are as before.

    Args:
        owner: a module or class.
        attributes: names and the values that they have meanwhile.
    """
    before = {name: vars(owner)[name] for name in attributes if name in vars(owner)}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name in attributes:
            if name in before:
                setattr(owner, name, before[name])
            elif name in vars(owner):  # the attribute was inherited
                delattr(owner, name)
