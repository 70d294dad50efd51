"""Similarity of two operator sequences: the longest common subsequence of their names."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.graph.table import Graph

ALIASES = {
    "aten::add_": "aten::add", "aten::_reshape_alias": "aten::view",
    "aten::_index_put_impl_": "aten::index_put", "aten::index_put_": "aten::index_put",
    "aten::reshape": "aten::view", "aten::_unsafe_view": "aten::view",
    "aten::clamp_min_": "aten::clamp_min", "aten::relu_": "aten::relu",
}  # fmt: skip
"""Names that count as equal when operator sequences of different PyTorch versions are compared."""


def top_level_names(graph: Graph) -> list[str]:
    """Names of a graph's top-level operators in host order, with the same spelling for all PyTorch versions."""
    names = graph.table.sort_values("order").loc[lambda table: table["is_top_level"], "name"]
    return [plain_name(str(name)) for name in names]


def plain_name(name: str) -> str:
    """Remove what differs between PyTorch versions from a name: in-place marks, view variants, overload numbers."""
    if name.startswith("autograd::"):
        return name.replace("ReshapeAliasBackward0", "ViewBackward0").replace(
            "UnsafeViewBackward0", "ViewBackward0"
        )
    return ALIASES.get(name, name)


def sequence_match(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Length of the longest common subsequence divided by the length of the longer sequence, from 0 to 1.

    The algorithm is bit-parallel (Hyyrö 2004): one big-integer step per element. Ten thousand operators take
    milliseconds.
    """
    if not ours or not theirs:
        return float(not ours and not theirs)
    places: dict[str, int] = {}
    for i, name in enumerate(ours):
        places[name] = places.get(name, 0) | (1 << i)
    full = (1 << len(ours)) - 1
    row = full
    for name in theirs:
        common = row & places.get(name, 0)
        row = ((row + common) | (row - common)) & full
    return (len(ours) - row.bit_count()) / max(len(ours), len(theirs))
