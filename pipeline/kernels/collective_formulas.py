"""Collectives by formulas: what moves, over how many hops, inside a node and between nodes.

A ring of n ranks sends an all-reduce in 2 (n - 1) hops, and each rank sends 2 (n - 1) / n of its buffer. Rings of nodes
pass through the NICs, so the slower of links and NICs sets the rate. A tree between nodes needs fewer hops, and on two
nodes half of the bytes. Rates and hop times are those of the cluster's file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Texts
from pipeline.hardware.clusters import MESH, PAIRS, PCIE, Cluster
from pipeline.hardware.spec import GpuSpec

OPS = {
    "all_reduce": "all_?reduce",
    "all_gather": "all_?gather",
    "reduce_scatter": "reduce_?scatter",
    "all_to_all": "all_?to_?all",
    "broadcast": r"broadcast|^(?:nccl:)?reduce$",
    "send_recv": r"send_?recv|^(?:nccl:)?(?:send|recv)$",
}
"""Collectives, and a pattern that the names of their calls contain. A reduce moves what a broadcast moves."""

START_US = 6.6
"""Time of a collective without hops and bytes, µs: base latency of rings in NVIDIA/nccl (src/graph/tuning.cc)."""

LINK_SHARE = 0.8
"""Rate of large messages over NVLink's stated rate: 20 of 25 GB/s a link (NVIDIA/nccl, src/graph/topo.h)."""

NIC_SHARE = 0.95
"""Rate of large messages over the NICs' stated rate: 12 of 12.5 GB/s in NVIDIA/nccl (src/graph/topo.h), 382 of 400 GB/s on
four nodes of B200 (stas00/ml-engineering)."""

TREE_SHARE, TREE_GB_PER_S = 0.9, 55.0
"""Trees between nodes: their rate over that of rings, and the most that they sum up (NVIDIA/nccl, src/graph/tuning.cc)."""

RING_RANKS = 8
"""Ranks in a node up to which hops grow as in a ring; larger domains reduce small messages in trees."""

MESH_LINKS, MESH_PEERS = 6, 4
"""Of a GPU in the hybrid cube mesh: NVLinks, and GPUs that they reach (NVIDIA DGX-1 with V100)."""
MESH_RINGS = (1, 1, 1, 2, 4, 1, 2, 4, 6)
"""Rings over single links that the mesh has for so many of its first GPUs: two for a triangle, four for a quad, six for all."""

Inside = Callable[[str, Array, Array], Array]
"""Times inside one node, µs: of a collective, by ranks and bytes of a rank's buffer."""


def bus_share(op: str, ranks: Array) -> Array:
    """Bytes that each rank sends per byte of its buffer."""
    share = (ranks - 1.0) / ranks
    return (
        2.0 * share
        if op == "all_reduce"
        else np.ones_like(share)
        if op in ("broadcast", "send_recv")
        else share
    )


def hops(op: str, ranks: Array) -> Array:
    """Hops inside a node that follow each other."""
    if op in ("all_to_all", "send_recv"):
        return np.ones_like(ranks)
    steps = np.minimum(ranks, RING_RANKS) - 1.0 + 2.0 * np.log2(np.maximum(ranks / RING_RANKS, 1.0))
    return 2.0 * steps if op == "all_reduce" else steps


def node_us(op: str, ranks: Array, size: Array, gpu: GpuSpec, cluster: Cluster) -> Array:
    """Times inside one node, µs, from the rates of links alone."""
    link = LINK_SHARE * cluster.link_gb_per_s(gpu)
    rate = np.full(len(size), cluster.pcie_gb_per_s if cluster.fabric == PCIE else link)
    moved = bus_share(op, ranks) * size
    if cluster.fabric == PAIRS:
        rate = np.where(ranks > 2.0, cluster.pcie_gb_per_s, link)
    if cluster.fabric == MESH and op in ("all_to_all", "send_recv"):
        # one link to a neighbour; what goes to others crosses PCIe
        far = (
            np.maximum(ranks - 1.0 - MESH_PEERS, 0.0) / ranks
            if op == "all_to_all"
            else np.zeros_like(ranks)
        )
        near = size / ranks if op == "all_to_all" else size
        wire = np.maximum(near * MESH_LINKS / link, far * size / cluster.pcie_gb_per_s)
        return START_US + cluster.latency_us + wire / 1e3
    if cluster.fabric == MESH:
        rate = (
            link
            / MESH_LINKS
            * np.array(MESH_RINGS)[np.minimum(ranks, len(MESH_RINGS) - 1.0).astype(int)]
        )
    return START_US + hops(op, ranks) * cluster.latency_us + moved / (1e3 * rate)


def nodes_us(
    op: str,
    ranks: Array,
    nodes: Array,
    size: Array,
    cluster: Cluster,
    inside: Inside,
    node_groups: Array,
) -> Array:
    """Times over several nodes, µs: `inside` the nodes and between them at once, plus the hops between nodes.

    `node_groups` groups exchange on a node at once, and share its NICs.
    """
    local = np.ceil(ranks / nodes)
    cards = max(1, cluster.nics_per_node // cluster.gpus_per_node)
    # a rank uses the NICs beside it
    nics = np.minimum(cluster.nics_per_node / node_groups, cards * local)
    rate = 1e3 * NIC_SHARE * nics * cluster.nic_gb_per_s
    if op == "send_recv":
        return START_US + cluster.nic_latency_us + size / (1e3 * NIC_SHARE * cluster.nic_gb_per_s)
    if op == "all_to_all":
        crossing = local * size * (ranks - local) / ranks
        together = np.maximum(inside(op, local, size * local / ranks), START_US + crossing / rate)
        return np.asarray(together + cluster.nic_latency_us * (nodes - 1.0))
    ring = _joined(inside(op, local, size), bus_share(op, ranks) * size / rate)
    ring = ring + cluster.nic_latency_us * (nodes - 1.0) * (2.0 if op == "all_reduce" else 1.0)
    if op != "all_reduce":
        return ring
    slope = (
        np.where(nodes == 2.0, 1.0, 2.0) * size / np.minimum(TREE_SHARE * rate, 1e3 * TREE_GB_PER_S)
    )
    tree = _joined(inside(op, local, size), slope) + 2.0 * cluster.nic_latency_us * np.ceil(
        np.log2(nodes)
    )
    return np.minimum(ring, tree)


def _joined(inside_us: Array, between_us: Array) -> Array:
    """Both at once, chunk by chunk; what a node does for its first chunk is not hidden."""
    return np.maximum(inside_us, START_US + between_us)


def kinds(names: Texts) -> Texts:
    """The collective of each name of a call; "" where it is none of `OPS`."""
    text = pd.Series(names, dtype=object).str.lower()
    known = np.full(len(text), "", dtype=object)
    for op, pattern in OPS.items():
        known[text.str.contains(pattern).to_numpy(dtype=bool) & (known == "")] = op
    return known
