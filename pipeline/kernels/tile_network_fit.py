"""Train the network of `tile_network`, which replaces the two networks of `cublas_choice_fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pandas as pd

from pipeline.kernels.cublas_choice import Menu, TileNetwork
from pipeline.kernels.distillation import synthetic_calls
from pipeline.kernels.network_training import train_network
from pipeline.kernels.networks import Float32, Recipe
from pipeline.kernels.work import Array, Dims

RECIPE = Recipe(width=128, layers=3, steps=12_500, batch=1024, learning_rate=2e-3, muon_rate=2e-2, relu=True)
"""How the network is trained, the long way. Muon comes nearer to the two networks in 3,125 steps than AdamW
in 12,500 of half the batch (`docs/notes/kernels.md`)."""

SIZES = 600_000
"""Number of sizes at which the two networks are evaluated."""

ROUND_BITS = 3
"""Significant bits of round sizes: 4, 5, 6 or 7 times a power of two."""

ROWS_AT_ONCE = 16_384
"""Rows whose inputs are computed together."""


@dataclass(frozen=True)
class KnownTimes:
    """Log times that are better known than by the two networks.

    Attributes:
        features: features of the calls, shape (rows, columns).
        log_us: their log times, shape (rows,).
        copies: how often each is in the training set.
    """

    features: Array
    log_us: Array
    copies: int


class ChoicePredictor(Protocol):
    """What the network learns from: a model with a menu that predicts log times from features."""

    menu: Menu

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns)."""
        ...


def train_tile_network(
    teacher: ChoicePredictor, samples: pd.DataFrame, featurise: Callable[[pd.DataFrame], Array], recipe: Recipe,
    rows: int, near_share: float, seed: int, known: Sequence[KnownTimes] = (),
) -> TileNetwork:  # fmt: skip
    """Train a network on the predictions of `teacher` at `rows` sizes, and on known times.

    Args:
        teacher: predicts which kernel runs, and its log time.
        samples: calls whose sizes the teacher was trained on.
        featurise: features of calls, shape (rows, columns).
        recipe: how to train.
        rows: number of sizes.
        near_share: share of sizes near those of samples.
        seed: of the sizes, weights and batches.
        known: further training data.
    """
    calls = training_calls(samples, rows, near_share, seed)
    inputs, target = _training_set(teacher, calls, featurise, known)
    return TileNetwork(teacher.menu, train_network(inputs, target, recipe, seed))


def _training_set(
    teacher: ChoicePredictor,
    calls: pd.DataFrame,
    featurise: Callable[[pd.DataFrame], Array],
    known: Sequence[KnownTimes],
) -> tuple[Float32, Array]:
    """Inputs and log times of calls, which `teacher` predicts, and of known times."""
    menu, inputs, target = teacher.menu, [], []  # inputs in float32: 600,000 rows of 90 columns are 200 MB
    for start in range(0, len(calls), ROWS_AT_ONCE):
        features = featurise(calls.iloc[start : start + ROWS_AT_ONCE])
        inputs.append(menu.sizes(features).astype(np.float32))
        target.append(teacher.predict(features, len(calls)))
    for times in known:
        inputs += [menu.sizes(times.features).astype(np.float32)] * times.copies
        target += [times.log_us] * times.copies
    return np.concatenate(inputs), np.concatenate(target)


def training_calls(samples: pd.DataFrame, rows: int, near_share: float, seed: int) -> pd.DataFrame:
    """Calls near the samples, and calls with sizes spread evenly (in log) over the samples' range.

    Half of the latter have round sizes.
    """
    rng = np.random.default_rng(seed)
    near = round(near_share * rows)
    spread = round((rows - near) / 2)
    others = samples.iloc[rng.integers(0, len(samples), rows - near)].reset_index(drop=True)
    is_round = np.arange(len(others)) >= spread
    for name in ("B", "M", "N", "K"):
        values = Dims(samples)(name)
        low, high = values.min(), values.max()
        drawn = np.exp(rng.uniform(np.log(low), np.log(high), len(others)))
        unit = np.exp2(np.floor(np.log2(drawn)) - (ROUND_BITS - 1))
        sizes = np.where(is_round, np.round(drawn / unit) * unit, drawn)
        others[name] = np.clip(np.round(sizes), low, high)
    return pd.concat([synthetic_calls(samples, near, seed), others], ignore_index=True)
