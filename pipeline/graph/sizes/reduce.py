"""How PyTorch lays a reduction out on the device: whether several blocks share one output.

They then count themselves in semaphores, which a memset clears before the kernel: one more launch. Follows
`setReduceConfig` in ATen/native/cuda/Reduce.cuh for contiguous inputs.
"""

from __future__ import annotations

THREADS = 512
"""Most threads of a block (`max_reduce_threads`)."""

WARP = 32
VECTOR = 4
"""Elements that a thread loads, or outputs that it makes, at once where alignment allows."""

LEAST_VALUES, MOST_VALUES = 16, 256
"""Values per thread from which warps, and from which blocks, share an output."""

RESIDENT_THREADS = 2048
"""Threads that an SM holds (1024 on Turing; the bound that this sets is never near here)."""


def blocks_share_outputs(outputs: int, inputs: int, fastest: bool, sms: int) -> bool:
    """Whether the reduction of `inputs` elements to each of `outputs` runs across blocks.

    Args:
        outputs: how many sums there are.
        inputs: elements in each.
        fastest: whether the reduced elements lie next to each other (else the outputs do).
        sms: multiprocessors of the GPU.
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
    split = per_thread >= min(block_height * LEAST_VALUES, MOST_VALUES)
    if not split:
        return False
    per_thread = -(-per_thread // block_height)
    grid = -(-(outputs // vector) // (1 if fastest else block_width))
    target = sms * (RESIDENT_THREADS // (block_width * block_height))
    if per_thread < MOST_VALUES or grid > target:
        return False
    by_room, by_work = -(-target // grid), -(-per_thread // LEAST_VALUES)
    return max(min(by_room, by_work), -(-per_thread // MOST_VALUES)) > 1


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    """Width and height of a block (`set_block_dimension`): powers of 2, a warp wide first, then as wide as it may be."""
    wide, high = _power_of_2(min(width, threads)), _power_of_2(min(height, threads))
    block_width = min(wide, WARP)
    block_height = min(high, threads // block_width)
    return min(wide, threads // block_height), block_height


def _power_of_2(number: int) -> int:
    return 1 << (number.bit_length() - 1)
