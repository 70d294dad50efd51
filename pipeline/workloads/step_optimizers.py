"""The optimizers of a training step, made by the names of the option `model.optimizer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError

OPTIMIZER_STATES = {"none": 0, "sgd": 0, "sgd_momentum": 1, "adagrad": 1, "adam": 2, "adamw": 2}
"""Optimizers -> number of tensors of a parameter's size that each keeps."""


HALF_EPSILON = 1e-4
"""Epsilon that optimizers add to a square root in fp16, without unit.

The smallest positive number in fp16 is 6e-8. The usual epsilon would become zero, and 0 / 0 would follow.
"""


def epsilon(weight: Tensor, usual: float) -> float:
    """The epsilon that an optimizer adds to the square root of a weight's squared gradients."""
    return HALF_EPSILON if weight.dtype == torch.float16 else usual


def make_optimizer(
    name: str, parameters: Sequence[Tensor], foreach: bool | str = True
) -> torch.optim.Optimizer | None:
    """Make an optimizer by its name; None for "none".

    It updates all parameters at once (`foreach`, CUDA's default), one at a time, or all in one kernel ("fused").

    Raises:
        ConfigError: PyTorch has no fused kernel of this optimizer for CUDA.
    """
    if foreach == "fused" and name == "adagrad":
        raise ConfigError(
            "model.foreach=fused: PyTorch's fused Adagrad runs on CPUs alone; use"
            " model.foreach=true"
        )
    how: dict[str, Any] = {"fused": True} if foreach == "fused" else {"foreach": foreach}
    dense = list(parameters)
    if name == "none" or not dense:
        return None
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(dense, lr=1e-3, **how, eps=epsilon(dense[0], 1e-8))
    if name == "adagrad":
        return torch.optim.Adagrad(dense, lr=1e-3, **how, eps=epsilon(dense[0], 1e-10))
    return torch.optim.SGD(dense, lr=1e-3, momentum=0.9 if name == "sgd_momentum" else 0.0, **how)


def make_optimizers(
    name: str, module: nn.Module, dry: bool = False, foreach: bool | str = True
) -> list[torch.optim.Optimizer]:
    """Make the optimizers of a module's parameters.

    With Adagrad and Adam, parameters with sparse gradients have a separate optimizer. If nothing is computed (`dry`),
    it is SGD, which capture replaces by the real optimizer (`pipeline.graph.lookups`).

    Raises:
        ConfigError: momentum is requested for sparse gradients, whose sparse state capture cannot record, or AdamW.
    """
    sparse = [part.weight for part in sparse_lookups(module)]
    if sparse and name == "adamw":
        raise ConfigError(
            "model.optimizer=adamw: PyTorch has none for sparse gradients; use sgd, adagrad or adam"
        )
    if dry and sparse and name == "sgd_momentum":
        raise ConfigError(
            "model.optimizer=sgd_momentum: not modelled for sparse gradients; use sgd, adagrad or"
            " adam"
        )
    if sparse and name == "sgd" and foreach == "fused":
        raise ConfigError(
            "model.foreach=fused: PyTorch's fused SGD takes no sparse gradients; use"
            " model.foreach=true"
        )
    if name not in ("adagrad", "adam") or not sparse:
        made = [make_optimizer(name, list(module.parameters()), foreach=foreach)]
    else:
        own = {id(weight) for weight in sparse}
        made = [
            make_optimizer(
                name, [p for p in module.parameters() if id(p) not in own], foreach=foreach
            )
        ]
        if dry:
            made.append(make_optimizer("sgd", sparse))
        else:
            small = epsilon(sparse[0], 1e-8 if name == "adam" else 1e-10)
            kind = torch.optim.SparseAdam if name == "adam" else torch.optim.Adagrad
            made.append(kind(sparse, 1e-3, eps=small))
    return [optimizer for optimizer in made if optimizer is not None]


def sparse_lookups(module: nn.Module) -> list[Any]:
    """The lookups of a module whose gradients are sparse."""
    return [
        part
        for part in module.modules()
        if isinstance(part, nn.EmbeddingBag | nn.Embedding) and part.sparse
    ]
