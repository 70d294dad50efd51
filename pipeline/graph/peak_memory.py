"""What a step holds in memory at once beside weights, gradients and state: counted while it runs without data.

A training step holds what autograd saves until the backward pass has used it; a pass without gradients its working set.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.workloads.training_step import Step


class Alive:
    """Storages that something holds: `bytes` is the most that they were at once, each counted once."""

    def __init__(self) -> None:
        self.bytes, self._now = 0, 0
        self._holders: dict[int, int] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_of(tensor) in self._holders

    def hold(self, tensor: Tensor, holder: object) -> None:
        """Count a tensor's storage until `holder`, and everything else that holds it, is gone."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._holders:
            self._holders[key] = 0
            self._now += size
            self.bytes = max(self.bytes, self._now)
        self._holders[key] += 1
        weakref.finalize(holder, self._drop, key, size).atexit = False

    def _drop(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._now -= size


def storage_of(tensor: Tensor) -> int:
    """Identity of a tensor's storage, which views share."""
    return int(tensor.untyped_storage()._cdata)


class WorkingSet(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the results that are alive at once, at most, while the body runs; tensors of one storage count once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = Alive()

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._alive.bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it makes; views and results in place are of storages that count already."""
        given = {storage_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            # what is given and does not count is a weight
            if isinstance(tensor, Tensor) and (tensor in self._alive or storage_of(tensor) not in given):
                self._alive.hold(tensor, tensor)
        return result


class Kept:
    """A tensor as autograd holds it until the backward pass has used it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Saved:
    """Bytes of the tensors that backward passes still need, at most: the activations that stay in memory.

    Of several backward passes each frees its own, so that a batch in parts needs the room of one part.
    """

    def __init__(self, ignored: Sequence[Tensor]) -> None:
        self._alive = Alive()
        self._ignored = {storage_of(t) for t in ignored}

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._alive.bytes

    def add(self, tensor: Tensor) -> Kept:
        """Count a tensor's storage, once, until nothing keeps it."""
        kept = Kept(tensor)
        if storage_of(tensor) not in self._ignored:
            self._alive.hold(tensor, kept)
        return kept


@contextmanager
def saved_activations(step: Step) -> Iterator[Saved]:
    """Count what autograd saves while the body runs, what `torch.utils.checkpoint` computes again included."""
    saved = Saved([*step.parameters(), *step.in_kernel])
    again: Any = torch.utils.checkpoint._recomputation_hook

    class Counted(again):  # type: ignore[misc]
        """Its hooks stand before ours; what it keeps is alive together when a part has been computed again."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            kept: list[Kept] = []
            keep: Callable[[Tensor], Any] = vars(self)["pack_hook"]

            def count(tensor: Tensor) -> Any:
                kept.append(saved.add(tensor))
                return keep(tensor)

            self.kept, self.pack_hook = kept, count

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            self.kept.clear()

    with (
        torch.autograd.graph.saved_tensors_hooks(saved.add, lambda kept: kept.tensor),
        mock.patch.object(torch.utils.checkpoint, "_recomputation_hook", Counted),
    ):
        yield saved
