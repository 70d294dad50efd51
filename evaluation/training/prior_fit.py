"""Fits the covariance of a model's errors on an unseen GPU by maximum likelihood (needs torch).

The errors of each GPU are one sample from the covariance in `pipeline/transfer/probes.py`. Each step uses a random part of a few
hundred calls per GPU, which keeps the linear algebra small. To evaluate on a left-out GPU, the errors of every other
GPU come from a model trained without either of the two (`left_out_gpu.folds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.kernels.network_training import minimise
from pipeline.transfer.probes import GROUPS, CovarianceInputs, ProbePrior

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
    axes = [group.shape[1] for group in next(iter(errors.values()))[0].groups]
    start = ProbePrior()
    p: dict[str, Any] = {
        "effects": [-1.0] * len(start.effects),
        "level": -2.0,
        "op": -3.0,
        "noise": -2.0,
        "spreads": [-1.5, -1.5, -2.0],
        "sizes": [0.0] * axes[0],
        "work": [0.0] * axes[1],
        "form": [1.5] * axes[2],
    }
    p = {name: torch.tensor(value, dtype=torch.float64) for name, value in p.items()}

    def loss() -> Any:
        value = LENGTH_PENALTY * ((p["sizes"] ** 2).sum() + (p["work"] ** 2).sum())
        few = torch.cat([p["effects"], p["level"].reshape(1), p["op"].reshape(1), p["spreads"]])
        value = value + TYPICAL_PENALTY * ((few - float(np.log(TYPICAL_SPREAD))) ** 2).sum()
        for inputs, error in errors.values():
            drawn = random.choice(len(error), min(ROWS, len(error)), replace=False)
            covariance = _covariance(p, inputs.rows(drawn)) + torch.exp(2 * p["noise"]) * torch.eye(
                len(drawn)
            )
            factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(len(drawn)))
            y = torch.tensor(error[drawn])[:, None]
            solved = torch.cholesky_solve(y, factor)
            value = value + (
                0.5 * (y * solved).sum() + torch.log(torch.diagonal(factor)).sum()
            ) / len(drawn)
        return value

    minimise(loss, list(p.values()), STEPS, RATE, warm_up=None)
    fitted = {name: np.exp(value.detach().numpy()) for name, value in p.items()}

    def values(name: str) -> tuple[float, ...]:
        return tuple(round(float(v), 5) for v in np.atleast_1d(fitted[name]))

    return ProbePrior(
        effects=values("effects"),
        level=values("level")[0],
        op=values("op")[0],
        spreads=values("spreads"),
        lengths=(values("sizes"), values("work"), values("form")),
        noise=values("noise")[0],
    )


def _covariance(p: dict[str, Any], inputs: CovarianceInputs) -> Any:
    """Differentiable form of `ProbePrior.covariance` for one set of calls with itself."""
    import torch

    effects, op = torch.tensor(inputs.effects), torch.tensor(inputs.op)
    total = (effects * torch.exp(2 * p["effects"])) @ effects.T + torch.exp(2 * p["level"])
    total = total + torch.exp(2 * p["op"]) * (op[:, None] == op[None, :])
    for i, name in enumerate(GROUPS):
        x = torch.tensor(inputs.groups[i]) / torch.exp(p[name])
        norm = (x**2).sum(dim=1)
        squared = (norm[:, None] + norm[None, :] - 2 * x @ x.T).clamp_min(0.0)
        total = total + torch.exp(2 * p["spreads"][i]) * torch.exp(-0.5 * squared)
    return total
