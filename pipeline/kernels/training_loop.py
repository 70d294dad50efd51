"""The training loop of all torch models: AdamW, and Muon for some matrices, with a one-cycle schedule; a batch per step.

On one machine, the same seed gives the same weights. The caller seeds the generators of weights and batches, and the
loop draws no random numbers. It runs on one thread by default, so that the number of cores does not change the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.errors import SteptimeError

if TYPE_CHECKING:
    import torch


def minimise(
    loss: Callable[[], torch.Tensor], parameters: Sequence[torch.Tensor], steps: int, learning_rate: float, *,
    undecayed: Sequence[torch.Tensor] = (), max_gradient_norm: float | None = None, **options: Any,
) -> None:  # fmt: skip
    """Minimise a loss, of which torch derives the gradient, by changing parameters in place.

    Args:
        loss: draws a batch and returns its loss.
        parameters: the parameters to train.
        steps: optimizer steps.
        learning_rate: peak of the one-cycle schedule.
        undecayed: further parameters, trained without weight decay.
        max_gradient_norm: norm to which larger gradients are clipped; None for no clipping.
        options: of `descend`.

    Raises:
        SteptimeError: the loss or a parameter became NaN or infinite.
    """
    import torch

    trained = [*parameters, *undecayed]

    def gradient() -> float:
        for parameter in trained:
            parameter.grad = None
        value = loss()
        value.backward()  # type: ignore[no-untyped-call]
        if max_gradient_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, max_gradient_norm)
        return value.item()

    descend(gradient, parameters, steps, learning_rate, undecayed=undecayed, **options)


def descend(
    gradient: Callable[[], float], parameters: Sequence[torch.Tensor], steps: int, learning_rate: float, *,
    weight_decay: float = 0.0, undecayed: Sequence[torch.Tensor] = (), matrices: Sequence[torch.Tensor] = (),
    matrix_rate: float = 0.0, warm_up: float | None = 0.3, final_divisor: float = 1e4, fused: bool = False,
    threads: int | None = 1,
) -> None:  # fmt: skip
    """Minimise a loss, of which the caller computes the gradient, by changing parameters in place.

    Args:
        gradient: draws a batch, sets `grad` of all parameters, and returns the loss.
        parameters: the parameters to train.
        steps: optimizer steps.
        learning_rate: peak of the one-cycle schedule.
        weight_decay: weight decay of `parameters` and `matrices`.
        undecayed: further parameters, trained without weight decay.
        matrices: further parameters of two dimensions, trained with Muon (`muon`) instead of AdamW.
        matrix_rate: peak of their rate.
        warm_up: share of the steps in which the rate rises; None for a constant rate.
        final_divisor: ratio of the first learning rate to the last one.
        fused: whether to use torch's fused AdamW, which is faster and changes the last bits of the weights.
        threads: number of torch's threads; None keeps torch's current number.

    Raises:
        SteptimeError: the loss or a parameter became NaN or infinite.
    """
    import torch

    from pipeline.kernels.muon import Muon

    if threads is not None:
        torch.set_num_threads(threads)
    trained = [parameter.requires_grad_(True) for parameter in (*parameters, *undecayed, *matrices)]
    decays = ((parameters, weight_decay), (undecayed, 0.0))
    groups = [{"params": list(part), "weight_decay": decay} for part, decay in decays if part]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, lr=learning_rate, fused=fused)]
    optimizers += [Muon(matrices, matrix_rate, weight_decay)] if matrices else []
    schedules = [] if warm_up is None else [
        torch.optim.lr_scheduler.OneCycleLR(
            optimizer, peak, total_steps=steps, pct_start=warm_up, final_div_factor=final_divisor,
            cycle_momentum=not isinstance(optimizer, Muon),
        )
        for optimizer, peak in zip(optimizers, (learning_rate, matrix_rate), strict=False)
    ]  # fmt: skip
    with _tiny_numbers_as_zero():
        for step in range(steps):
            loss = gradient()
            if not math.isfinite(loss):
                raise _diverged(f"the loss is {loss} at step {step + 1} of {steps}")
            for optimizer in optimizers:
                optimizer.step()
            for schedule in schedules:
                schedule.step()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in trained):
        raise _diverged(f"parameters are NaN or infinite after step {steps}")


@contextmanager
def _tiny_numbers_as_zero() -> Iterator[None]:
    """Let this thread round numbers below 1e-38 to zero.

    The means of an optimizer decay towards such numbers where a ReLU unit has no gradient any more. Processors compute with
    them many times more slowly.
    """
    import torch

    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _diverged(how: str) -> SteptimeError:
    return SteptimeError(f"training diverged: {how}; look for zero, missing or huge values among the samples")


def shuffled_batches(rows: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the row numbers of batches, endlessly.

    Each pass has all rows in a new order, without the last incomplete batch.
    """
    import torch

    batch = min(batch, rows)
    while True:
        order = torch.randperm(rows, generator=generator)
        for start in range(0, rows - batch + 1, batch):
            yield order[start : start + batch]


def uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> torch.Tensor:
    """Initial weights: uniform between -`bound` and `bound`."""
    import torch

    return (torch.rand(*shape, generator=generator) * 2 - 1) * bound
