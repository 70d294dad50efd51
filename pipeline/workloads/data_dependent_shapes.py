"""Shapes of selections by a mask (`x[mask]`, `torch.nonzero`, `torch.where(mask)`) on the meta device.

The number of selected elements depends on the data, which the meta device does not have. The user gives the share of
selected elements (`model.picked`). Without it, PyTorch raises its usual error.
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
"""Shares that are currently set; the last one is used."""


@contextmanager
def assuming_true_share(share: object) -> Iterator[None]:
    """While the body runs, assume that this share of the elements of every mask is true.

    None: selections by masks raise an error on the meta device.

    Raises:
        ConfigError: the share is not above 0 and at most 1.
    """
    if share is None:
        yield
        return
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise ConfigError(f"model.picked={share}: give the share of mask elements that are true, above 0 and at most 1")
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
    """`masked_select` as on CUDA: both tensors are broadcast, then the mask is used as an index (IndexKernel.cpp)."""

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
    """The shape function of `nonzero`, registered for the meta device at the first use."""
    from torch.fx.experimental import _config

    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def nonzero(x: Tensor) -> Tensor:
        if not _SHARE and not getattr(_config, "meta_nonzero_assume_all_nonzero", False):
            raise NotImplementedError("torch.nonzero: the number of elements that it finds depends on data")
        count = math.ceil(x.numel() * (_SHARE[-1] if _SHARE else 1.0))
        return torch.empty_strided((count, x.dim()), (1, max(count, 1)), dtype=torch.long, device=x.device)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that PyTorch's own function, which only raises, is replaced
        try:
            library.impl("nonzero", nonzero, "Meta", allow_override=True)
        except TypeError:  # this PyTorch version has no `allow_override` and always overrides
            library.impl("nonzero", nonzero, "Meta")
    return library
