"""How each family's utilisation model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pipeline.transfer.utilisation import Shape


@dataclass(frozen=True)
class Recipe:
    """How one family is trained.

    Attributes:
        shape: sizes and bounds of the networks.
        steps: optimizer steps per network.
        networks: seeds that are averaged.
        rows: samples per step, over all GPUs.
        memory_reward: weight of the reward for attributing time to memory.
        prior: how far, in log time, a GPU may differ from the common model before it costs.
        rate: peak learning rate of the one-cycle schedule.
        route_time: weight of the error of the route or tile that a sample's kernel name shows.
        route_choice: weight of how unlikely the smooth minimum holds that one to be.
    """

    shape: Shape = field(default_factory=Shape)
    steps: int = 700
    networks: int = 2
    rows: int = 1536
    memory_reward: float = 0.004
    prior: float = 0.1
    rate: float = 4e-3
    route_time: float = 0.3
    route_choice: float = 0.1


_ROWS = Shape(width=12, depth=2, compute_bound=10.0, memory_high=1.1, norm=4.0, thread_steps=True)

RECIPES: dict[str, Recipe] = {
    # where tiles read their operands is a term of its own, so that little is left for the utilisation of bandwidth
    "gemm": Recipe(Shape(tile_reads=2.0, memory_low=0.2), networks=3),
    # narrow networks carry over better to a GPU they have not seen
    "bmm": Recipe(
        Shape(width=12, depth=2, tile_reads=1.0, memory_low=0.2),
        steps=600,
        networks=4,
        rows=1024,
        memory_reward=0.0,
        prior=0.3,
    ),
    "conv2d_forward": Recipe(
        Shape(width=12, depth=2, memory_low=0.2), steps=600, networks=4, rows=1024, memory_reward=0.0, prior=0.3
    ),
    "elementwise": Recipe(replace(_ROWS, width=16), steps=600, networks=3, memory_reward=0.0),
    # linear in a few features (`softmax.py`): networks on them tell GPUs apart and differ by seed
    "softmax": Recipe(replace(_ROWS, depth=0, memory_low=0.7), steps=600, networks=3, memory_reward=0.0, prior=0.4),
    "layer_norm": Recipe(_ROWS, steps=600, networks=3, memory_reward=0.01),
}
"""Chosen on leave-one-GPU-out errors (docs/transfer.md)."""

TENSOR = Recipe(
    Shape(width=12, depth=2, compute_bound=1.05, memory_low=0.2, norm=4.0, thread_steps=True),
    steps=400,
    networks=3,
    memory_reward=0.0,
)
"""Of products on tensor cores; chosen on errors with each chip left out (docs/notes/transfer.md)."""
