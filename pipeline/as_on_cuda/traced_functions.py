"""What a step is given while PyTorch's compiler traces it: modules without data on the host, and CUDA's choice of attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.as_on_cuda import host_reads
from pipeline.as_on_cuda.compiler_gpu import Target
from pipeline.as_on_cuda.fused_operators import MAX_HEAD_WIDTH
from pipeline.as_on_cuda.host_autocast import HALF
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import compiler

FLASH_FROM = 8.0
"""Compute capability from which PyTorch has FlashAttention (ATen/native/transformers/cuda/sdp_utils.cpp)."""


def without_data(tensor: Tensor, mode: Any, half: torch.dtype | None = None) -> Any:
    """The tensor on the host, without data, in the trace of a mode; `half`: dtype of one with fractions."""
    dtype = half if half is not None and tensor.is_floating_point() else tensor.dtype
    with torch.no_grad():
        bare = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device="meta")
    return compiler("FakeTensor")(mode, bare, torch.device("cpu"))


def leave_data(modules: Iterable[nn.Module], mode: Any, half: torch.dtype | None = None) -> None:
    """Put tensors without data, on the host, in place of those of modules; one that is shared stays shared.

    `half`: dtype of their weights, if FSDP gathers them in another than that of the model.
    """
    made: dict[int, Any] = {}

    def bare(tensor: Tensor) -> Any:
        if id(tensor) not in made:
            parameter = isinstance(tensor, nn.Parameter)
            fake = without_data(tensor, mode, half if parameter else None)
            made[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if parameter else fake
        return made[id(tensor)]

    for module in modules:
        for part in module.modules():
            for held in (vars(part), part._parameters, part._buffers):
                for name, each in held.items():
                    held[name] = bare(each) if isinstance(each, Tensor) else each


@contextmanager
def reads_noted(note: Callable[[Tensor], None]) -> Iterator[None]:
    """While the body runs, values that a step reads are assumed, as where it is not compiled, and `note` is told of each."""
    with host_reads.assumed_reads():
        names = (*host_reads.READS, *host_reads.WITH_VALUES)
        disable: Any = torch.compiler.disable
        outside = {name: disable(getattr(Tensor, name)) for name in names}
        with replaced(host_reads, read=note), replaced(Tensor, **outside):
            yield


def fused_attention_of(target: Target, lower: torch.dtype | None) -> AbstractContextManager[None]:
    """While the body runs, `F.scaled_dot_product_attention` is the fused operator that CUDA chooses.

    The conditions are those of a step that is not compiled (`pipeline.as_on_cuda.fused_operators`).

    Args:
        target: the GPU.
        lower: the dtype of autocast, if the step runs in it.
    """
    aten, plain = torch.ops.aten, F.scaled_dot_product_attention
    has_flash = target.capability >= FLASH_FROM

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if lower is not None and query.dtype != torch.float64:
            query, key, value = query.to(lower), key.to(lower), value.to(lower)
        if query.dim() != 4 or query.dtype == torch.float64:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        fits = query.shape[-1] <= MAX_HEAD_WIDTH and value.shape[-1] == query.shape[-1]
        if has_flash and query.dtype in HALF and fits and attn_mask is None:
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        if key.shape[1] != query.shape[1]:
            each = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                nothing = torch.zeros_like(attn_mask, dtype=query.dtype)
                attn_mask = nothing.masked_fill(attn_mask.logical_not(), float("-inf"))
            attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], key.shape[2])
        trains = torch.is_grad_enabled() and query.requires_grad
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, trains, dropout_p, is_causal, scale=scale
        )[0]

    return replaced(F, scaled_dot_product_attention=attention)
