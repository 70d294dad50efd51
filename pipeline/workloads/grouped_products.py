"""Grouped products (`F.grouped_mm`) on the meta device in every dtype that CUDA accepts.

Mixture-of-experts layers use these products. PyTorch's own shape function for the meta device accepts only bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch._meta_registrations
from torch import Tensor

META_MODULE, META_FUNCTION = torch._meta_registrations, "_meta_grouped_mm_common"
"""Module and name of PyTorch's shape function for grouped products."""


@contextmanager
def grouped_products() -> Iterator[None]:
    """While the body runs, grouped products on the meta device accept the same inputs as on CUDA."""
    usual: Any = getattr(META_MODULE, META_FUNCTION, None)
    if usual is None:  # this PyTorch version has no grouped products
        yield
        return

    def product(mat_a: Tensor, mat_b: Tensor, scale_a: Tensor | None, *given: Any, **named: Any) -> Tensor:
        offsets, dtype = named.get("offs"), named.get("out_dtype") or mat_a.dtype
        if scale_a is not None or mat_a.dtype == torch.bfloat16 or mat_a.dtype != mat_b.dtype:
            found: Tensor = usual(mat_a, mat_b, scale_a, *given, **named)
            return found
        groups = [] if offsets is None or mat_a.dim() != mat_b.dim() else [offsets.shape[0]]
        groups = [mat_a.shape[0]] if mat_a.dim() == mat_b.dim() == 3 else groups
        return mat_a.new_empty(*groups, mat_a.shape[-2], mat_b.shape[-1], dtype=dtype)

    with mock.patch.object(META_MODULE, META_FUNCTION, product):
        yield
