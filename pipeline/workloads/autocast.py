"""Mixed precision: PyTorch's own on real devices, and its CUDA rules replayed on the meta device.

Meta tensors do not take part in autocast. A function mode that casts the arguments of the listed functions does the
same (list: PyTorch's documentation, "CUDA Ops that can autocast to float16 / to float32").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

LOWER = {
    torch.matmul, torch.mm, torch.mv, torch.bmm, torch.addmm, torch.addmv, torch.addr, torch.baddbmm, torch.addbmm,
    torch.einsum, torch.chain_matmul, torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose1d,
    torch.conv_transpose2d, torch.conv_transpose3d, torch.prelu, torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell,
    torch.rnn_relu_cell, torch.lstm, torch.gru, F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d,
    F.conv_transpose2d, F.conv_transpose3d, F.prelu, F.scaled_dot_product_attention, Tensor.matmul, Tensor.__matmul__,
    Tensor.mm, Tensor.mv, Tensor.bmm, Tensor.addmm, Tensor.addmv, Tensor.addr, Tensor.baddbmm, Tensor.addbmm,
}  # fmt: skip
"""Functions that run in the lower precision."""

UPPER = {
    F.softmax, F.log_softmax, F.layer_norm, F.group_norm, F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss,
    F.smooth_l1_loss, F.huber_loss, F.kl_div, F.softplus, F.cosine_similarity, torch.cosine_similarity, torch.logsumexp,
    torch.cumprod, torch.reciprocal, torch.log2, torch.log10, torch.log1p, torch.expm1, Tensor.logsumexp, Tensor.cumprod,
    Tensor.reciprocal, Tensor.log2, Tensor.log10, Tensor.log1p, Tensor.expm1,
    F.binary_cross_entropy_with_logits, torch.softmax, torch.log_softmax, torch.exp, torch.log,
    torch.pow, torch.sum, torch.cumsum, torch.prod, torch.norm, torch.rsqrt, Tensor.softmax, Tensor.log_softmax,
    Tensor.exp, Tensor.log, Tensor.pow, Tensor.__pow__, Tensor.sum, Tensor.cumsum, Tensor.prod, Tensor.norm,
    Tensor.rsqrt,
}  # fmt: skip
"""Functions that run in fp32."""


REPLAYED = ("cuda", "meta")
"""Devices whose autocast is replayed while a step is captured."""


class MetaAutocast(TorchFunctionMode):
    """Casts arguments as CUDA's autocast does; casts of parameters are kept until the context ends.

    Of several contexts the innermost counts; one without a dtype casts nothing.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.cache: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cast, then call."""
        kwargs = kwargs or {}
        lower = self.dtype if self is _ACTIVE[-1] else None
        target = None if lower is None else lower if func in LOWER else torch.float32 if func in UPPER else None
        if target is None:
            return func(*args, **kwargs)
        return func(*self._cast(args, target), **{key: self._cast(value, target) for key, value in kwargs.items()})

    def cast(self, tensor: Tensor) -> Tensor:
        """One tensor in the lower precision."""
        found: Tensor = tensor if self.dtype is None else self._cast(tensor, self.dtype)
        return found

    def _cast(self, value: Any, target: torch.dtype) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._cast(item, target) for item in value)
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == target:
            return value
        if value.dtype == torch.float64:
            return value
        if not (value.is_leaf and value.requires_grad and target == self.dtype):
            return value.to(target)
        if id(value) not in self.cache:
            self.cache[id(value)] = value.to(target)
        return self.cache[id(value)]


_ACTIVE: list[MetaAutocast] = []
"""Contexts that are open now, the innermost last."""


def lowered(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors as an operator of ours that runs in the lower precision gets them: cast where `MetaAutocast` is on."""
    return [_ACTIVE[-1].cast(tensor) for tensor in tensors] if _ACTIVE else list(tensors)


@contextmanager
def _on_meta(dtype: torch.dtype | None) -> Iterator[None]:
    """Casts on the meta device. A mode sees a Python function as a whole and is off inside it, so that the products
    within `F.multi_head_attention_forward` would stay as they are: it is told that no mode is on, and runs its body.
    """
    mode = MetaAutocast(dtype)
    _ACTIVE.append(mode)
    try:
        with mode, mock.patch.object(F, "has_torch_function", lambda tensors: False):
            yield
    finally:
        _ACTIVE.pop()


def autocast(device: str, dtype: str) -> AbstractContextManager[Any]:
    """The context in which a forward pass runs in `dtype` ("bf16" or "fp16")."""
    if device == "meta":
        return _on_meta(DTYPES[dtype])
    return torch.autocast(device, DTYPES[dtype])


@contextmanager
def own_autocast() -> Iterator[None]:
    """While the body runs, a step's own `torch.autocast("cuda")` acts on the meta device, and code sees what is on.

    PyTorch has no autocast for the meta device, and switches CUDA's off where there is no GPU. Recomputation
    (`torch.utils.checkpoint`) asks whether autocast is on, and enters it again.
    """
    kind: Any = torch.amp.autocast_mode.autocast
    init, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    def begin(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        if device_type not in REPLAYED:
            init(self, device_type, dtype, enabled, cache_enabled)
            return
        wanted = torch.get_autocast_dtype("cuda") if dtype is None else dtype
        self.lower = wanted if enabled and wanted in DTYPES.values() else None
        self.entered = []

    def on_enter(self: Any) -> Any:
        if not hasattr(self, "entered"):
            return enter(self)
        self.entered.append(_on_meta(self.lower))
        self.entered[-1].__enter__()
        return self

    def on_exit(self: Any, *error: Any) -> Any:
        return self.entered.pop().__exit__(*error) if hasattr(self, "entered") else leave(self, *error)

    available, enabled, dtype_of = torch.amp.is_autocast_available, torch.is_autocast_enabled, torch.get_autocast_dtype
    with (
        mock.patch.multiple(kind, __init__=begin, __enter__=on_enter, __exit__=on_exit),
        mock.patch.object(torch.amp, "is_autocast_available", lambda device: device in REPLAYED or available(device)),
        mock.patch.object(
            torch,
            "is_autocast_enabled",
            lambda device="cuda": _lower() is not None if device in REPLAYED else enabled(device),
        ),
        mock.patch.object(
            torch,
            "get_autocast_dtype",
            lambda device: _lower() or dtype_of("cuda") if device in REPLAYED else dtype_of(device),
        ),
        mock.patch.object(torch._C, "_is_any_autocast_enabled", lambda: _lower() is not None),
    ):
        yield


def _lower() -> torch.dtype | None:
    """The lower precision that is on."""
    return _ACTIVE[-1].dtype if _ACTIVE else None
