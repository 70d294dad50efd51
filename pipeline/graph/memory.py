"""The memory need of a step: what is alive while the step runs without data, operator by operator.

On the meta device, PyTorch makes the result of each operator as a storage without data, and frees it as it frees memory of a
GPU: after the last use by a variable, by autograd or by a view. The step runs as on CUDA (`pipeline.as_on_cuda`), so that a
fused operator has no temporaries of its parts. `torch.distributed._tools.mem_tracker` works alike; a test compares both.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pipeline.as_on_cuda.emulation import run_as_on_cuda
from pipeline.as_on_cuda.fully_sharded import is_shared, own_part
from pipeline.as_on_cuda.optimizers import state_tensors
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.as_on_cuda.torch_names import TorchDispatchMode, storage_id, tree_leaves
from pipeline.graph.step_modules import module_calls_marked
from pipeline.graph.table import Memory
from pipeline.workloads import make_step
from pipeline.workloads.training_step import Step


def _flash_backward(_: Tensor, query: Tensor, *rest: Any) -> int:
    """Sums of the query's gradient and one number per row, in fp32: `mha_bwd` in ATen's flash_attn/flash_api.cpp."""
    return 4 * (query.numel() + query.numel() // query.shape[-1])


PHASE_MARK = re.compile(r"## (\w+) ##")
"""Name of the record that begins a phase of the step. `zero_grad` comes first, and is apart here: graphs count it as optimizer."""

KERNEL_BYTES: Mapping[str, Callable[..., int]] = {
    "steptime_attention::flash_backward": _flash_backward
}
"""Operators whose CUDA kernel needs memory while it runs, beside inputs and results -> its bytes, from their arguments."""


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the bytes of the storages that are alive while the body runs; each storage counts once.

    Of tensors that ranks share, the part of this rank counts. What is resized counts with its size (FSDP2 frees weights so).

    Args:
        apart: tensors that are counted elsewhere (weights, optimizer states) or are not on the device (a batch of fake tensors).
        running: paths of the modules that run now, the innermost last (`module_calls_marked`).
    """

    def __init__(self, apart: Iterable[Tensor] = (), running: Sequence[str] = ("",)) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        own = [own_part(tensor) for tensor in apart]
        self._apart = {storage_id(tensor) for tensor in own if _is_counted(tensor)}
        self._earlier: list[int] = []
        self._alive: dict[int, int] = {}
        """Bytes of each storage that is alive, by its identity."""
        self._running = running
        self._makers: dict[int, str] = {}
        """Path of the module that made each storage that is alive, by its identity."""
        self._patches = ExitStack()
        self._changes: list[int] = []
        self._frees: list[bool] = []
        self._phases: list[str] = [""]
        """Phase of each operator so far, the last of the one that runs."""
        self._born: dict[int, int] = {}
        """Number of the operator that made each storage that is alive, by its identity."""
        self._lives: list[tuple[int, int, int]] = []
        """Bytes of each storage that is gone, and the operators that made it and after which it was freed."""
        self.added = 0
        """Bytes alive now of what the body has made."""

    def __enter__(self) -> LiveMemory:
        """Begin to follow."""
        usual: Any = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            self._resized(storage, size)
            return usual(storage, size)

        self._patches.enter_context(replaced(torch.UntypedStorage, resize_=resize))
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        """End."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patches.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and count its results; views and in-place results share a storage that is counted already."""
        if any(map(is_shared, types)):  # its parts run next
            return NotImplemented
        mark = PHASE_MARK.fullmatch(str(args[0])) if func.namespace == "profiler" else None
        self._phases.append(mark[1] if mark else self._phases[-1])
        self.hold(tree_leaves((args, kwargs)), made_earlier=True)
        result = func(*args, **(kwargs or {}))
        self.hold(tree_leaves(result))
        if needs := KERNEL_BYTES.get(func.name()):
            size = needs(*args)
            self._note(size, False)
            self._note(-size, True)
            self._lives.append((size, self._now, self._now))
        return result

    def hold(self, tensors: Iterable[object], made_earlier: bool = False) -> None:
        """Count the storages of tensors until nothing holds them, from now on or since before the body."""
        for tensor in map(own_part, tensors):
            if isinstance(tensor, Tensor) and _is_counted(tensor):
                key = storage_id(tensor)
                if key not in self._alive and key not in self._apart:
                    self._count(tensor.untyped_storage(), key, made_earlier)

    def _count(self, storage: Any, key: int, made_earlier: bool) -> None:
        """Count a storage from now on."""
        self._alive[key] = storage.nbytes()
        self._born[key] = 0 if made_earlier else self._now
        if made_earlier:
            self._earlier.append(storage.nbytes())
        else:
            self._note(storage.nbytes(), False)
            self.added += storage.nbytes()
            self._makers[key] = self._running[-1]
        weakref.finalize(storage, partial(self._drop, key, made_earlier)).atexit = False

    def _drop(self, key: int, made_earlier: bool) -> None:
        size = self._alive.pop(key)
        self._lives.append((size, self._born.pop(key), self._now))
        self._makers.pop(key, None)
        self.added -= 0 if made_earlier else size
        self._note(-size, True)

    def _resized(self, storage: Any, size: int) -> None:
        """Count a storage with another size, also one that nobody has seen so far."""
        key = storage_id(storage)
        if key in self._apart:
            return
        if key not in self._alive:
            self._count(storage, key, True)
        change = size - self._alive[key]
        self._alive[key] = size
        self.added += change
        self._note(change, change < 0)

    @property
    def _now(self) -> int:
        return len(self._phases) - 1

    def course(self) -> pd.DataFrame:
        """What is alive while each operator runs, bytes by kind, and the phase of the operator.

        What the forward pass leaves for the backward pass are activations, what the backward pass leaves (or was there before)
        gradients, and all else temporaries.
        """
        phase, last = np.array(self._phases), len(self._phases)
        alive = [(size, self._born[key], last) for key, size in self._alive.items()]
        size, born, freed = np.array([*self._lives, *alive], np.int64).reshape(-1, 3).T
        back = np.flatnonzero(phase == "backward")
        begin, end = (back[0], back[-1]) if len(back) else (last, last)
        gradient = (freed > end) & (born >= begin) & (born <= end) | (born == 0)
        saved = (born < begin) & (freed >= begin) & ~gradient
        kinds = {"gradients": gradient, "activations": saved, "temporaries": ~(gradient | saved)}
        columns = {}
        for kind, chosen in kinds.items():
            change = np.zeros(last + 2, np.int64)
            np.add.at(change, born[chosen], size[chosen])
            np.add.at(change, freed[chosen] + 1, -size[chosen])
            columns[kind] = np.cumsum(change)[:last]
        return pd.DataFrame({"phase": phase, **columns})

    def _note(self, change: int, frees: bool) -> None:
        self._changes.append(change)
        self._frees.append(frees)

    def made(self) -> dict[str, int]:
        """Bytes alive now of what the body has made, by the module that made it."""
        sums: dict[str, int] = {}
        for key, path in self._makers.items():
            sums[path] = sums.get(path, 0) + self._alive[key]
        return sums

    @property
    def peaks(self) -> list[int]:
        """Bytes alive each time before something is freed. When that happens does not depend on sizes."""
        alive = sum(self._earlier) + np.cumsum(self._changes)
        frees = np.array(self._frees, dtype=bool)
        return [int(size) for size in alive[~frees & np.append(frees[1:], True)]]

    @property
    def bytes(self) -> int:
        """The most bytes alive at once."""
        return max(self.peaks, default=0)

    @property
    def blocks(self) -> int:
        """The most storages alive at once."""
        before = len(self._apart) + len(self._earlier)
        return before + int(np.cumsum(np.where(self._frees, -1, 1)).max(initial=0))


