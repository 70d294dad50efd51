"""Sizes of reductions (sum, mean, max), and whether several blocks share one output.

Such blocks synchronise through semaphores. A memset clears the semaphores before the kernel, which is one more launch.
The rules follow `setReduceConfig` in ATen/native/cuda/Reduce.cuh for contiguous inputs.
"""

from __future__ import annotations

import math
from dataclasses import replace

from pipeline.graph.sizes.pointwise import elementwise
from pipeline.graph.sizes.vocabulary import Rule, Work, on_device, over, size
from pipeline.graph.table import Node, Tensor

THREADS = 512
"""Maximum number of threads in a block (`max_reduce_threads`)."""

WARP = 32
VECTOR = 4
"""Elements that a thread loads, or outputs that it computes, at once if the alignment allows it."""

WARPS_SHARE_FROM, BLOCKS_SHARE_FROM = 16, 256
"""Values per thread from which warps (first value) and blocks (second value) share an output."""

RESIDENT_THREADS = 2048
"""Maximum number of resident threads of an SM.

On Turing it is 1024, but the limit that follows from this value is far from the cases here.
"""


@size("reduction")
def reduction(node: Node, rule: Rule) -> list[Work] | Work | None:
    """sum, mean and similar: B rows of width H in the layout of the input; the op's suffix is the reduced side.

    Option `dim`: position of the dimensions among the arguments (default 1).
    """
    source = on_device(node.tensors())[0] if on_device(node.tensors()) else node.tensors()[0]
    dims, side = _reduced(node, source, int(rule.options.get("dim", 1)))
    if not source.numel:
        return None
    written = math.prod(size for i, size in enumerate(source.shape) if i not in dims)
    element = source.bytes // source.numel
    rows, width = _split(source.shape, dims, side)
    read = source.stored_bytes
    main = over(
        (rows, width),
        source.numel,
        read,
        written * element,
        dtype=source.dtype,
        op=f"{rule.op}_{side}",
    )
    if not _across_blocks(rows, width, side, rule.sms):
        return main
    cleared = ({"bytes": 4 * written}, 0, 0, 4 * written, "int32", "memset", "semaphores")
    return [Work(*cleared, "cudaMemsetAsync"), main]


@size("extremum")
def extremum(node: Node, rule: Rule) -> list[Work] | Work | None:
    """max and min: elementwise for two tensors; for one tensor, along a dimension or over all elements."""
    if len(node.tensors()) > 1:
        return elementwise(node, replace(rule, family="elementwise", op=f"{rule.op}imum"))
    return reduction(node, rule)


def _reduced(node: Node, source: Tensor, at: int) -> tuple[set[int], str]:
    """Reduced dimensions (argument `at`) and the reduced side: rows, columns or all."""
    argument = node.value(at)
    if isinstance(argument, bool) or not isinstance(argument, list | int):
        argument = None
    axes = [argument] if isinstance(argument, int) else argument
    rank = len(source.shape)
    every = set(range(rank))
    dims = {axis % rank for axis in axes} if axes and rank else every
    if all(source.shape[i] <= 1 for i in every - dims):
        return every, "all"
    return dims, "columns" if rank - 1 in dims else "rows"


def _across_blocks(rows: int, width: int, side: str, sms: int) -> bool:
    """Whether several blocks share one output, so that a memset clears semaphores first."""
    if side == "all":
        return blocks_share_outputs(1, rows * width, True, sms)
    columns = side == "columns"
    return blocks_share_outputs(
        rows if columns else width, width if columns else rows, columns, sms
    )


def _split(shape: tuple[int, ...], dims: set[int], side: str) -> tuple[int, int]:
    reduced = math.prod(size for i, size in enumerate(shape) if i in dims)
    kept = math.prod(size for i, size in enumerate(shape) if i not in dims)
    if side == "all":
        return math.prod(shape[:-1]), shape[-1] if shape else 1
    return (kept, reduced) if side == "columns" else (reduced, kept)


def blocks_share_outputs(outputs: int, inputs: int, fastest: bool, sms: int) -> bool:
    """Whether several blocks share each output of a reduction.

    Args:
        outputs: number of outputs (such as sums).
        inputs: number of elements that are reduced to one output.
        fastest: whether the reduced elements are adjacent in memory (otherwise the outputs are).
        sms: number of multiprocessors of the GPU.
    """
    width, height, vector = (inputs, outputs, 1) if fastest else (outputs, inputs, 1)
    threads = THREADS
    if fastest and outputs == 1 and inputs > WARP * VECTOR:
        width //= VECTOR
    elif not fastest:
        vector = next(size for size in (4, 2, 1) if outputs % size == 0)
        width, threads = width // vector, THREADS // vector
    block_width, block_height = _block(max(1, width), max(1, height), threads)
    per_thread = -(-inputs // block_width) if fastest else inputs
    split = per_thread >= min(block_height * WARPS_SHARE_FROM, BLOCKS_SHARE_FROM)
    if not split:
        return False
    per_thread = -(-per_thread // block_height)
    grid = -(-(outputs // vector) // (1 if fastest else block_width))
    target = sms * (RESIDENT_THREADS // (block_width * block_height))
    if per_thread < BLOCKS_SHARE_FROM or grid > target:
        return False
    by_room, by_work = -(-target // grid), -(-per_thread // WARPS_SHARE_FROM)
    return max(min(by_room, by_work), -(-per_thread // BLOCKS_SHARE_FROM)) > 1


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    """Width and height of a block (`set_block_dimension`), in threads; both are powers of 2.

    The height is chosen for a width of one warp; then the width becomes as large as the number of threads allows.
    """
    wide, high = _power_of_2(min(width, threads)), _power_of_2(min(height, threads))
    block_width = min(wide, WARP)
    block_height = min(high, threads // block_width)
    return min(wide, threads // block_height), block_height


def _power_of_2(number: int) -> int:
    return 1 << (number.bit_length() - 1)
