"""Learning what probes may assume (needs torch): the errors on GPUs that a model has not seen have most likelihood.

Each GPU's errors are one draw of the covariance in `probe_prior.py`; random parts of a few hundred calls of each keep
the linear algebra small. For an honest figure of a left-out GPU the other GPUs' errors come from models that saw
neither (`evaluate.folds`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.transfer.probe_prior import GROUPS, ProbePrior, Seen

Array = npt.NDArray[np.float64]

STEPS, ROWS, RATE = 120, 200, 0.06
"""Optimizer steps, calls per GPU and step, and Adam's rate; set beforehand, not searched."""

LENGTH_PENALTY = 0.02
"""Weight of squared log distances: a few GPUs say little about how far their errors resemble each other."""

USUAL, USUAL_PENALTY = 0.15, 0.01
"""Standard deviation that effects, levels and smooth functions are drawn to, and the weight of the squared log ratio to
it. Each GPU shows one value of an effect or level: four or five GPUs that happen to agree would else let a family ignore
what a probe says."""


def learn_prior(errors: Mapping[str, tuple[Seen, Array]], seed: int = 0) -> ProbePrior:
    """The covariance under which the errors of several GPUs are likely.

    Args:
        errors: by GPU, its calls and log(measured / predicted), shape (rows,), of a model that has not seen it.
        seed: of the calls drawn.
    """
    import torch

    random = np.random.default_rng(seed)
    axes = [group.shape[1] for group in next(iter(errors.values()))[0].groups]
    start = ProbePrior()
    p: dict[str, Any] = {
        "effects": [-1.0] * len(start.effects), "level": -2.0, "op": -3.0, "noise": -2.0,
        "spreads": [-1.5, -1.5, -2.0], "sizes": [0.0] * axes[0], "work": [0.0] * axes[1], "form": [1.5] * axes[2],
    }  # fmt: skip
    p = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in p.items()}
    optimizer = torch.optim.Adam(p.values(), lr=RATE)
    for _ in range(STEPS):
        loss = LENGTH_PENALTY * ((p["sizes"] ** 2).sum() + (p["work"] ** 2).sum())
        few = torch.cat([p["effects"], p["level"].reshape(1), p["op"].reshape(1), p["spreads"]])
        loss = loss + USUAL_PENALTY * ((few - float(np.log(USUAL))) ** 2).sum()
        for seen, error in errors.values():
            drawn = random.choice(len(error), min(ROWS, len(error)), replace=False)
            covariance = _covariance(p, seen.rows(drawn)) + torch.exp(2 * p["noise"]) * torch.eye(len(drawn))
            factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(len(drawn)))
            y = torch.tensor(error[drawn])[:, None]
            solved = torch.cholesky_solve(y, factor)
            loss = loss + (0.5 * (y * solved).sum() + torch.log(torch.diagonal(factor)).sum()) / len(drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = {name: np.exp(value.detach().numpy()) for name, value in p.items()}

    def values(name: str) -> tuple[float, ...]:
        return tuple(round(float(v), 5) for v in np.atleast_1d(found[name]))

    return ProbePrior(
        effects=values("effects"),
        level=values("level")[0],
        op=values("op")[0],
        spreads=values("spreads"),
        lengths=(values("sizes"), values("work"), values("form")),
        noise=values("noise")[0],
    )


def _covariance(p: dict[str, Any], seen: Seen) -> Any:
    """`ProbePrior.covariance` of calls with themselves, differentiable."""
    import torch

    effects, op = torch.tensor(seen.effects), torch.tensor(seen.op)
    total = (effects * torch.exp(2 * p["effects"])) @ effects.T + torch.exp(2 * p["level"])
    total = total + torch.exp(2 * p["op"]) * (op[:, None] == op[None, :])
    for i, name in enumerate(GROUPS):
        x = torch.tensor(seen.groups[i]) / torch.exp(p[name])
        norm = (x**2).sum(dim=1)
        squared = (norm[:, None] + norm[None, :] - 2 * x @ x.T).clamp_min(0.0)
        total = total + torch.exp(2 * p["spreads"][i]) * torch.exp(-0.5 * squared)
    return total
