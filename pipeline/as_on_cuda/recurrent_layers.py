"""Recurrent layers that run as cuDNN's on the meta device: one operator forward, one backward.

Without this, PyTorch's LSTM, GRU and RNN run as single cells on the meta device, which no GPU does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from pipeline.as_on_cuda.mixed_precision import lowered
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import meta_operators
from pipeline.as_on_cuda.torch_names import RECURRENT_FUNCTIONS


class CudnnRnn(torch.autograd.Function):
    """Shapes of cuDNN's recurrent layers: x (B, T, I) and first states -> output (B, T, H·directions), last states."""

    @staticmethod
    def forward(
        ctx: Any, trained: bool, sizes: tuple[int, ...], states: int, x: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """One operator over the whole sequence; `tensors` are the first states, then the weights."""
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.states = sizes, states
        weights, first = list(tensors[states:]), list(tensors[:states])
        output, last, ctx.reserve = _operators().rnn(x, weights, first, int(trained), *sizes)
        ctx.save_for_backward(x, output, *tensors)
        return (output, *last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """One operator."""
        x, _, *tensors = ctx.saved_tensors
        states, weights = tensors[: ctx.states], tensors[ctx.states :]
        of_output = [gradient for gradient in gradients if gradient is not None]
        of_x, *of_tensors = _operators().rnn_backward(of_output, x, weights, states, *ctx.sizes)
        return (None, None, None, of_x, *of_tensors[len(weights) :], *of_tensors[: len(weights)])


class CudnnLstm(CudnnRnn):
    """Stand-in for an LSTM; capture finds its CUDA name by the class name (`pipeline.as_on_cuda.emulation`)."""


class CudnnGru(CudnnRnn):
    """Stand-in for a GRU."""


class CudnnTanh(CudnnRnn):
    """Stand-in for `nn.RNN`, with either activation."""


LAYERS: dict[str, tuple[type[CudnnRnn], int]] = {
    "lstm": (CudnnLstm, 4),
    "gru": (CudnnGru, 3),
    "rnn_tanh": (CudnnTanh, 1),
    "rnn_relu": (CudnnTanh, 1),
}
"""PyTorch's functions of recurrent layers -> stand-in and number of gates."""


def cudnn_layers() -> AbstractContextManager[None]:
    """While the body runs, recurrent layers on the meta device are cuDNN's; packed sequences still run as cells."""
    stand_ins: dict[str, Any] = {
        name: partial(_layer, getattr(RECURRENT_FUNCTIONS, name), kind, gates)
        for name, (kind, gates) in LAYERS.items()
    }
    return replaced(RECURRENT_FUNCTIONS, **stand_ins)


def _layer(
    plain: Callable[..., Any], kind: type[CudnnRnn], gates: int, x: Tensor, *rest: Any
) -> Any:
    """Output and last states of a recurrent layer."""
    if x.device.type != "meta" or not isinstance(
        rest[1], list
    ):  # for a packed sequence, the lengths come first
        return plain(x, *rest)
    first, weights, _, layers, _, _, bidirectional, batch_first = rest
    states = [first] if isinstance(first, Tensor) else list(first)
    sizes = gates, weights[0].shape[0] // gates, layers, 2 if bidirectional else 1, int(batch_first)
    tensors = lowered([x, *states, *weights])
    trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return kind.apply(trained, sizes, len(states), *tensors)  # type: ignore[no-untyped-call]


@cache
def _operators() -> Any:
    inputs = "Tensor x, Tensor[] weights, Tensor[] states"
    sizes = "int gates, int hidden, int layers, int directions, int first"

    def forward(
        x: Tensor,
        weights: Any,
        states: list[Tensor],
        trained: int,
        g: int,
        h: int,
        n: int,
        directions: int,
        f: int,
    ) -> Any:
        output = x.new_empty(*x.shape[:-1], states[0].shape[-1] * directions)
        # the reserve space: the gates of each layer, its cells, and its output, which the gradient of the layer needs
        reserve = x.new_empty(*x.shape[:-1], trained * n * directions * h * (g + 2))
        return output, [t.new_empty(t.shape) for t in states], reserve

    def backward(
        gradients: Any, x: Tensor, weights: list[Tensor], states: list[Tensor], *sizes: int
    ) -> list[Tensor]:
        return [t.new_empty(t.shape) for t in (x, *weights, *states)]

    return meta_operators(
        "steptime_rnn",
        {
            f"rnn({inputs}, int trained, {sizes}) -> (Tensor, Tensor[], Tensor)": forward,
            f"rnn_backward(Tensor[] gradients, {inputs}, {sizes}) -> Tensor[]": backward,
        },
    )
