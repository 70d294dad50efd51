"""The ranks of a step as a grid of named axes, and where the groups along each axis lie on the nodes.

A collective is between the ranks of a group along one axis: `dp` exchanges gradients, `tp` and `cp` parts of layers, `pp`
activations between stages, `ep` tokens or table rows, `fsdp` weights. A captured step names the axis of each
collective; how many ranks a group has and where they are is filled in for each question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

AXES = ("dp", "tp", "pp", "cp", "ep", "fsdp")
"""Axes of a layout: data, tensor, pipeline, context and expert parallelism, and replicas that share their states."""

WORLD = "world"
"""The axis of collectives between all ranks, where a layout has several axes."""

COMPUTING_STREAM = 0

FIRST_MARKED_STREAM = 20
"""Number of the first stream that a step makes itself (`pipeline.as_on_cuda.marked_streams`)."""

COMMUNICATION = "communication"
"""Stands for the module of what exchanges between ranks and belongs to no module."""

CAPTURED_REPLICAS = 2
"""Replicas with which a step is captured that does not read their number: it depends on there being several."""


def is_wrapper(module: str | None) -> bool:
    """Whether a module is the one that PyTorch puts around a replica. Its own operators send buffers."""
    return (module or "").rpartition(".")[2].startswith("DistributedDataParallel")


class Groups(NamedTuple):
    """The groups along an axis.

    Attributes:
        ranks: ranks of a group.
        nodes: nodes that a group spans.
        node_groups: groups with ranks on one node, which share its NICs.
    """

    ranks: int
    nodes: int
    node_groups: int


@dataclass(frozen=True)
class Layout:
    """Ranks along named axes, on nodes that hold equally many.

    Attributes:
        sizes: ranks along each axis. Ranks of the first axis are neighbours (stride 1); the stride of each further axis is the
            number of ranks of those before it.
        nodes: machines that hold all ranks.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    nodes: int = 1

    @classmethod
    def of_workload(cls, config: Mapping[str, Any]) -> Layout | None:
        """The layout with which a step is captured; None for one GPU.

        Args:
            config: section `model` of a question.
        """
        sizes = config.get("layout")
        return None if sizes is None else cls(tuple(sizes.items()))

    @property
    def ranks(self) -> int:
        """Number of all ranks."""
        return prod(size for _, size in self.sizes)

    def captured(self, reads_ranks: bool) -> dict[str, int]:
        """Sizes of the axes for the capture of a step, as `of_workload` reads them.

        Args:
            reads_ranks: whether the step's code reads how many ranks there are. Otherwise all numbers of replicas share a capture;
                the shapes of a step depend on its other axes.
        """
        sizes = dict(self.sizes)
        return sizes if reads_ranks or "dp" not in sizes else sizes | {"dp": CAPTURED_REPLICAS}

    def members(self, axis: str) -> range:
        """The ranks of the group along an axis, or with a text of `axis_of`, that holds rank 0."""
        if axis[0].isdigit():
            count, stride = map(int, axis.split("x"))
            return range(0, count * stride, stride)
        stride = 1
        for name, size in self.sizes:
            if name == axis:
                return range(0, size * stride, stride)
            stride *= size
        return range(self.ranks if axis == WORLD else 1)

    def axis_of(self, ranks: Sequence[int]) -> str:
        """The axis with this group of ranks, which holds rank 0.

        Along none: `4x2` for four ranks, each second one, where such groups hold all ranks; else an empty text.
        """
        names = [*(name for name, _ in self.sizes), WORLD]
        count, stride = len(ranks), (ranks[1] - ranks[0] if len(ranks) > 1 else 1)
        if self.ranks % (count * stride) == 0:
            names.append(f"{count}x{stride}")
        return next((name for name in names if list(ranks) == list(self.members(name))), "")

    def groups(self, axis: str) -> Groups:
        """Where the groups along an axis are."""
        members, node_ranks = self.members(axis), self.ranks // self.nodes
        nodes = len({rank // node_ranks for rank in members})
        local = -(-len(members) // nodes)
        return Groups(len(members), nodes, node_ranks // local)


def stream_of(axis: str) -> int:
    """The stream on which collectives along an axis run: each communicator has one. Groups along no axis share one."""
    return 1 + (AXES.index(axis) if axis in AXES else len(AXES))
