"""`DistributedDataParallel` on the meta device: PyTorch's own reducer forms the buckets and starts the all-reduces.

Three things of its constructor need a device or other ranks: copies of inputs to a device, the check that all ranks have the
same weights, and the copy of the first rank's weights. They are no part of a step, and are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import distributed

from pipeline.as_on_cuda.fully_sharded import is_sharded, shard_in_step
from pipeline.as_on_cuda.patches import replaced, stderr_silenced
from pipeline.as_on_cuda.recording_group import WRAPPED
from pipeline.as_on_cuda.torch_names import (
    CHECK_OF_HOOKS,
    FIRST_EXCHANGES,
    TorchDispatchMode,
    tree_map,
)
from pipeline.errors import InputError

WARM_UP = 4
"""Steps before the recorded one: the reducer rebuilds its buckets in the second step, of a static graph in the third."""

USUAL_BUCKET_MB = 25
"""PyTorch's bucket size in MiB if none is given. Its first bucket then has 1 MiB; with a size given, all are alike."""


_PARAMETERS = signature(distributed.DistributedDataParallel).parameters
_SYNC_BUFFERS = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in _PARAMETERS
)
"""Name of the argument that sends the first rank's buffers; the first from PyTorch 2.13 on."""


class _KeepHostCopies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves the reducer's own lists of numbers as the host wrote them: it reads them back from the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func is torch.ops.aten.copy_.default
            and args[1].device.type == "meta"
            and args[0].device.type == "cpu"
        ):
            return args[0]
        return func(*args, **(kwargs or {}))


