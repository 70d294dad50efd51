"""Exchanges of looked-up rows between ranks, with those of their gradients, as TorchRec does them (`distributed/comm_ops.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.as_on_cuda.shape_operators import is_empty
from pipeline.workloads.feature_operators import feature_operators, split


class Exchange:
    """One exchange of sums of rows between ranks, and of their gradients.

    Args:
        sent: elements for each rank.
        received: elements from each rank.
        batch: samples of a rank, whose columns of all ranks are joined; 0: elements stay in the order of ranks.
    """

    def __init__(self, sent: Sequence[int], received: Sequence[int], batch: int = 0) -> None:
        self.sent, self.received, self.batch = list(sent), list(received), batch
        self.work: Any = None
        self.gradient: Tensor | None = None


class Send(torch.autograd.Function):
    """Starts to exchange sums; its backward pass waits for their gradients."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, exchange: Exchange) -> Tensor:
        """Start the exchange."""
        ctx.exchange, ctx.shape = exchange, sums.shape
        received = sums.new_empty(sum(exchange.received))
        exchange.work = dist.all_to_all_single(
            received, sums.reshape(-1), exchange.received, exchange.sent, async_op=True
        )
        return received

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        """Wait for the gradients of the sums."""
        exchange = ctx.exchange
        exchange.work.wait()
        return exchange.gradient.view(ctx.shape).div_(len(exchange.sent)), None


class Receive(torch.autograd.Function):
    """Waits for sums, and joins them; its backward pass starts to exchange their gradients."""

    @staticmethod
    def forward(ctx: Any, received: Tensor, exchange: Exchange) -> Tensor:
        """Join the sums, shape (samples, columns of all ranks); without a batch, all elements in a line."""
        exchange.work.wait()
        ctx.exchange = exchange
        if not exchange.batch:
            return received.view_as(received)
        parts = split(received, exchange.received)
        return torch.cat([part.view(exchange.batch, -1) for part in parts], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Start to exchange the gradients."""
        exchange, (gradient,) = ctx.exchange, gradients
        sent = gradient
        if exchange.batch:
            columns = [size // exchange.batch for size in exchange.received]
            sent = torch.cat([part.reshape(-1) for part in split(gradient, columns, 1)])
        exchange.gradient = gradient.new_empty(sum(exchange.sent))
        exchange.work = dist.all_to_all_single(
            exchange.gradient, sent, exchange.sent, exchange.received, async_op=True
        )
        return sent, None


class Permute(torch.autograd.Function):
    """Columns in another order (FBGEMM's `permute_pooled_embs`)."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor, columns: Sequence[int]) -> Tensor:
        """The sums with their columns in the order that is asked for."""
        ctx.columns = columns
        return (
            sums[:, list(columns)]
            if not is_empty(sums)
            else feature_operators().permute_pooled_embs(sums)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients in the order before."""
        (gradient,) = gradients
        if is_empty(gradient):
            return feature_operators().permute_pooled_embs(gradient), None
        back = torch.empty_like(gradient)
        back[:, list(ctx.columns)] = gradient
        return back, None


class SumParts(torch.autograd.Function):
    """Adds up what each rank's rows give for a sample, for this rank's samples; backward, every rank gets all gradients."""

    @staticmethod
    def forward(ctx: Any, sums: Tensor) -> Tensor:
        """The sums of this rank's samples."""
        ctx.ranks = dist.get_world_size()
        own = sums.new_empty(sums.shape[0] // ctx.ranks, sums.shape[1])
        dist.reduce_scatter_tensor(own, sums, async_op=True).wait()
        return own

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """The gradients of all ranks' samples."""
        (gradient,) = gradients
        whole = gradient.new_empty(gradient.shape[0] * ctx.ranks, gradient.shape[1])
        dist.all_gather_into_tensor(whole, gradient.contiguous(), async_op=True).wait()
        return whole.div_(ctx.ranks)
