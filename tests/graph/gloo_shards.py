"""Real FSDP2 in two processes on this CPU: the collectives of a step, in their order."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.as_on_cuda.fully_sharded import units

NAMES = {
    "all_gather": ("all_gather_single", "all_gather_into_tensor"),
    "reduce_scatter": ("reduce_scatter_single", "reduce_scatter_tensor"),
}
"""Collective -> its functions from PyTorch 2.13 on, and before."""


class Block(nn.Module):
    """A residual block whose weights do not divide evenly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width + 1),
            nn.Linear(3 * width + 1, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


class Blocks(nn.Module):
    """Three blocks between weights that belong to none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(33, 65), nn.Linear(65, 7)
        self.blocks = nn.ModuleList(Block(65) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def main(rank: int) -> list[tuple[str, int]]:
    from torch.distributed.fsdp import fully_shard

    seen: list[tuple[str, int]] = []

    def noted(op: str, usual: Any) -> Any:
        def call(*tensors: Any, **named: Any) -> Any:
            all_of = [t for t in (*tensors, *named.values()) if isinstance(t, Tensor)]
            seen.append((op, max(t.nbytes for t in all_of)))
            return usual(*tensors, **named)

        return call

    for op, names in NAMES.items():
        for name in names:
            if hasattr(dist, name):
                setattr(dist, name, noted(op, getattr(dist, name)))
                break
    model = Blocks()
    mesh = dist.init_device_mesh("cpu", (2,))
    for unit in units(model):
        fully_shard(unit, mesh=mesh)
    for _ in range(2):
        seen.clear()
        model(torch.rand(4, 33)).sum().backward()
    return seen
