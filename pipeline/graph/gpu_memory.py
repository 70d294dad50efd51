"""The memory that a step takes of a GPU: its tensors, and what PyTorch and CUDA add to them."""

from __future__ import annotations

from pipeline.graph.table import Memory
from pipeline.hardware.spec import GpuSpec

BLOCK_BYTES = 512
"""PyTorch's allocator rounds each tensor up to a multiple of this: `kMinBlockSize` in c10/cuda/CUDACachingAllocator.cpp."""

SEGMENT_BYTES = 22 << 20
"""One partly used segment of each pool: 2 MiB for tensors up to 1 MiB, 20 MiB for those up to 10 MiB (`kSmallBuffer`,
`kLargeBuffer` there)."""

CONTEXT_BYTES_PER_SM = 3_700_000
"""Bytes of the CUDA context and loaded kernels per SM: median of nine out-of-memory messages, which state the memory in use
without PyTorch's (T4, RTX 2080 Ti, L4, RTX 3090, A100, L40, H100 and RTX 5090: 1.9 to 6.7 MB)."""


def needed_bytes(memory: Memory, gpu: GpuSpec) -> int:
    """The bytes that a process takes of a GPU's memory for a step: about what `nvidia-smi` shows."""
    if gpu.limits is None or not memory.peak:  # a CPU, or the graph of a trace
        return memory.peak
    threads = 2 if memory.gradients else 1  # the backward pass has a thread of its own
    return (
        memory.peak
        + BLOCK_BYTES * memory.blocks
        + SEGMENT_BYTES
        + gpu.generation.cublas_workspace_bytes * threads
        + CONTEXT_BYTES_PER_SM * gpu.sms
    )
