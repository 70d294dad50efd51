"""Sizes of optimizer kernels over lists of tensors (`torch._foreach_*`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.graph.sizes.vocabulary import Rule, Work, on_device, over, size
from pipeline.graph.table import Node

CHUNK_ELEMENTS = 65536
MAX_BLOCKS = 320
MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Maximum number of tensors per list in one launch, by number of lists (ATen/native/cuda/MultiTensorApply.cuh)."""


@size("foreach")
def foreach(node: Node, rule: Rule) -> list[Work] | None:
    """One fused kernel per group of chunks; it reads all lists on the device.

    Options: `written` is the number of lists that are written (default 1). `depth` is the number of lists for the
    launch limits (default: all lists). A list of scalars on the host causes no traffic.
    """
    if not node.tensors():
        raise LookupError(f"{node.name}: its shapes are unknown")
    lists = [
        tuple(t for t in argument if t.numel)
        for argument in node.inputs
        if isinstance(argument, tuple)
    ]
    lists = [found for found in lists if on_device(found)]
    if not lists or not lists[0]:
        return None
    depth = int(rule.options.get("depth", len(lists)))
    reads, writes = len(lists), int(rule.options.get("written", 1))
    works = []
    for elements, tensors in launches([t.numel for t in lists[0]], min(max(depth, 1), 5)):
        each = elements * (lists[0][0].bytes // lists[0][0].numel)
        dims = {"bytes": each, "tensors": tensors, "inputs": reads * each, "outputs": writes * each}
        works.append(Work(dims, elements * reads, reads * each, writes * each, lists[0][0].dtype))
    return works


@size("fused_optimizer")
def fused_optimizer(node: Node, rule: Rule) -> list[Work] | None:
    """_fused_adam_ and similar operators: a whole update in one kernel per group of chunks.

    Parameters, gradients and states are read, and all except the gradients are written
    (ATen/native/cuda/fused_adam_utils.cuh). The step counters are not counted.
    """
    lists = [argument for argument in node.inputs if isinstance(argument, tuple)]
    whole = [
        tensors for tensors in lists if [t.shape for t in tensors] == [t.shape for t in lists[0]]
    ]
    options = {"written": len(whole) - 1, "depth": len(whole)}
    return foreach(replace(node, inputs=tuple(whole), values=()), replace(rule, options=options))


@size("foreach_norm")
def foreach_norm(node: Node, rule: Rule) -> list[Work] | None:
    """_foreach_norm: the norms of the chunks, then one kernel that combines them."""
    works = foreach(node, rule)
    if works:
        count = sum(work.dims["tensors"] or 0 for work in works)

        works.append(
            over(
                (count, 320),
                320.0 * count,
                1280.0 * count,
                4.0 * count,
                "reduction",
                "norm_join",
                works[0].dtype,
            )
        )
    return works


def launches(sizes: Sequence[int], depth: int) -> list[tuple[int, int]]:
    """(elements, tensors) of every launch of multi_tensor_apply for tensors of these sizes.

    The function follows the loop in MultiTensorApply.cuh. A launch is made as soon as it has the maximum number of
    tensors, the maximum number of blocks, or the last chunk of all. If chunks of a tensor are left, the tensor is also
    part of the next launch.
    """
    found: list[tuple[int, int]] = []
    tensors = blocks = elements = 0
    for position, size_ in enumerate(sizes):
        tensors += 1
        left = size_
        while left:
            taken = min(left, (MAX_BLOCKS - blocks) * CHUNK_ELEMENTS)  # what fills the launch
            blocks += -(-taken // CHUNK_ELEMENTS)
            elements += taken
            left -= taken
            full = (tensors == MAX_TENSORS[depth] and not left) or blocks == MAX_BLOCKS
            if full or (position == len(sizes) - 1 and not left):
                found.append((elements, tensors))
                blocks = elements = 0
                tensors = 1 if left else 0
    return found
