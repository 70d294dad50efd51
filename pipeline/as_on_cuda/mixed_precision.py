"""Mixed precision: PyTorch's autocast on real devices, and on the meta device the rules of CUDA's.

PyTorch's autocast does not support meta tensors. A function mode that casts the arguments of the listed functions has
the same effect. The lists are from ATen/autocast_mode.h. `tests/workloads/test_autocast.py` compares them with the
installed PyTorch.

A step's own `GradScaler` stays enabled too. It multiplies the loss, divides every gradient and searches for infinities
(one more pass over all gradients). Before the optimizer may step, the host reads whether there were infinities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.overrides import TorchFunctionMode

from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.one_gpu import stands_for_gpu
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.torch_names import (
    FUNCTIONS_OF_AUTOCAST,
    IS_ANY_AUTOCAST_ENABLED,
    NATIVE,
    SCALER_STEP,
    has_kernel,
    tree_leaves,
)
from pipeline.errors import InputError, warn

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

LOWER_NAMES = """
matmul __matmul__ mm mv bmm addmm addmv addr baddbmm addbmm einsum chain_matmul linalg_multi_dot linalg_vecdot linear
conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d prelu scaled_dot_product_attention
lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell lstm gru
"""
"""Functions that run in the lower precision."""

UPPER_NAMES = """
softmax log_softmax layer_norm native_layer_norm group_norm rms_norm cross_entropy cross_entropy_loss nll_loss nll_loss2d
nll_loss_nd mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss multi_margin_loss multilabel_margin_loss
margin_ranking_loss triplet_margin_loss hinge_embedding_loss cosine_embedding_loss poisson_nll_loss kl_div
binary_cross_entropy_with_logits softplus cosine_similarity cdist pdist dist renorm logsumexp
norm linalg_norm linalg_vector_norm linalg_matrix_norm frobenius_norm nuclear_norm
sum prod cumsum cumprod pow __pow__ __rpow__ __rdiv__ reciprocal rsqrt exp expm1 log log1p log2 log10
acos asin cosh sinh tan erfinv
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d _upsample_bilinear2d_aa
_upsample_bicubic2d_aa
"""
"""Functions that run in fp32."""

WIDEST_NAMES = (
    "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add tensordot vdot"
)
"""Functions that run in the widest dtype of their arguments."""


def _functions(names: str) -> set[Any]:
    """All Python functions and methods of PyTorch with these names."""
    owners: tuple[Any, ...] = (torch, Tensor, F, *FUNCTIONS_OF_AUTOCAST)
    return {
        getattr(owner, name) for name in names.split() for owner in owners if hasattr(owner, name)
    }


LOWER = _functions(LOWER_NAMES)
UPPER = _functions(UPPER_NAMES)
if not has_kernel("aten::rms_norm", "AutocastCUDA"):  # in older versions
    UPPER -= _functions("rms_norm")
WIDEST = _functions(WIDEST_NAMES)


class MetaAutocast(TorchFunctionMode):
    """Casts arguments as CUDA's autocast does; casts of parameters are cached until the context ends.

    If contexts are nested, the innermost one is used. A context without a dtype casts nothing.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.cache: dict[int, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Cast, then call."""
        kwargs = kwargs or {}
        lower = self.dtype if self is _ACTIVE[-1] else None
        target = None if lower is None else _target(func, lower, (args, kwargs))
        if target is None:
            return func(*args, **kwargs)
        return func(
            *self._cast(args, target),
            **{key: self._cast(value, target) for key, value in kwargs.items()},
        )

    def cast(self, tensor: Tensor) -> Tensor:
        """One tensor in the lower precision."""
        lowered_tensor: Tensor = tensor if self.dtype is None else self._cast(tensor, self.dtype)
        return lowered_tensor

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


def _target(func: Any, lower: torch.dtype, arguments: Any) -> torch.dtype | None:
    """The dtype to which autocast casts the arguments of a function; None if it does not cast them."""
    if func in LOWER:
        return lower
    if func in UPPER:
        return torch.float32
    if func not in WIDEST:
        return None
    floating = [
        t.dtype for t in tree_leaves(arguments) if isinstance(t, Tensor) and t.is_floating_point()
    ]
    return max(floating, key=lambda dtype: dtype.itemsize, default=None)


_ACTIVE: list[MetaAutocast] = []
"""Contexts that are currently open; the innermost is the last."""


def lowered(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cast the inputs of a stand-in that runs in the lower precision, if a `MetaAutocast` is open."""
    return [_ACTIVE[-1].cast(tensor) for tensor in tensors] if _ACTIVE else list(tensors)


def raised(function: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Cast the inputs of the stand-in for `function` to fp32, if autocast does so for `function`."""
    on = bool(_ACTIVE) and _ACTIVE[-1].dtype is not None and function in UPPER
    halves = (torch.float16, torch.bfloat16)
    return [tensor.float() if on and tensor.dtype in halves else tensor for tensor in tensors]


@contextmanager
def _on_meta(dtype: torch.dtype | None) -> Iterator[None]:
    """Emulate autocast on the meta device while the body runs.

    A function mode intercepts a Python function as a whole and is off inside it. The products in
    `F.multi_head_attention_forward` and the calls of `F.interpolate` would therefore not be cast. These functions are
    told that no mode is on, so that they run their bodies and the mode sees each call.
    """
    mode = MetaAutocast(dtype)
    _ACTIVE.append(mode)
    questions: Any = {
        f"has_torch_function{kind}": lambda *_: False for kind in ("", "_unary", "_variadic")
    }
    try:
        with mode, replaced(F, **questions):
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
    """While the body runs, a step's own `torch.autocast("cuda")` acts on the meta device and is reported as enabled.

    PyTorch has no autocast for the meta device, and disables CUDA's autocast on machines without a GPU. Recomputation
    (`torch.utils.checkpoint`) checks whether autocast is enabled, and enters it again. A context may also be created
    once, before the step that enters it.
    """
    available, enabled, dtype_of = (
        torch.amp.is_autocast_available,
        torch.is_autocast_enabled,
        torch.get_autocast_dtype,
    )

    def is_available(device: str) -> bool:
        return stands_for_gpu(device) or available(device)

    def is_enabled(device: str = "cuda") -> bool:
        return _lower() is not None if stands_for_gpu(device) else enabled(device)

    def get_dtype(device: str) -> torch.dtype:
        return _lower() or dtype_of("cuda") if stands_for_gpu(device) else dtype_of(device)

    kind: Any = torch.amp.autocast_mode.autocast
    with (
        replaced(kind, **_methods_of_autocast(kind)),
        replaced(torch.amp, is_autocast_available=is_available),
        replaced(torch, is_autocast_enabled=is_enabled, get_autocast_dtype=get_dtype),
        replaced(NATIVE, **{IS_ANY_AUTOCAST_ENABLED: lambda: _lower() is not None}),
    ):
        yield


def _methods_of_autocast(kind: Any) -> dict[str, Any]:
    """The methods of `torch.autocast` that open the emulated context instead where it is for a GPU."""
    init, enter, leave = kind.__init__, kind.__enter__, kind.__exit__

    def begin(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: Any = None,
    ) -> None:
        if not stands_for_gpu(device_type):
            init(self, device_type, dtype, enabled, cache_enabled)
            return
        init(self, "cuda", dtype, False, cache_enabled)
        self._enabled = enabled and torch.cuda.is_available()  # for a later use outside a capture
        wanted = torch.get_autocast_dtype("cuda") if dtype is None else dtype
        self.lower = wanted if enabled and wanted in DTYPES.values() else None
        self.entered = []

    def on_enter(self: Any) -> Any:
        if not (hasattr(self, "entered") or stands_for_gpu(self.device)):
            return enter(self)
        lower = self.lower if hasattr(self, "lower") else _lower_of_earlier(self)
        vars(self).setdefault("entered", []).append(_on_meta(lower))
        self.entered[-1].__enter__()
        return self

    def on_exit(self: Any, *error: Any) -> Any:
        emulated = hasattr(self, "entered")
        return self.entered.pop().__exit__(*error) if emulated else leave(self, *error)

    return {"__init__": begin, "__enter__": on_enter, "__exit__": on_exit}


def own_scaler() -> AbstractContextManager[None]:
    """While the body runs, a scaler of a step acts on the meta device as on CUDA; no value overflows."""
    init, scale, availability = GradScaler.__init__, GradScaler.scale, torch.cuda.amp.common

    def begin(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        with replaced(availability, amp_definitely_not_available=lambda: False):
            init(self, "cuda" if stands_for_gpu(device) else device, *args, **kwargs)
        self.made_in_capture = True

    def multiply(self: Any, outputs: Any) -> Any:
        if not (self.is_enabled() or hasattr(self, "made_in_capture") or torch.cuda.is_available()):
            warn(
                "GradScaler: it was made before the step, where PyTorch disables it without a GPU,"
                " and is left out; make it in the step's function"
            )
        return scale(self, outputs)

    def step(self: Any, optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        for found_inf in state["found_inf_per_device"].values():
            read(found_inf)
        return optimizer.step(*args, **kwargs)

    return replaced(GradScaler, __init__=begin, scale=multiply, **{SCALER_STEP: step})


def _lower_of_earlier(context: Any) -> torch.dtype | None:
    """The lower precision of a `torch.autocast("cuda")` that was created before the capture, by PyTorch's own code."""
    lower: torch.dtype = context.fast_dtype
    if not context._enabled and context.device == "cuda" and not torch.cuda.is_available():
        before = "torch.autocast('cuda') was created before the step, where PyTorch disables it"
        if lower is not torch.bfloat16:
            raise InputError(
                f"{before} without a GPU; create it where it is entered, or in the function of"
                " model.target"
            )
        warn(f"{before}; it is taken as enabled")
        return lower
    return lower if context._enabled and lower in DTYPES.values() else None


def _lower() -> torch.dtype | None:
    """The lower precision of the innermost context; None if no context casts."""
    return _ACTIVE[-1].dtype if _ACTIVE else None
