"""What a step picks by truth values (`x[mask]`, `torch.nonzero`, `torch.where(mask)`), without knowing them.

How many elements come out is data, which the meta device does not have: the user says what share of them (`model.picked`),
and PyTorch's refusal stands where that is not said.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from pipeline.errors import ConfigError
from pipeline.workloads.loss_item import is_empty

_SHARE: list[float] = []
"""The share that holds now, if any."""


@contextmanager
def picking(share: object) -> Iterator[None]:
    """While the body runs, `share` of the elements of every mask is taken as true; None: masks of the meta device are refused.

    Raises:
        ConfigError: no share above 0 and up to 1.
    """
    if share is None:
        yield
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigError(f"model.picked={share}: give the share of truth values that is true, above 0 and up to 1")
    _shapes()
    with ExitStack() as stack:
        for place in (torch, Tensor):
            select = getattr(place, "masked_select")  # noqa: B009
            stack.enter_context(mock.patch.object(place, "masked_select", _by_index(select)))
        _SHARE.append(float(share))
        try:
            yield
        finally:
            _SHARE.pop()


def _by_index(usual: Any) -> Any:
    """`masked_select` as what it is on CUDA: an index, by the mask, of what is spread to its shape (IndexKernel.cpp)."""

    def select(x: Tensor, mask: Tensor, **named: Any) -> Tensor:
        if not is_empty(x):
            whole: Tensor = usual(x, mask, **named)
            return whole
        spread, where = torch.broadcast_tensors(x, mask)  # type: ignore[no-untyped-call]
        picked: Tensor = spread[where]
        return picked

    return select


@cache
def _shapes() -> Any:
    """Shapes of what is picked, registered for the meta device when first needed."""
    from torch.fx.experimental import _config

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def nonzero(x: Tensor) -> Tensor:
        if not _SHARE and not getattr(_config, "meta_nonzero_assume_all_nonzero", False):
            raise NotImplementedError("torch.nonzero: how many elements it finds is data")
        count = math.ceil(x.numel() * (_SHARE[-1] if _SHARE else 1.0))
        return torch.empty_strided((count, x.dim()), (1, max(count, 1)), dtype=torch.long, device=x.device)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that PyTorch's own shapes, a refusal, are replaced
        try:
            library.impl("nonzero", nonzero, "Meta", allow_override=True)
        except TypeError:  # a PyTorch that overrides without being asked
            library.impl("nonzero", nonzero, "Meta")
    return library
