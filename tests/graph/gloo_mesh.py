"""FSDP2 around tensor parallelism in four real processes on this CPU: the collectives of a step, in their order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.as_on_cuda.functional_exchanges import OPERATORS

NAMES = {
    **OPERATORS,
    "_allgather_base_": "all_gather",
    "all_gather_single_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_single_": "reduce_scatter",
    "allreduce_": "all_reduce",
}
"""Operator of a real process -> the collective."""

PLANS = ("tensor", "sequence")


class Layer(nn.Module):
    """A residual feed-forward layer behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(64),
            nn.Linear(64, 256),
            nn.Linear(256, 64),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def share(model: nn.Module, device: str, plan: str) -> None:
    """Share the layers of a model over the mesh: pairs hold a layer together, and shard their parts over two pairs."""
    from torch.distributed import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    styles: Any = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if plan == "sequence":
        styles = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
    for layer in model.children():
        parallelize_module(layer, mesh["tp"], styles)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def train(model: nn.Module, x: Tensor) -> None:
    """A forward and a backward pass, and the norm of the gradients of weights that all ranks share."""
    model(x).sum().backward()
    shared: Any = list(model.parameters())
    nn.utils.clip_grad_norm_([weight for weight in shared if weight.device_mesh.ndim == 2], 1.0)


class Seen(TorchDispatchMode):
    """Notes collectives and the bytes of their larger side."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "to_local") or hasattr(kind, "trigger_wait") for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = str(func.overloadpacket).rpartition(".")[2]
        if func.namespace in ("c10d", "_c10d_functional") and name in NAMES:
            tensors = [each for each in tree_leaves((args, result)) if isinstance(each, Tensor)]
            self.calls.append((NAMES[name], max(each.nbytes for each in tensors)))
        return result


def main(rank: int) -> dict[str, list[tuple[str, int]]]:
    found = {}
    for plan in PLANS:
        model = nn.Sequential(*(Layer() for _ in range(3)))
        share(model, "cpu", plan)
        for _ in range(2):
            with Seen() as seen:
                train(model, torch.rand(2, 8, 64))
        found[plan] = seen.calls
    return found
