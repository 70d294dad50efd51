"""LSTM layers whose shape-only form is cuDNN's: one operator forward, one backward.

PyTorch's LSTM falls apart into cells on the meta device, which no GPU runs. `Lstm` is `nn.LSTM` everywhere else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.workloads.autocast import lowered
from pipeline.workloads.standin import apply, meta_operators


class CudnnLstm(torch.autograd.Function):
    """Shapes of cuDNN's LSTM: x (B, T, I) -> (B, T, H·directions), and gradients of x and of every weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, hidden: int, layers: int, directions: int, *weights: Tensor) -> Tensor:
        """One operator over the whole sequence."""
        ctx.sizes = (hidden, layers, directions)
        output: Tensor = _operators().rnn(x, list(weights), hidden, layers, directions)
        ctx.save_for_backward(x, output, *weights)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """One operator; its reserve space is not modelled."""
        x, _, *weights = ctx.saved_tensors
        found = _operators().rnn_backward(gradients[0], x, weights, *ctx.sizes)
        return (found[0], None, None, None, *found[1:])


class Lstm(nn.LSTM):
    """A batch-first LSTM that returns its output sequence alone."""

    def __init__(self, inputs: int, hidden: int, layers: int = 1, bidirectional: bool = False) -> None:
        super().__init__(inputs, hidden, layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """(B, T, I) -> (B, T, H·directions)."""
        if x.device.type != "meta":
            found: Tensor = super().forward(x)[0]
            return found
        directions = 2 if self.bidirectional else 1
        x, *weights = lowered([x, *(w for w in self._flat_weights if w is not None)])
        return apply(CudnnLstm, x, self.hidden_size, self.num_layers, directions, *weights)


@cache
def _operators() -> Any:
    """The two operators of the meta device, registered when first needed."""
    common = "Tensor x, Tensor[] weights, int hidden, int layers, int directions"
    return meta_operators(
        "steptime_rnn",
        {
            f"rnn({common}) -> Tensor": lambda x, w, h, n, d: x.new_empty(*x.shape[:-1], h * d),
            f"rnn_backward(Tensor g, {common}) -> Tensor[]": lambda g, x, w, h, n, d: [
                x.new_empty(x.shape),
                *(t.new_empty(t.shape) for t in w),
            ],
        },
    )
