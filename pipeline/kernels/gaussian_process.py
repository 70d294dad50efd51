"""Gaussian processes: what few samples are learned with.

A process takes the times of two calls to be the more alike, the nearer their features lie; how near counts for each
feature apart, and is found by the likelihood of the samples, with a prior (Rasmussen and Williams, "Gaussian Processes for
Machine Learning", MIT Press 2006, chapters 2 and 5). With a few hundred samples that takes a second, and errs less than
networks and trees; with many it takes a matrix of samples by samples.

Several processes share the samples and differ in what they found on different shares of them: their mean errs less than
each (development shapes of V100 and T4, 60 to 150 samples: by 3 to 4 %).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.errors import PackError
from pipeline.kernels.networks import CLIP
from pipeline.kernels.work import Array

ROUNDS = 30
"""Most rounds of the optimiser; 60 came out the same."""

MOST_ROWS = 300
"""Samples that a share's lengths are found on; the processes themselves take all of them."""

LENGTH_SPREAD = 2.0
"""Standard deviation of the prior of log lengths around the root of the number of features; at 1, features that say much
are held back (V100 and T4, 30 to 150 samples: 2 % more error), at 0.5 by 7 %."""

LEAST_NOISE = 1e-4
"""Noise, as a share of the variance of the samples, below which the matrix could not be solved."""

TYPICAL_NOISE = 0.02
"""Centre of its prior."""

WIDEST = 6.0
"""Largest log of what is found, and half of the least: a step too far of the optimiser must not overflow."""

STILL = 1e-9
"""Deviation below which a feature does not move."""

CELLS_AT_ONCE = 1 << 20
"""Calls times samples that are compared at once."""


@dataclass(frozen=True)
class Settings:
    """What one process found: inverse lengths of the standardised features, shape (columns,), and noise over variance."""

    nearness: Array
    noise: float


@dataclass(frozen=True)
class Process:
    """Processes on the same samples; their mean answers.

    Attributes:
        mean, scale: of the features, shape (columns,).
        centre: log time far from all samples.
        rows: standardised features of the samples, shape (samples, columns).
        nearness: inverse lengths, shape (processes, columns).
        pull: how much each sample adds to what is near it, shape (processes, samples).
    """

    mean: Array
    scale: Array
    centre: float
    rows: Array
    nearness: Array
    pull: Array

    def predict(self, features: Array) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns)."""
        x = _standardise(features, self.mean, self.scale)
        found = np.full(len(x), self.centre)
        block = max(1, CELLS_AT_ONCE // len(self.rows))
        for nearness, pull in zip(self.nearness, self.pull, strict=True):
            known = self.rows * nearness
            for start in range(0, len(x), block):
                asked = x[start : start + block] * nearness
                found[start : start + block] += _likeness(asked, known) @ pull / len(self.pull)
        return found

    def tensors(self, prefix: str = "") -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to save, in full precision: the pulls of near samples nearly cancel."""
        names = ("mean", "scale", "rows", "nearness", "pull")
        found: dict[str, npt.NDArray[np.generic]] = {f"{prefix}process_{name}": getattr(self, name) for name in names}
        return found | {f"{prefix}process_centre": np.array([self.centre])}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[np.generic]], prefix: str = "") -> Process:
        """Back from `tensors`.

        Raises:
            PackError: an array is missing or has the wrong shape.
        """
        names = ("mean", "scale", "centre", "rows", "nearness", "pull")
        try:
            parts = {name: tensors[f"{prefix}process_{name}"].astype(np.float64) for name in names}
        except KeyError as error:
            raise PackError(f"process misses array {error.args[0]!r}; rebuild it") from None
        columns, samples, count = parts["mean"].size, len(parts["rows"]), len(parts["pull"])
        expected = {
            "mean": (columns,), "scale": (columns,), "centre": (1,), "rows": (samples, columns),
            "nearness": (count, columns), "pull": (count, samples),
        }  # fmt: skip
        if not count or any(parts[name].shape != shape for name, shape in expected.items()):
            raise PackError("arrays of the process do not fit each other; rebuild it")
        centre = float(parts.pop("centre")[0])
        return cls(centre=centre, **parts)