def exchanges_recorded() -> AbstractContextManager[None]:
    """While the body runs, `DistributedDataParallel` takes modules on the meta device."""
    kind: Any = distributed.DistributedDataParallel
    init = kind.__init__

    def begin(
        self: Any,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        with replaced(distributed, **dict.fromkeys(FIRST_EXCHANGES, lambda *_, **__: None)):
            init(self, module, None, None, *args, **kwargs)
        copy_inputs(self, device_ids)
        WRAPPED.append(self)

    return replaced(kind, __init__=begin, **{CHECK_OF_HOOKS: lambda *_: None})


def copy_inputs(wrapper: nn.Module, device_ids: object) -> None:
    """Let a wrapper copy to its GPU what it is given on the host, if it knows its GPU."""

    def copied(_: object, args: Any, kwargs: Any) -> Any:
        gpu = next(wrapper.parameters()).device

        def there(x: Any) -> Any:
            return x.to(gpu) if isinstance(x, Tensor) and x.device != gpu else x

        return tree_map(there, (args, kwargs))

    if device_ids:
        wrapper.register_forward_pre_hook(copied, with_kwargs=True)


def reducers_reads() -> AbstractContextManager[object]:
    """The context of a step whose reducer reads on the host which parameters the step used."""
    looks = any(wrapper.find_unused_parameters for wrapper in WRAPPED)
    return _KeepHostCopies() if looks else nullcontext()  # type: ignore[no-untyped-call]


@contextmanager
def no_exchange() -> Iterator[None]:
    """While the body runs, wrappers exchange no gradients."""
    with ExitStack() as stack:
        for wrapper in WRAPPED:
            stack.enter_context(wrapper.no_sync())
        yield


def warm_up(step: Any) -> None:
    """Run a step until its buckets no longer change. The reducer says that it cannot time kernels of the meta device."""
    with _KeepHostCopies(), stderr_silenced():  # type: ignore[no-untyped-call]
        for _ in range(WARM_UP):
            step.run(0)


def exchange_gradients(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Wrap a module, and let calls of the module itself run the wrapper, so that a step's functions need no change.

    Args:
        module: on the meta device.
        options: how gradients are exchanged, by the names of `DdpSettings`; `zero`: each rank gets the sums of a part.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    given = {
        key: options[key]
        for key in ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")
    }
    if options["bucket_cap_mb"] != USUAL_BUCKET_MB:
        given["bucket_cap_mb"] = options["bucket_cap_mb"]
    if not options["broadcast_buffers"]:
        given[_SYNC_BUFFERS] = False
    wrapper = distributed.DistributedDataParallel(module, **given)
    if wrapper not in WRAPPED:  # real ranks
        WRAPPED.append(wrapper)
    if options["compression"] != "none":
        hook = getattr(default_hooks, f"{options['compression']}_compress_hook")
        wrapper.register_comm_hook(None, hook)
    if options.get("zero"):
        wrapper.register_comm_hook(None, _scatter)
    forward, inside = module.forward, list[bool]()

    def run(*args: Any, **kwargs: Any) -> Any:
        if inside:
            return forward(*args, **kwargs)
        inside.append(True)
        try:
            return wrapper(*args, **kwargs)
        finally:
            inside.clear()

    module.forward = run


def _scatter(_: object, bucket: Any) -> Any:
    """A hook that leaves the sum of each part of a bucket to the rank that updates it (ZeRO-1)."""
    buffer = bucket.buffer()
    own = _part_of(buffer)
    work: Any = dist.reduce_scatter_tensor(own, buffer, dist.ReduceOp.AVG, async_op=True)
    return work.get_future().then(lambda _: buffer)


def share_update(optimizer: Any) -> None:
    """Let each rank update its part of every weight, and gather the weights afterwards (ZeRO-1).

    Real ranks cut flat buffers; parts of all weights have the same sizes in sum.

    Args:
        optimizer: of weights on the meta device. Its states are those of the parts.
    """
    groups, usual = optimizer.param_groups, optimizer.step
    held = [list(group["params"]) for group in groups]
    parts = [[_own_part(weight) for weight in whole] for whole in held]

    def step() -> None:
        for group, whole, own in zip(groups, held, parts, strict=True):
            for weight, part in zip(whole, own, strict=True):
                part.grad = None if weight.grad is None else part.update
            group["params"] = own
        usual()
        for group, whole in zip(groups, held, strict=True):
            group["params"] = whole
        dist.group.WORLD.start("all_gather", held, parts).wait()  # type: ignore[union-attr]

    optimizer.step = step


def _part_of(flat: Tensor) -> Tensor:
    """The part of a flat tensor that this rank has, rounded up."""
    return flat[: -(-len(flat) // dist.get_world_size())]


def _own_part(weight: Tensor) -> Any:
    """The part of a weight that this rank updates, in its memory, with a tensor that stands for its gradient."""
    own = _part_of(weight.detach().flatten())
    part: Any = nn.Parameter(own)
    part.update = own
    return part


def exchanging_gradients(step: Any, config: Mapping[str, Any]) -> AbstractContextManager[object]:
    """Let a step exchange its gradients, if it does not by itself, and run it until its exchange no longer changes.

    Returns the context in which it runs.

    Args:
        step: on the meta device.
        config: its configuration, with `ddp` or `fsdp`: how ranks exchange.
    """
    if (step.in_kernel and "placed" not in config) or step.sparse_gradient_bytes:
        raise InputError(
            "devices: NCCL reduces no sparse gradients, and tables that their backward pass updates"
            " have none; take parallel=hybrid, which spreads the tables over the GPUs,"
            " model.embedding=dense, or in a step of your own tables with dense gradients"
        )
    wrapped = bool(WRAPPED) or any(
        isinstance(module, distributed.DistributedDataParallel) for module in step.modules
    )
    if is_sharded(step.modules) or ("fsdp" in config and not wrapped):
        shard_in_step(step, config.get("fsdp"))
        return nullcontext()
    zero = config["ddp"].get("zero")
    if zero and (wrapped or step.procedure is not None):
        raise InputError(
            "parallel.zero=true: this step has its own exchange; write"
            " torch.distributed.optim.ZeroRedundancyOptimizer in it, which is captured"
        )
    for module in step.modules:
        if not wrapped and any(weight.requires_grad for weight in module.parameters()):
            exchange_gradients(module, config["ddp"])
    if zero:
        step.own_optimizers = step.optimizers  # their states count as they are
        for optimizer in step.optimizers:
            share_update(optimizer)
    step.without_exchange = no_exchange
    warm_up(step)
    return reducers_reads()
