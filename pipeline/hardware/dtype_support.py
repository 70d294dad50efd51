"""Which dtypes of matrix products a GPU computes itself, and what PyTorch does with the others.

Sources:
- TF32 and bf16 arithmetic: from compute capability 8.0 on (CUDA C Programming Guide). AMD's CDNA2 has bf16 and no TF32.
- bf16 before that (`torch.cuda.is_bf16_supported(including_emulation=True)`): tensors hold 2 bytes, arithmetic is fp32.
  cuDNN is not used for convolutions and recurrent layers (ATen/cuda/detail/CUDAHooks.cpp). On Pascal cuBLAS refuses
  bf16 products with CUBLAS_STATUS_NOT_SUPPORTED (pytorch/pytorch#57773).
"""

from __future__ import annotations

from pipeline.hardware.spec import GpuSpec

TENSOR_CORE_CAPABILITY = 8.0
"""Lowest compute capability with TF32 and bf16 arithmetic (Ampere)."""

EMULATED_CAPABILITY = 7.0
"""Lowest compute capability for which cuBLAS multiplies matrices in bf16 (Volta)."""

NO_TF32 = ("cdna2",)
"""Architectures without TF32 whose compute capability, in another maker's numbering, is above that of Ampere."""


def has_tf32(gpu: GpuSpec) -> bool:
    """Whether products may run in TF32 on this GPU; otherwise they run in fp32."""
    return gpu.compute_capability >= TENSOR_CORE_CAPABILITY and gpu.architecture not in NO_TF32


def has_bf16(gpu: GpuSpec) -> bool:
    """Whether this GPU computes in bf16; a CPU counts as one, because it takes other paths than CUDA."""
    return gpu.limits is None or gpu.compute_capability >= TENSOR_CORE_CAPABILITY


def refuses_bf16(gpu: GpuSpec) -> bool:
    """Whether PyTorch raises an error for matrix products in bf16 on this GPU."""
    return not has_bf16(gpu) and gpu.compute_capability < EMULATED_CAPABILITY
