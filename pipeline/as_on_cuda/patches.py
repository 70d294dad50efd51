"""What is changed while a step is captured: attributes of PyTorch's modules and classes, and where its messages go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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


@contextmanager
def stderr_silenced() -> Iterator[None]:
    """Hide what PyTorch's C++ code writes directly to file descriptor 2."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as null:
            os.dup2(null.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
