"""Real `DistributedDataParallel` in two processes on this CPU: what its reducer exchanges, for a few models and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Tied(nn.Module):
    """A language model whose input and output embeddings are one weight, with a frozen position embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(5000, 96),
            nn.Parameter(torch.zeros(12, 96), requires_grad=False),
        )
        layer = nn.TransformerEncoderLayer(96, 4, 1024, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.words(x) + self.places) @ self.words.weight.T


class Branches(nn.Module):
    """Two heads, of which a step uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.used, self.unused = (
            nn.Linear(64, 512),
            nn.Linear(512, 600),
            nn.Linear(512, 700),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.trunk(x).relu())


def layers() -> nn.Module:
    return nn.Sequential(*[part for width in range(6) for part in (nn.Linear(700, 700), nn.ReLU())])


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 256, 3),
        nn.BatchNorm2d(256),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 2000),
    )


class Residual(nn.Module):
    """Blocks that are used in another order than they were made, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(400, 400) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for number in (3, 0, 4, 3, 1, 2):
            x = x + self.blocks[number](x).relu()
        return x


def image(n: int) -> Tensor:
    return torch.empty(n, 3, 16, 16)


def row(width: int) -> Callable[[int], Tensor]:
    return lambda n: torch.empty(n, width)


def words(n: int) -> Tensor:
    return torch.zeros(n, 12, dtype=torch.long)


Case = tuple[Callable[[], nn.Module], Callable[[int], Tensor], dict[str, Any]]

CASES: dict[str, Case] = {
    "layers": (layers, row(700), {}),
    "layers, small buckets as views": (
        layers,
        row(700),
        {"bucket_cap_mb": 2, "gradient_as_bucket_view": True},
    ),
    "layers, static": (
        layers,
        row(700),
        {"static_graph": True, "bucket_cap_mb": 3},
    ),
    "convolutions": (convolutions, image, {"bucket_cap_mb": 1}),
    "tied words, frozen places": (Tied, words, {"bucket_cap_mb": 1}),
    "residual blocks in another order": (
        Residual,
        row(400),
        {"bucket_cap_mb": 1},
    ),
    "an unused branch": (
        Branches,
        row(64),
        {"bucket_cap_mb": 1, "find_unused_parameters": True},
    ),
}
"""Models with their inputs and the options of `DistributedDataParallel`."""


def exchanged(rank: int) -> dict[str, list[int]]:
    """Run a few steps of each case as one of two ranks: the bytes of the last step's buckets."""
    torch.manual_seed(0)
    found = {}
    for name, (make, batch, options) in CASES.items():
        model, sizes = DistributedDataParallel(make(), **options), []

        def hook(state, bucket, sizes=sizes):  # type: ignore[no-untyped-def]  # DDP checks annotations
            sizes.append(bucket.buffer().nbytes)
            return (
                dist.all_reduce(bucket.buffer(), async_op=True)
                .get_future()
                .then(lambda f: f.value()[0])
            )

        model.register_comm_hook(None, hook)
        for _ in range(5):
            sizes.clear()
            value = torch.zeros_like(batch(4)) if batch(4).is_floating_point() else batch(4)
            model(value).sum().backward()
            model.zero_grad()
        found[name] = sizes
    return found
