"""The memory need of a step, counted while the step runs without data.

Beside weights, gradients and optimizer state it is, in training, what autograd saves until the backward pass has used it.
Without gradients, it is the largest set of results that are alive at once.

A training step of equal layers needs what it needs with one layer, plus what the second layer adds for each other layer:
every layer gets tensors of the sizes that the layer before it got.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from pipeline.as_on_cuda.compiler_unloaded import compiler_unloaded
from pipeline.as_on_cuda.emulation import run_as_on_cuda
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import RECOMPUTATION_HOOK, TorchDispatchMode, storage_id, tree_leaves
from pipeline.errors import ConfigError
from pipeline.graph.table import Graph, Memory
from pipeline.workloads import make_step
from pipeline.workloads.training_step import Step
from pipeline.workloads.user_errors import SIZE_ERRORS


class LiveStorages:
    """Storages that are in use: `bytes` is the peak of their total size, with each storage counted once."""

    def __init__(self) -> None:
        self.bytes, self._now = 0, 0
        self._holders: dict[int, int] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return storage_id(tensor) in self._holders

    def hold(self, tensor: Tensor, holder: object) -> None:
        """Count a tensor's storage until `holder` and all its other holders are deleted."""
        key, size = storage_id(tensor), tensor.untyped_storage().nbytes()
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


class WorkingSet(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the peak bytes of results that are alive at once while the body runs; a shared storage counts once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._alive = LiveStorages()

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._alive.bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results; views and in-place results share a storage that is counted already."""
        inputs = {storage_id(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            # an input whose storage is not counted is a weight
            if isinstance(tensor, Tensor) and (tensor in self._alive or storage_id(tensor) not in inputs):
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
        self._ignored = {storage_id(t) for t in ignored}

    @property
    def bytes(self) -> int:
        """The most so far."""
        return self._alive.bytes

    def add(self, tensor: Tensor) -> SavedTensor:
        """Count a tensor's storage once, until nothing holds it."""
        kept = SavedTensor(tensor)
        if storage_id(tensor) not in self._ignored:
            self._alive.hold(tensor, kept)
        return kept


@contextmanager
def saved_activations(step: Step) -> Iterator[SavedActivations]:
    """Count what autograd saves while the body runs, including what `torch.utils.checkpoint` recomputes."""
    saved = SavedActivations([*step.parameters(), *step.in_kernel])
    hook: Any = getattr(torch.utils.checkpoint, RECOMPUTATION_HOOK)

    class Counted(hook):  # type: ignore[misc]
        """Recomputation hook that counts too: it replaces the hooks of `saved_activations` while a part is recomputed.

        All tensors that it keeps are alive together at the end of the recomputation.
        """

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
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
        replaced(torch.utils.checkpoint, **{RECOMPUTATION_HOOK: Counted}),
    ):
        yield saved


def memory_need(step: Step, activations: int, optimizer: int | None = None) -> Memory:
    """The memory need of a step whose activations are counted; `optimizer`: bytes of its state, if not the usual ones."""
    return Memory(
        step.parameters_bytes + step.buffers_bytes,
        step.gradient_bytes,
        step.optimizer_bytes if optimizer is None else optimizer,
        activations,
        step.input_bytes,
    )


def memory_by_layers(config: Mapping[str, Any], batch_size: int, captured: Graph) -> Memory | None:
    """The memory need of a step at another batch size, without a run of all its layers.

    Args:
        config: content of `config/model/<name>.yaml` after overrides, of a shipped workload that runs on the meta device.
        batch_size: samples per step.
        captured: the captured graph of the same step at any batch size.

    Returns:
        None if the step has no equal layers, or if they do not give the memory need of the captured graph.
    """
    if config.get("mode", "train") != "train" or int(config.get("layers", 0)) < 3:
        return None
    try:
        if _extended(config, captured.batch_size) != captured.memory:
            return None
        return _extended(config, batch_size)
    except (ConfigError, *SIZE_ERRORS):  # a capture of the whole step explains the error
        return None


def _extended(config: Mapping[str, Any], batch_size: int) -> Memory:
    """The memory need of a step by that with one layer and what the second layer adds."""
    one, two = (asdict(_of_one_run({**config, "layers": layers}, batch_size)) for layers in (1, 2))
    more = int(config["layers"]) - 1
    return Memory(**{part: one[part] + more * (two[part] - one[part]) for part in one})


def _of_one_run(config: Mapping[str, Any], batch_size: int) -> Memory:
    with compiler_unloaded():
        step = make_step(config, batch_size, "meta")
        with run_as_on_cuda(compiles=False), saved_activations(step) as saved:
            step.run(0)
    return memory_need(step, saved.bytes)
