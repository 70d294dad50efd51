"""Sizes of the kernels of detectors: torchvision's `nms` and `roi_align` (torchvision/csrc/ops/cuda)."""

from __future__ import annotations

from pipeline.graph.sizes.movement import positions, sort_works
from pipeline.graph.sizes.vocabulary import (
    Rule,
    Work,
    filled,
    on_device,
    over,
    plain_result,
    read_bytes,
    size,
)
from pipeline.graph.table import Node, Tensor

BOXES_OF_WORD = 64
"""Boxes whose overlaps with one box are the bits of one number (`nms_kernel.cu`)."""


@size("nms")
def nms(node: Node, rule: Rule) -> list[Work] | None:
    """Boxes are sorted by score and compared pair by pair; then one block goes through them, and the host reads how many stay.

    How long that block waits for its own results is not known: its bytes are counted.
    """
    boxes = node.tensor(0)
    count, kept = boxes.shape[0], plain_result(node).numel
    if not count:
        return None
    overlaps, flags = Tensor((count, -(-count // BOXES_OF_WORD)), "int64"), Tensor((count,), "bool")
    pairs = count * count / 2
    return [
        *sort_works(count, 32, 12.0),
        over(boxes, 0, boxes.bytes + 8 * count, boxes.bytes, "index", "index_select"),
        filled(overlaps),
        over(
            overlaps, 16 * pairs, boxes.bytes, overlaps.bytes / 2, "elementwise", "compare", "int64"
        ),
        over(overlaps, 0, overlaps.bytes / 2, flags.bytes, "elementwise", "compare", "int64"),
        *positions(flags, kept),
    ]


@size("roi_align")
def roi_align(node: Node, rule: Rule) -> list[Work] | None:
    """Features at a grid of points in each box, or the sums of their gradients into an image of zeros (`backward`)."""
    given, result = on_device(node.tensors()), plain_result(node)
    if not given[1].numel:
        return [filled(result)] if rule.options.get("backward") else None
    pooled = given[0] if rule.options.get("backward") else result
    read = read_bytes(given)
    if rule.options.get("backward"):
        return [
            filled(result),
            over(pooled, pooled.numel, read + result.bytes, result.bytes),
        ]
    return [over(pooled, pooled.numel, read, pooled.bytes)]
