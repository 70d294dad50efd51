"""Sizes of FBGEMM's operators on features: indices of spread tables with the lengths of their bags, and sums of rows."""

from __future__ import annotations

from dataclasses import replace

from pipeline.graph.sizes.vocabulary import NUMBER, Rule, Work, filled, over, size
from pipeline.graph.table import Node, Tensor


@size("complete_cumsum")
def complete_cumsum(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's sum of lengths: a zero in front, then CUB's scan."""
    lengths = node.tensor(0)
    return [filled(NUMBER), *_scan(lengths)]


@size("permuted_features")
def permuted_features(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's features in another order: lengths, where each begins before and after, indices; as in `v100x8_dlrm`."""
    lengths, indices = node.tensor(0), node.tensor(1)
    after_lengths, after = node.outputs[0], node.outputs[1]
    assert isinstance(after, Tensor) and isinstance(after_lengths, Tensor)
    return [
        _rearranged(after_lengths),
        *_scan(lengths),
        filled(NUMBER),
        *_scan(after_lengths),
        _rearranged(replace(after, dtype=indices.dtype)),
    ]


@size("bucketized_features")
def bucketized_features(node: Node, rule: Rule) -> list[Work]:
    """FBGEMM's features with the indices of each rank's rows apart: lengths are counted and summed, then indices move."""
    indices, lengths = node.tensor(0), node.tensor(1)
    after, after_lengths = node.outputs[0], node.outputs[1]
    assert isinstance(after, Tensor) and isinstance(after_lengths, Tensor)
    counted = over(
        (1, indices.numel),
        indices.numel,
        indices.bytes,
        after_lengths.bytes,
        "index",
        "count",
        indices.dtype,
    )
    return [
        *_scan(lengths),
        filled(after_lengths),
        counted,
        *_scan(after_lengths),
        _rearranged(after),
    ]


@size("permuted_sums")
def permuted_sums(node: Node, rule: Rule) -> Work:
    """FBGEMM's sums of rows with their columns in another order: one kernel reads and writes all."""
    return _rearranged(node.tensor(0))


def _rearranged(after: Tensor) -> Work:
    """A kernel that writes values in another order."""
    return over((1, after.numel), after.numel, after.bytes, after.bytes, dtype=after.dtype)


def _scan(lengths: Tensor) -> list[Work]:
    """CUB's sum of all values before each."""
    line, moved = (1, lengths.numel), lengths.bytes
    return [
        over((1, 1), 0, 0, 128, "sort", "scan_init", "int32"),
        over(line, lengths.numel, moved, moved, "sort", "scan", "int32"),
    ]