def _is_counted(tensor: Tensor) -> bool:
    return is_empty(tensor) and tensor.layout == torch.strided


def memory_need(
    step: Step,
    optimizer: int,
    others: Sequence[Optimizer] = (),
    paths: Mapping[nn.Module, str] | None = None,
) -> Memory:
    """The memory need of a step that ran before: it is run once more, as on CUDA.

    Args:
        step: the step, on the meta device or of fake tensors.
        optimizer: bytes of optimizer state.
        others: optimizers that the step made itself.
        paths: of the modules of the step, to say which keeps how much.
    """
    buffers = [buffer for module in step.modules for buffer in module.buffers()]
    states = state_tensors([*step.optimizers, *others])
    pool = [tensor for batch in step.pool for tensor in batch]
    apart = [*step.parameters(), *step.in_kernel, *buffers, *states, *pool]
    saved: list[tuple[int, dict[str, int]]] = []
    with (
        run_as_on_cuda(),
        module_calls_marked(paths or {}) as running,
        LiveMemory(apart, running) as live,
    ):
        live.hold([weight.grad for weight in step.parameters()], made_earlier=True)
        step.after_forward = lambda: saved.append((live.added, live.made()))
        step.run(0)
        step.after_forward = nullcontext
    kept = step.parameters_bytes + step.buffers_bytes
    beside = kept + optimizer + step.sparse_gradient_bytes
    course = live.course()
    course["gradients"] += step.sparse_gradient_bytes
    if not step.copies:  # the batch is on the device before the step, and stays there
        beside += step.input_bytes
        course["activations"] += step.input_bytes
    peaks = tuple(beside + size for size in live.peaks)
    return Memory(
        kept,
        step.gradient_bytes,
        optimizer,
        step.input_bytes,
        live.blocks,
        max(peaks),
        *(saved[0] if saved else (0, {})),
        peaks,
        course,
    )


def memory_of_workload(config: Mapping[str, Any], batch_size: int) -> Memory:
    """The memory need of a shipped workload that runs on the meta device, without its graph.

    Raises:
        SteptimeError: the workload cannot be made at this batch size.
    """
    step = make_step(config, batch_size, "meta")
    if not with_states(step, config):
        with run_as_on_cuda():
            step.run(0)
    return memory_need(step, step.optimizer_bytes)


def with_states(step: Step, config: Mapping[str, Any]) -> bool:
    """Create the state of a shipped workload's optimizers without a run of the step, if that is possible.

    Parameters that a step does not use get a state too, which no operator reads. With `set_to_none=false` they would also
    get a gradient, and be updated.
    """
    if not step.training or not step.optimizers or not config.get("set_to_none", True):
        return False
    with run_as_on_cuda():
        for optimizer in step.optimizers:
            for parameter in (
                weight for group in optimizer.param_groups for weight in group["params"]
            ):
                parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
            optimizer.step()
            optimizer.zero_grad()
    return True
