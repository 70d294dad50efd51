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
        networks: number of networks (seeds) that are averaged.
        rows: samples per step, over all GPUs.
        memory_reward: weight of the reward for attributing time to memory.
        prior: scale, in log time, of a GPU's correction to the common model; larger corrections are penalised.
        rate: peak learning rate of the one-cycle schedule.
        route_time: weight of the error in the time of the route or tile that a sample's kernel name shows.
        route_choice: weight of the negative log probability that the smooth minimum gives to this route or tile.
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
    # reads of operands by tiles have a term of their own, so the utilisation of bandwidth needs only a small range
    "gemm": Recipe(Shape(tile_reads=2.0, memory_low=0.2), networks=3),
    # narrow networks have smaller errors on GPUs outside the training set
    "bmm": Recipe(
        Shape(width=12, depth=2, tile_reads=1.0, memory_low=0.2),
        steps=600,
        networks=4,
        rows=1024,
        memory_reward=0.0,
        prior=0.3,
    ),
    "conv2d_forward": Recipe(
        Shape(width=12, depth=2, memory_low=0.2),
        steps=600,
        networks=4,
        rows=1024,
        memory_reward=0.0,
        prior=0.3,
    ),
    "elementwise": Recipe(replace(_ROWS, width=16), steps=600, networks=3, memory_reward=0.0),
    # linear in a few features (`gpu_features.softmax_features`): networks learn to tell the GPUs apart and differ between seeds
    "softmax": Recipe(
        replace(_ROWS, depth=0, memory_low=0.7), steps=600, networks=3, memory_reward=0.0, prior=0.4
    ),
    "layer_norm": Recipe(_ROWS, steps=600, networks=3, memory_reward=0.01),
}
"""Recipe by family, chosen by leave-one-GPU-out errors (docs/transfer.md)."""

TENSOR_CORE_RECIPE = Recipe(
    Shape(width=12, depth=2, compute_bound=1.05, memory_low=0.2, norm=4.0, thread_steps=True),
    steps=400,
    networks=3,
    memory_reward=0.0,
)
"""Recipe for products on tensor cores, chosen by errors with each chip left out (docs/notes/transfer.md)."""
