"""Counts the peak memory of a step beside weights, gradients and optimizer state, while the step runs without data.

In training, this is what autograd saves until the backward pass has used it. Without gradients, it is the largest set
of results that are alive at once.
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


class LiveStorages:
    """Storages that are in use: `bytes` is the peak of their total size, with each storage counted once."""

    def __init__(self) -> None:
        self.bytes, self._now = 0, 0
        self._holders: dict[int, int] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_of(tensor) in self._holders

    def hold(self, tensor: Tensor, holder: object) -> None:
        """Count a tensor's storage until `holder` and all its other holders are deleted."""
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
    """Identity of a tensor's storage; views of one tensor share it."""
    return int(tensor.untyped_storage()._cdata)


class WorkingSet(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the peak bytes of results that are alive at once while the body runs; a shared storage counts once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = LiveStorages()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing is compiled while this mode is on. PyTorch would load its compiler only to skip the mode."""
        return False

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._alive.bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results; views and in-place results share a storage that is counted already."""
        given = {storage_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            # an input whose storage is not counted is a weight
            if isinstance(tensor, Tensor) and (tensor in self._alive or storage_of(tensor) not in given):
                self._alive.hold(tensor, tensor)
        return result


class SavedTensor:
    """A tensor that autograd holds until the backward pass has used it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedActivations:
    """Counts the peak bytes of the tensors that backward passes still need: the activations that stay in memory.

    Each backward pass frees its own tensors. A batch that is processed in parts therefore needs the memory of one part.
    """

    def __init__(self, ignored: Sequence[Tensor]) -> None:
        self._alive = LiveStorages()
        self._ignored = {storage_of(t) for t in ignored}

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._alive.bytes

    def add(self, tensor: Tensor) -> SavedTensor:
        """Count a tensor's storage once, until nothing holds it."""
        kept = SavedTensor(tensor)
        if storage_of(tensor) not in self._ignored:
            self._alive.hold(tensor, kept)
        return kept


@contextmanager
def saved_activations(step: Step) -> Iterator[SavedActivations]:
    """Count what autograd saves while the body runs, including what `torch.utils.checkpoint` recomputes."""
    saved = SavedActivations([*step.parameters(), *step.in_kernel])
    again: Any = torch.utils.checkpoint._recomputation_hook

    class Counted(again):  # type: ignore[misc]
        """Recomputation hook that counts too: it replaces the hooks of `saved_activations` while a part is recomputed.

        All tensors that it keeps are alive together at the end of the recomputation.
        """

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            kept: list[SavedTensor] = []
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
