"""What a pass without gradients holds in memory at once: its working set."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class WorkingSet(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the results that are alive at once, at most, while the body runs; tensors of one storage count once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes, self._now = 0, 0
        self._users: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count what it makes; views and results in place are of storages that count already."""
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._add(tensor, given)
        return result

    def _add(self, tensor: Tensor, given: set[int]) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._users:
            if key in given:  # of a weight
                return
            self._users[key] = 0
            self._now += size
            self.bytes = max(self.bytes, self._now)
        self._users[key] += 1
        weakref.finalize(tensor, self._drop, key, size).atexit = False

    def _drop(self, key: int, size: int) -> None:
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._now -= size
