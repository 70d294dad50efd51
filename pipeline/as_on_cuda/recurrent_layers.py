"""Recurrent layers that run as cuDNN's on the meta device: one operator forward, one backward.

Without this, PyTorch's LSTM, GRU and RNN run as single cells on the meta device, which no GPU does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    def forward(ctx: Any, sizes: tuple[int, ...], states: int, x: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """One operator over the whole sequence; `tensors` are the first states, then the weights."""
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.states = sizes, states
        output, last = _operators().rnn(x, list(tensors[states:]), list(tensors[:states]), *sizes)
        ctx.save_for_backward(x, output, *tensors)
        return (output, *last)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """One operator; its reserve space is not modelled."""
        x, _, *tensors = ctx.saved_tensors
        states, weights = tensors[: ctx.states], tensors[ctx.states :]
        of_output = [gradient for gradient in gradients if gradient is not None]
        of_x, *of_tensors = _operators().rnn_backward(of_output, x, weights, states, *ctx.sizes)
        return (None, None, of_x, *of_tensors[len(weights) :], *of_tensors[: len(weights)])


class CudnnLstm(CudnnRnn):
    """Stand-in for an LSTM; capture finds its CUDA name by the class name (`pipeline.as_on_cuda.emulation`)."""


class CudnnGru(CudnnRnn):
    """Stand-in for a GRU."""


class CudnnTanh(CudnnRnn):
    """Stand-in for `nn.RNN`, with either activation."""


LAYERS: dict[str, tuple[type[CudnnRnn], int]] = {
    "lstm": (CudnnLstm, 4), "gru": (CudnnGru, 3), "rnn_tanh": (CudnnTanh, 1), "rnn_relu": (CudnnTanh, 1),
}  # fmt: skip
"""PyTorch's functions of recurrent layers -> stand-in and number of gates."""


@contextmanager
def cudnn_layers() -> Iterator[None]:
    """While the body runs, recurrent layers on the meta device are cuDNN's; packed sequences still run as cells."""
    stand_ins: dict[str, Any] = {
        name: partial(_layer, getattr(RECURRENT_FUNCTIONS, name), kind, gates) for name, (kind, gates) in LAYERS.items()
    }
    with replaced(RECURRENT_FUNCTIONS, **stand_ins):
        yield


def _layer(plain: Callable[..., Any], kind: type[CudnnRnn], gates: int, x: Tensor, *rest: Any) -> Any:
    """Output and last states of a recurrent layer."""
    if x.device.type != "meta" or not isinstance(rest[1], list):  # for a packed sequence, the lengths come first
        return plain(x, *rest)
    first, weights, _, layers, _, _, bidirectional, batch_first = rest
    states = [first] if isinstance(first, Tensor) else list(first)
    sizes = gates, weights[0].shape[0] // gates, layers, 2 if bidirectional else 1, int(batch_first)
    tensors = lowered([x, *states, *weights])
    return kind.apply(sizes, len(states), *tensors)  # type: ignore[no-untyped-call]


@cache
def _operators() -> Any:
    common = "Tensor x, Tensor[] weights, Tensor[] states, int gates, int hidden, int layers, int directions, int first"

    def forward(x: Tensor, weights: Any, states: list[Tensor], g: int, h: int, n: int, directions: int, f: int) -> Any:
        return x.new_empty(*x.shape[:-1], states[0].shape[-1] * directions), [t.new_empty(t.shape) for t in states]

    def backward(gradients: Any, x: Tensor, weights: list[Tensor], states: list[Tensor], *sizes: int) -> list[Tensor]:
        return [t.new_empty(t.shape) for t in (x, *weights, *states)]

    return meta_operators(
        "steptime_rnn",
        {
            f"rnn({common}) -> (Tensor, Tensor[])": forward,
            f"rnn_backward(Tensor[] gradients, {common}) -> Tensor[]": backward,
        },
    )
