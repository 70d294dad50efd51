"""FSDP2 (`fully_shard`) on the meta device: PyTorch's own code gathers weights and scatters gradients, in its order and streams.

A few of its functions ask for a GPU, and are answered; streams and events write marks (`marked_streams`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import device_mesh

from pipeline.as_on_cuda.marked_streams import Handle
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import MESH_ANSWERS, META_CHECK, PARTS_OF_FSDP, sharded_modules
from pipeline.errors import InputError

SHARDING = "torch.distributed.fsdp"
"""Module of PyTorch's sharded training. It takes seconds to import, so that only a step that uses it does."""

WARM_UP = 2
"""Steps before the recorded one: the first makes streams, and learns the order in which weights are gathered."""

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtypes of gathered weights besides that of the model."""

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)

_ANSWERS: dict[str, Any] = {
    MESH_ANSWERS[0]: lambda *_: Handle,
    MESH_ANSWERS[1]: lambda mesh: torch.device("meta"),
}


def meshes_on_meta(module: Any = device_mesh) -> AbstractContextManager[None]:
    """While the body runs, meshes of GPUs are made without any; `module`: where PyTorch asks for the device."""
    return replaced(module, **{n: _ANSWERS[n] for n in MESH_ANSWERS if n in vars(module)})


@contextmanager
def sharded_on_meta() -> Iterator[None]:
    """While the body runs, FSDP2 takes modules on the meta device; afterwards it has forgotten them."""
    modules = sharded_modules()
    before = {*modules}
    with ExitStack() as stack:
        stack.callback(lambda: [modules.pop(each) for each in {*modules} - before])
        for part in map(import_module, PARTS_OF_FSDP):
            stack.enter_context(meshes_on_meta(part))
            if kind := vars(part).get(META_CHECK[0]):
                stack.enter_context(replaced(kind, **{META_CHECK[1]: lambda self: None}))
        yield


def is_shared(tensor: Any) -> bool:
    """Whether ranks share a tensor, or the tensors of a class: each holds a part, or waits for it."""
    return hasattr(tensor, "to_local") or hasattr(tensor, "trigger_wait")


def own_part(tensor: Any) -> Any:
    """The part of a sharded tensor that this rank holds; other tensors as they are."""
    if not is_shared(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def held_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor that this rank holds."""
    return int(own_part(tensor).nbytes)


def is_sharded(modules: Sequence[nn.Module]) -> bool:
    """Whether a weight of some modules is a part of a larger one."""
    return any(is_shared(weight) for part in modules for weight in part.parameters())


def units(module: nn.Module) -> list[nn.Module]:
    """What is sharded together, inside before outside: repeated blocks, and the module with the weights that are left.

    Blocks are the modules of one class of which a container (`Sequential`, `ModuleList`, `ModuleDict`) holds several, the
    outermost ones. A container without a forward pass is no unit.
    """
    found: list[nn.Module] = []

    def search(part: nn.Module) -> None:
        children = list(part.children())
        kinds = [type(child) for child in children]
        for child in children:
            repeated = isinstance(part, CONTAINERS) and kinds.count(type(child)) > 1
            if repeated and not isinstance(child, CONTAINERS):
                found.extend([child] if any(True for _ in child.parameters()) else [])
            else:
                search(child)

    search(module)
    own = {id(weight) for unit in found for weight in unit.parameters()}
    rest = any(id(weight) not in own for weight in module.parameters())
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return found + [unit for child in module.children() if rest for unit in units(child)]
    return [*found, *([module] if module not in found else [])]


def shard(step: Any, options: Mapping[str, Any]) -> None:
    """Shard the modules of a step by `fully_shard`, and give its optimizers the parts of the weights.

    Args:
        step: on the meta device.
        options: by the names of `FsdpSettings`, and `sizes`: replicas and shards of each.

    Raises:
        InputError: PyTorch refuses a module.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    replicas, shards = options["sizes"]
    names = ("replicate", "shard")
    mesh = (
        device_mesh.init_device_mesh("cuda", (replicas, shards), mesh_dim_names=names)
        if replicas > 1
        else device_mesh.init_device_mesh("cuda", (shards,))
    )
    dtype = HALVES.get(options["mixed_precision"])
    reduced = torch.float32 if options["reduce_dtype"] == "fp32" else dtype
    how: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype and reduced),
    }
    if not options["reshard_after_forward"]:
        how["reshard_after_forward"] = False
    before = dict(_named(step.modules))
    for module in step.modules:
        for unit in units(module):
            try:
                fully_shard(unit, **how)
            except (AssertionError, NotImplementedError, ValueError) as error:
                said = str(error).partition("\n")[0]
                raise InputError(
                    f"parallel=fsdp: fully_shard does not take {type(unit).__name__}: {said}"
                ) from None
    parts = {id(before[name]): weight for name, weight in _named(step.modules)}
    for optimizer in step.optimizers:
        for group in optimizer.param_groups:
            group["params"] = [parts.get(id(weight), weight) for weight in group["params"]]
        optimizer.state.clear()


def _named(modules: Sequence[nn.Module]) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """Weights of modules with the number of the module and their name in it."""
    for number, module in enumerate(modules):
        for name, weight in module.named_parameters():
            yield (number, name), weight


def shard_in_step(step: Any, options: Mapping[str, Any] | None) -> None:
    """Shard a step that has not sharded itself, and run it until it gathers as in every later step."""
    if options and not is_sharded(step.modules):
        shard(step, options)
    for _ in range(WARM_UP):
        step.run(0)
