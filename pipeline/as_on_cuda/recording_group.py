"""A process group of one process that plays the first of N ranks: collectives return at once, and are recorded.

Each collective is recorded as an operator (`steptime_comm::issue`) that stands in the execution trace where CUDA would start
NCCL's kernel, also inside the callbacks of `DistributedDataParallel`. `steptime_comm::wait` stands where the computing stream
waits for collectives. Source of the calls: `torch/distributed/distributed_c10d.py` and `csrc/distributed/c10d/reducer.cpp`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, cycle
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import destroy_process_group, init_process_group

from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.as_on_cuda.torch_names import call_after_backward, tree_leaves
from pipeline.errors import InputError
from pipeline.hardware.rank_layout import Layout

BACKEND = "steptime"
"""Name of the backend. Scripts ask for `nccl`; a capture gives them this one."""

_LIBRARY: Any = torch.library.Library("steptime_comm", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "issue(Tensor[] sent, Tensor[] received, str op, int id, int ranks, str axis) -> ()"
)
_LIBRARY.define("wait(int[] ids) -> ()")
_LIBRARY.impl("issue", lambda *_: None, "CompositeExplicitAutograd")
_LIBRARY.impl("wait", lambda *_: None, "CompositeExplicitAutograd")


class _Started(dist.Work):
    """A collective that has started: the computing stream waits for it where the host calls `wait`."""

    def __init__(self, group: RecordingGroup, number: int, result: Sequence[Tensor]) -> None:
        super().__init__()
        self._group, self.number = group, number
        self._result = list(result)

    def wait(self, timeout: Any = None) -> bool:
        """Record the wait. What holds the result from now on is the caller: its memory counts."""
        self._group.wait_for([self.number])
        self._result = []
        return True

    def get_future(self) -> Any:
        """A future that is done."""
        future: Any = torch.futures.Future()
        future.set_result(self._result)
        return future

    def is_completed(self) -> bool:
        """True: the host never waits for it."""
        return True

    is_success = is_completed

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()


class _Met(_Started):
    """A barrier, for which the host waits until the device has finished (ProcessGroupNCCL.cpp)."""

    def wait(self, timeout: Any = None) -> bool:
        """Record both waits."""
        super().wait()
        read(torch.empty((), device="meta"))
        return True


def _in_place(op: str) -> Any:
    """A method of a process group whose tensors are sent and replaced by the result."""

    def method(self: RecordingGroup, tensors: Any, opts: Any = None) -> _Started:
        return self.start(op, tensors, tensors, opts)

    return method


def _between(op: str) -> Any:
    """A method of a process group that receives other tensors than it sends; options come last, after sizes."""

    def method(self: RecordingGroup, received: Any, sent: Any, *more: Any) -> _Started:
        return self.start(op, received, sent, more[-1] if more else None)

    return method


class RecordingGroup(dist.ProcessGroup):
    """Rank 0 of `ranks` along an axis of the layout, without the others."""

    group_name: Any = ""

    def __init__(self, ranks: int, axis: str, name: str = "") -> None:
        super().__init__(0, ranks)  # type: ignore[call-arg]
        self._ranks, self._axis = ranks, axis
        self.group_name = name
        GROUPS[name] = self
        self._running: list[int] = []
        # PyTorch 2.6 waits for ever for a work that Python has let go
        self._works: list[_Started] = []
        self._reported = True

    def getBackendName(self) -> str:  # noqa: N802  # PyTorch calls it so
        """Name of the backend."""
        return BACKEND

    def size(self) -> int:
        """Number of ranks."""
        return self._ranks

    def rank(self) -> int:
        """The first rank."""
        return 0

    def wait_for(self, numbers: Sequence[int]) -> None:
        """Record that the computing stream waits for collectives, if it has not waited for them before."""
        waited = [number for number in numbers if number in self._running]
        self._running = [number for number in self._running if number not in waited]
        if waited:
            torch.ops.steptime_comm.wait(waited)

    def _wait_for_all(self) -> None:
        self._reported = True
        self.wait_for(self._running)

    def start(self, op: str, received: object, sent: object, options: Any = None) -> _Started:
        """Record a collective that begins, with the tensors in `received` and `sent`."""
        results = [leaf for leaf in tree_leaves(received) if isinstance(leaf, Tensor)]
        inputs = [leaf for leaf in tree_leaves(sent) if isinstance(leaf, Tensor)]
        number = next(_NUMBERS)
        if self._ranks == 1 or not any(map(is_empty, inputs)):
            _take_own(results, inputs)
            return _Started(self, number, results)
        self._running.append(number)
        torch.ops.steptime_comm.issue(inputs, results, op, number, self._ranks, self._axis)
        if not getattr(options, "asyncOp", True):
            self.wait_for([number])
            results = []  # a work that is kept keeps its results alive
        elif self._reported:
            # the reducer awaits futures, which do not say so; it does at the end of the backward pass, after this call
            self._reported = not call_after_backward(self._wait_for_all)
        self._works.append(_Started(self, number, results))
        return self._works[-1]

    def barrier(self, opts: Any = None) -> _Started:
        """An all-reduce of one number."""
        met = torch.empty(1, device="meta")
        return _Met(self, self.start("all_reduce", [met], [met]).number, [met])

    def send(self, *_: Any) -> Any:
        """Refused: an exchange between two ranks is no collective."""
        raise InputError(
            "torch.distributed: send and recv between two ranks are not predicted yet; take a"
            " collective, or leave them out"
        )

    recv: Any = send
    recv_anysource: Any = send
    allreduce = _in_place("all_reduce")
    allreduce_coalesced = _in_place("all_reduce")
    broadcast = _in_place("broadcast")
    reduce = _in_place("reduce")
    allgather = allgather_coalesced = gather = _between("all_gather")
    scatter = reduce_scatter = _between("reduce_scatter")
    alltoall = _between("all_to_all")
    # from PyTorch 2.13 on, and before
    all_gather_single = _allgather_base = allgather_into_tensor_coalesced = _between("all_gather")
    reduce_scatter_single = _reduce_scatter_base = reduce_scatter_tensor_coalesced = _between(
        "reduce_scatter"
    )
    all_to_all_single = alltoall_base = _between("all_to_all")


def _take_own(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    """Receive what this rank sends: alone, or in place of what others would send through their hosts."""
    with torch.no_grad():
        for result, own in zip(results, cycle(inputs), strict=False):
            if result is not own:
                times = -(-result.numel() // max(own.numel(), 1))
                sent = own if own.shape == result.shape else own.flatten().repeat(times)
                result.copy_(sent.view(-1)[: result.numel()].view(result.shape))


WRAPPED: list[Any] = []
"""`DistributedDataParallel` wrappers that were made in the step of several ranks that is captured now."""

GROUPS: dict[str, RecordingGroup] = {}
"""Groups of the step of several ranks that is captured now, by their names."""

_NUMBERS = count()
"""Numbers of collectives, over all groups."""

_LAYOUTS: list[Layout] = []
"""The layout of the ranks of which this process plays the first; empty outside `recording_group`."""


def _create(options: Any, _: object) -> RecordingGroup:
    layout = _LAYOUTS[-1]
    members = list(options.global_ranks_in_group) or range(layout.ranks)
    return RecordingGroup(options.group_size, layout.axis_of(members), options.group_id)


@contextmanager
def recording_group(layout: Layout) -> Iterator[None]:
    """While the body runs, this process is the first rank of a layout, in the default process group."""
    if BACKEND not in dist.Backend.backend_list:
        devices = ["cpu", "cuda", "meta"]
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=devices)
    hook = sys.excepthook  # PyTorch replaces it, to print the rank before each line of an error
    store = dist.HashStore()  # type: ignore[attr-defined]
    _LAYOUTS.append(layout)
    WRAPPED.clear()
    try:
        init_process_group(BACKEND, rank=0, world_size=layout.ranks, store=store)
        yield
    finally:
        _LAYOUTS.clear()
        WRAPPED.clear()
        GROUPS.clear()
        destroy_process_group()
        sys.excepthook = hook


def is_recording() -> bool:
    """Whether this process plays one of several ranks."""
    return bool(_LAYOUTS) and _LAYOUTS[-1].ranks > 1