def train_process(features: Array, target: Array, settings: Sequence[Settings]) -> Process:
    """Processes with these settings on features (rows, columns) and log times (rows,)."""
    mean, scale = _spread(features)
    rows = _standardise(features, mean, scale)
    centre = float(np.median(target))
    pulls = []
    for found in settings:
        scaled = rows * found.nearness
        alike = _likeness(scaled, scaled) + found.noise * np.eye(len(rows))
        pulls.append(np.linalg.solve(alike, target - centre))
    return Process(mean, scale, centre, rows, np.array([found.nearness for found in settings]), np.array(pulls))


def find_settings(features: Array, target: Array, seed: int) -> Settings:
    """The likeliest settings, given the prior, on at most `MOST_ROWS` of features (rows, columns) and log times (rows,)."""
    import torch

    torch.set_num_threads(1)
    if len(target) > MOST_ROWS:
        kept = np.sort(np.random.default_rng(seed).permutation(len(target))[:MOST_ROWS])
        features, target = features[kept], target[kept]
    mean, scale = _spread(features)
    moves = features.std(axis=0) > STILL  # a feature without variation sets no calls apart
    x = torch.from_numpy(_standardise(features, mean, scale)[:, moves])
    y = torch.from_numpy((target - np.median(target)) / max(float(target.std()), 1e-6))
    columns, diagonal = x.shape[1], torch.eye(len(y), dtype=torch.float64)
    # logs of each feature's nearness, of the variance, and of the noise
    centre = torch.tensor(
        [-0.5 * np.log(max(columns, 1))] * columns + [0.0, np.log(TYPICAL_NOISE)], dtype=torch.float64
    )
    spread = torch.tensor([LENGTH_SPREAD] * columns + [1.5, 2.0], dtype=torch.float64)
    found = centre.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [found], max_iter=ROUNDS, history_size=10, tolerance_change=1e-4, line_search_fn="strong_wolfe"
    )

    def unlikeliness() -> float:
        optimiser.zero_grad()
        bounded = found.clamp(-2 * WIDEST, WIDEST)
        scaled = x * torch.exp(bounded[:columns])
        square = (scaled * scaled).sum(dim=1)
        distance = torch.sqrt(3.0 * (square[:, None] + square - 2.0 * scaled @ scaled.T).clamp(min=0.0) + 1e-12)
        alike = torch.exp(bounded[columns]) * (1.0 + distance) * torch.exp(-distance)
        root = torch.linalg.cholesky(alike + diagonal * (torch.exp(bounded[columns + 1]) + LEAST_NOISE))
        rest = torch.linalg.solve_triangular(root, y[:, None], upper=False)
        value = 0.5 * (rest * rest).sum() + torch.log(torch.diagonal(root)).sum()
        value = value + 0.5 * (((found - centre) / spread) ** 2).sum()
        value.backward()
        return float(value.detach())

    optimiser.step(unlikeliness)  # type: ignore[no-untyped-call]
    bounded = found.detach().clamp(-2 * WIDEST, WIDEST)
    best = torch.where(torch.isfinite(bounded), bounded, centre).numpy()
    nearness = np.zeros(len(moves))
    nearness[moves] = np.exp(best[:columns])
    return Settings(nearness, float((np.exp(best[columns + 1]) + LEAST_NOISE) / np.exp(best[columns])))


def _likeness(one: Array, other: Array) -> Array:
    """Matern's kernel of order 3/2, of features times nearness: shape (rows of one, rows of the other).

    Times are no smoother than that: order 5/2 and the rational quadratic erred as much or more.
    """
    square = (one * one).sum(axis=1)[:, None] + (other * other).sum(axis=1) - 2.0 * (one @ other.T)
    distance = np.sqrt(3.0 * np.maximum(square, 0.0))
    return np.asarray((1.0 + distance) * np.exp(-distance))


def _spread(features: Array) -> tuple[Array, Array]:
    """Mean and deviation of each column; a deviation of one where there is none."""
    deviation = features.std(axis=0)
    return features.mean(axis=0), np.where(deviation > STILL, deviation, 1.0)


def _standardise(features: Array, mean: Array, scale: Array) -> Array:
    return np.asarray(np.clip((features - mean) / scale, -CLIP, CLIP))
