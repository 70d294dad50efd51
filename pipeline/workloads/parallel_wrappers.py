"""Wrappers that distribute a model over GPUs: during capture, they only run the wrapped module, as on one GPU.

The constructor of `DistributedDataParallel` needs a process group and compares weights between ranks. A capture has
neither. The forward pass of the wrapper is that of the module.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from pipeline.errors import SteptimeWarning
from pipeline.workloads.loss_item import is_empty


@contextmanager
def unwrapped() -> Iterator[None]:
    """While the body runs, `DistributedDataParallel` around a module without data only holds it, and warns about it."""
    kind: Any = DistributedDataParallel
    made, forward, no_sync = kind.__init__, kind.forward, kind.no_sync

    def begin(self: Any, module: nn.Module, *given: Any, **named: Any) -> None:
        if not _without_data(module):
            made(self, module, *given, **named)
            return
        nn.Module.__init__(self)
        self.module = module
        warnings.warn(
            "DistributedDataParallel: the step of one GPU is predicted, without the exchange of gradients",
            SteptimeWarning,
            stacklevel=2,
        )

    def inner(self: Any, *given: Any, **named: Any) -> Any:
        plain = _without_data(self.module)
        return self.module(*given, **named) if plain else forward(self, *given, **named)

    def apart(self: Any) -> AbstractContextManager[Any]:
        found: AbstractContextManager[Any] = nullcontext() if _without_data(self.module) else no_sync(self)
        return found

    with mock.patch.multiple(kind, __init__=begin, forward=inner, no_sync=apart):
        yield


def _without_data(module: nn.Module) -> bool:
    first: Tensor | None = next(module.parameters(), None)
    return first is not None and is_empty(first)
