"""Train the network of `tile_network`, which replaces the two networks of `cublas_choice_fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import pandas as pd

from pipeline.kernels.cublas_choice import Menu
from pipeline.kernels.distillation import synthetic_calls
from pipeline.kernels.network_training import train_network
from pipeline.kernels.networks import Recipe
from pipeline.kernels.tile_network import TileNetwork
from pipeline.kernels.work import Array, Dims

RECIPE = Recipe(width=128, layers=3, steps=50_000, batch=512, learning_rate=5e-3, relu=True)
"""How the network is trained. With larger batches or a lower rate, 20,000 to 28,000 steps gave 1 to 5 % larger errors."""

SIZES = 600_000
"""Number of sizes at which the two networks are evaluated."""

ROUND_BITS = 3
"""Significant bits of round sizes: 4, 5, 6 or 7 times a power of two."""

ROWS_AT_ONCE = 16_384
"""Rows whose inputs are computed together."""


class ChoicePredictor(Protocol):
    """What the network learns from: a model with a menu that predicts log times from features."""

    menu: Menu

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns)."""
        ...


def train_tile_network(
    teacher: ChoicePredictor, samples: pd.DataFrame, featurise: Callable[[pd.DataFrame], Array], recipe: Recipe,
    rows: int, near_share: float, seed: int,
) -> TileNetwork:  # fmt: skip
    """Train a network on the predictions of `teacher` at `rows` sizes.

    Args:
        teacher: predicts which kernel runs, and its log time.
        samples: calls whose sizes the teacher was trained on.
        featurise: features of calls, shape (rows, columns).
        recipe: how to train.
        rows: number of sizes.
        near_share: share of sizes near those of samples.
        seed: of the sizes, weights and batches.
    """
    calls = training_calls(samples, rows, near_share, seed)
    menu, inputs, target = teacher.menu, None, np.empty(len(calls))
    for start in range(0, len(calls), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        features = featurise(calls.iloc[block])
        sized = menu.sizes(features)
        if inputs is None:  # float32: 600,000 rows of 90 columns are 200 MB
            inputs = np.empty((len(calls), sized.shape[1]), dtype=np.float32)
        inputs[block] = sized
        target[block] = teacher.predict(features, len(calls))
    assert inputs is not None
    return TileNetwork(menu, train_network(inputs, target, recipe, seed))


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
