"""`nn.SyncBatchNorm` of several ranks on the meta device: its kernels, and its exchange of sums between ranks.

Source of the operators and their order: torch/nn/modules/_functions.py and ATen/native/cuda/Normalization.cu.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeline.as_on_cuda.host_reads import read
from pipeline.as_on_cuda.patches import replaced
from pipeline.as_on_cuda.shape_operators import apply, is_empty, meta_operators

_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # the first from PyTorch 2.13 on


class SteptimeSyncNorm(torch.autograd.Function):
    """Normalises by the mean and variance over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """x (N, C, ...) -> the same shape."""
        operators = _operators()
        mean, deviation = operators.stats(x)
        count = mean.new_full((1,), 1.0)
        sent = torch.cat([mean, deviation, count])
        received = sent.new_empty(dist.get_world_size() * sent.numel())
        _gather(received, sent)
        for _ in range(
            3
        ):  # ranks without samples are left out of counts, means and deviations: the host waits for a mask
            read(received[:1])
        mean, deviation = operators.gather(x, received)
        ctx.save_for_backward(x, mean, deviation, *(() if weight is None else (weight,)))
        result: Tensor = operators.normalise(x, weight, bias, mean, deviation)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradients of x, of the weight and of the bias."""
        x, mean, deviation, *weights = ctx.saved_tensors
        operators = _operators()
        sums, products, of_weight, of_bias = operators.reduce(gradients[0], x, mean, deviation)
        both = torch.cat([sums, products])
        dist.all_reduce(both)
        of_x = operators.spread(gradients[0], x, mean, deviation, both)
        return of_x, of_weight if weights else None, of_bias if weights else None


@contextmanager
def norms_of_all_ranks() -> Iterator[None]:
    """While the body runs, `SyncBatchNorm` of a module without data that trains sums over all ranks."""
    sync: Any = nn.SyncBatchNorm
    usual = sync.forward

    def normalise(self: Any, x: Tensor) -> Tensor:
        if not is_empty(x):
            result: Tensor = usual(self, x)
            return result
        if not self.training:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return apply(SteptimeSyncNorm, x, self.weight, self.bias)

    with replaced(sync, forward=normalise, _check_input_dim=lambda self, x: None):
        yield


@cache
def _operators() -> Any:
    def channels(x: Tensor) -> Tensor:
        return x.new_empty(x.shape[1], dtype=torch.float32)

    return meta_operators(
        "steptime_sync",
        {
            "stats(Tensor x) -> (Tensor, Tensor)": lambda x: (channels(x), channels(x)),
            "gather(Tensor x, Tensor received) -> (Tensor, Tensor)": lambda x, received: (channels(x), channels(x)),
            "normalise(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor deviation) -> Tensor":
                lambda x, *_: torch.empty_like(x),
            "reduce(Tensor g, Tensor x, Tensor mean, Tensor deviation) -> (Tensor, Tensor, Tensor, Tensor)":
                lambda g, x, *_: tuple(channels(x) for _ in range(4)),
            "spread(Tensor g, Tensor x, Tensor mean, Tensor deviation, Tensor sums) -> Tensor":
                lambda g, x, *_: torch.empty_like(x),
        },
    )  # fmt: skip
