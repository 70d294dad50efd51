"""Fits the covariance of a model's errors on an unseen GPU by maximum likelihood (needs torch).

The errors of each GPU are one sample from the covariance in `pipeline/transfer/probes.py`. Each step uses a random part of a few
hundred calls per GPU, which keeps the linear algebra small. To evaluate on a left-out GPU, the errors of every other
GPU come from a model trained without either of the two (`left_out_gpu.folds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.kernels.network_training import minimise
from pipeline.transfer.probes import EFFECTS, GROUPS, CovarianceInputs, ProbePrior

Array = npt.NDArray[np.float64]

STEPS, ROWS, RATE = 120, 200, 0.06
"""Optimizer steps, calls per GPU and step, and learning rate of Adam; chosen once, not tuned."""

LENGTH_PENALTY = 0.02
"""Weight of the squared log length scales: a few GPUs determine them poorly."""

TYPICAL_SPREAD, TYPICAL_PENALTY = 0.15, 0.01
"""Typical standard deviation of effects, levels and smooth functions (log time), and a weight in the loss.

The weight is that of the squared log ratio to the typical value. Each GPU shows only one value of an effect or level.
If four or five GPUs agree by chance, a fit without this weight would ignore probes."""


def learn_prior(errors: Mapping[str, tuple[CovarianceInputs, Array]], seed: int = 0) -> ProbePrior:
    """The covariance that makes the errors of several GPUs most likely.

    Args:
        errors: by GPU, its calls and log(measured / predicted), shape (rows,), of a model trained without this GPU.
        seed: seed for drawing calls.
    """
    import torch

    random = np.random.default_rng(seed)
    tensors = {
        gpu: replace(
            inputs,
            effects=torch.tensor(inputs.effects),
            groups=tuple(torch.tensor(group) for group in inputs.groups),
            op=torch.tensor(inputs.op),
        )
        for gpu, (inputs, _) in errors.items()
    }
    axes = [group.shape[1] for group in next(iter(tensors.values())).groups]
    starts: dict[str, Any] = {
        "effects": [-1.0] * len(EFFECTS),
        "level": -2.0,
        "op": -3.0,
        "spreads": [-1.5, -1.5, -2.0],
        "noise": -2.0,
        **dict(zip(GROUPS, ([0.0] * axes[0], [0.0] * axes[1], [1.5] * axes[2]), strict=True)),
    }
    p = {name: torch.tensor(value, dtype=torch.float64) for name, value in starts.items()}

    def loss() -> Any:
        prior = _prior({name: torch.exp(value) for name, value in p.items()})
        value = LENGTH_PENALTY * ((p["sizes"] ** 2).sum() + (p["work"] ** 2).sum())
        few = torch.cat([p[name].reshape(-1) for name in ("effects", "level", "op", "spreads")])
        value = value + TYPICAL_PENALTY * ((few - float(np.log(TYPICAL_SPREAD))) ** 2).sum()
        for gpu, (_, error) in errors.items():
            drawn = random.choice(len(error), min(ROWS, len(error)), replace=False)
            calls, one = tensors[gpu].rows(drawn), torch.eye(len(drawn))
            covariance = prior.covariance(calls, calls, xp=torch) + prior.noise**2 * one
            factor = torch.linalg.cholesky(covariance + 1e-9 * one)
            y = torch.tensor(error[drawn])[:, None]
            fit = 0.5 * (y * torch.cholesky_solve(y, factor)).sum()
            value = value + (fit + torch.log(torch.diagonal(factor)).sum()) / len(drawn)
        return value

    minimise(loss, list(p.values()), STEPS, RATE, warm_up=None)
    return _prior({name: _plain(np.exp(value.detach().numpy())) for name, value in p.items()})


def _prior(values: Mapping[str, Any]) -> ProbePrior:
    """The covariance with values by name, where the lengths stand under the names of their groups."""
    lengths = tuple(values[name] for name in GROUPS)
    others = {name: value for name, value in values.items() if name not in GROUPS}
    return ProbePrior(**others, lengths=lengths)


def _plain(values: Array) -> Any:
    """A number, or a tuple of numbers, with five decimals."""
    rounded = np.round(values, 5)
    return tuple(map(float, rounded)) if rounded.ndim else float(rounded)
