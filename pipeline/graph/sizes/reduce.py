"""Launch configuration of PyTorch's reductions: whether several blocks share one output.

Such blocks synchronise through semaphores. A memset clears the semaphores before the kernel, which is one more launch.
The rules follow `setReduceConfig` in ATen/native/cuda/Reduce.cuh for contiguous inputs.
"""

from __future__ import annotations

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
