"""Learned variants: how members are trained, and judged on rows that they have not seen.

Trees, networks and Gaussian processes (`process.py`: they err less where samples are few, and take seconds) are members;
`distil` makes one small network of many. `mlp_paper` is the published form, on sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.cublas_choice import ChosenKernel
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.families import Law
from pipeline.kernels.fit_workers import Crew
from pipeline.kernels.gaussian_process import Process, Settings, find_settings, train_process
from pipeline.kernels.networks import Network, Recipe, train_network
from pipeline.kernels.trees import Trees, train_trees
from pipeline.kernels.work import Array

FOLDS = 5
"""Cross-validation folds of the trees."""

WIDTHS = {Law.COMPUTE: (192, 5)}
"""Width and layers of networks by law; matrix kernels have waves to learn, ..."""

PLAIN_WIDTH = (128, 4)
"""... the others are smooth, ..."""

FEW_ROWS = 3000
FEW_WIDTH = (256, 4)
"""... and for few samples, a wide network costs little."""

FEW_BATCH = 128
FEW_STEPS = 1500
"""Smaller batches for few samples: less error above the floor on layer norms of A100 and T4. With the sines and cosines
below, half as many steps as plain layers need."""

AT_FLOOR = 1.1
"""Latencies up to this multiple of the floor differ by the floor's noise, which networks and trees learn differently
well: there, the average has its own proportion."""

FREQUENCIES = 8
"""Sines and cosines of each input that networks of few samples see: where samples are sparse, plain layers round off the
jumps between waves (layer norm on development shapes: A100 0.92 to 0.67 % GMAE, V100 0.50 to 0.46). In matrix families
the mean of several improved too, but a single network not (out of fold, convolutions of A100 8.1 to 8.5)."""

BATCH = 256

EPOCHS = 120
"""Passes over the samples that a member network trains for, within `STEPS`."""

STEPS = (1200, 4500)
"""Least and most optimiser steps of a member network."""

T = TypeVar("T")

Trainer = Callable[[Array, Array, int], Network | Trees]
"""From features (rows, columns), log times (rows,) and a seed; one that a fresh process can import."""


@dataclass(frozen=True)
class Problem:
    """One family's regression: `target` is log time minus `baseline`, both of shape (rows,); `crew` trains members."""

    calls: pd.DataFrame
    features: Array
    target: Array
    baseline: Array
    folds: npt.NDArray[np.int64]
    law: Law
    featurise: Callable[[pd.DataFrame], Array]
    height: Callable[[pd.DataFrame], Array]  # log of the baseline over the floor, shape (rows,)
    crew: Crew = field(default_factory=Crew)

    def at_floor(self, calls: pd.DataFrame, learned: Array) -> npt.NDArray[np.bool_]:
        """Calls that the latency floor hides, given what members add to their baseline."""
        return np.asarray(self.height(calls) + learned < np.log(AT_FLOOR))


@dataclass(frozen=True)
class Outcome:
    """Members with their weights, residuals on unseen rows (rows,), and what to shrink these by."""

    members: tuple[Network | Trees | ChosenKernel | Process, ...]
    weights: tuple[float, ...]
    unseen: Array  # predictions of the target by members new to the row; NaN where there are none
    shrink: float
    notes: dict[str, float]


def member_recipe(rows: int, law: Law, base: Recipe | None = None) -> Recipe:
    """Recipe of a member network for that many samples of a family of that law."""
    width, layers = WIDTHS.get(law, PLAIN_WIDTH if rows >= FEW_ROWS else FEW_WIDTH)
    few = rows < FEW_ROWS
    recipe = base or Recipe(
        width=width, layers=layers, weight_decay=0.1, batch=FEW_BATCH if few else BATCH,
        frequencies=FREQUENCIES if few else 0,
    )  # fmt: skip
    least, most = STEPS
    steps = int(np.clip(rows * EPOCHS // recipe.batch, FEW_STEPS if few and base is None else least, most))
    return replace(recipe, steps=steps)


def cross_validate(
    problem: Problem, train: Trainer, seed: int, folds: int = FOLDS
) -> tuple[Array, list[Network | Trees]]:
    """One member per fold, trained on the other folds: (predictions of each row by the member new to it, members)."""
    return _fold_by_fold(problem, partial(_judged, train), seed, folds)


def _fold_by_fold(
    problem: Problem, judged: Callable[[Array, Array, int, Array], tuple[T, Array]], seed: int, folds: int = FOLDS
) -> tuple[Array, list[T]]:
    """What each fold makes of the other folds' rows: (predictions of each fold's own rows, what was made)."""
    unseen = np.full(len(problem.target), np.nan)
    parts, calls = [], []
    for number in np.unique(problem.folds)[:folds]:
        held = problem.folds == number
        # a single fold has nothing else to learn from
        fit = ~held if (~held).any() else held
        parts.append(held)
        calls.append((problem.features[fit], problem.target[fit], seed + int(number), problem.features[held]))
    made = []
    for held, (each, found) in zip(parts, problem.crew.all(judged, calls), strict=True):
        unseen[held] = found
        made.append(each)
    return unseen, made


def _judged(train: Trainer, features: Array, target: Array, seed: int, asked: Array) -> tuple[Network | Trees, Array]:
    """A trained member, and what it says of other features."""
    member = train(features, target, seed)
    return member, member.predict(asked)


def train_by_recipe(recipe: Recipe, features: Array, target: Array, seed: int) -> Network:
    """`train_network` with its recipe first, so that `partial` makes a `Trainer` of it."""
    return train_network(features, target, recipe, seed)


def fit_single(problem: Problem, train: Trainer, seed: int) -> Outcome:
    """One member on all rows, judged by cross-validation: the variants `trees`, `mlp` and `mlp_paper`."""
    member = problem.crew.start(train, problem.features, problem.target, seed)
    unseen, _ = cross_validate(problem, train, seed)
    return Outcome((member(),), (1.0,), unseen, 1.0, {})


def fit_trees(problem: Problem, seed: int) -> Outcome:
    """Boosted trees alone."""
    return fit_single(problem, train_trees, seed)


def fit_network(problem: Problem, seed: int) -> Outcome:
    """One network alone."""
    chosen = member_recipe(len(problem.target), problem.law)
    return fit_single(problem, partial(train_by_recipe, chosen), seed)


def fit_process(problem: Problem, seed: int) -> Outcome:
    """Gaussian processes: one per fold, with the settings that the other folds found, on all rows.

    A row's unseen prediction is that of the process which the other folds alone made.
    """
    unseen, settings = _fold_by_fold(problem, _judged_process, seed)
    return Outcome((train_process(problem.features, problem.target, settings),), (1.0,), unseen, 1.0, {})


def _judged_process(features: Array, target: Array, seed: int, asked: Array) -> tuple[Settings, Array]:
    """Settings found on features and log times, and what a process with them says of other features."""
    found = find_settings(features, target, seed)
    return found, train_process(features, target, [found]).predict(asked)


def search_recipe(problem: Problem, seed: int, trials: int = 6) -> Recipe:
    """The paper's search: 3 to 7 layers, width 64 to 512, learning rate 1e-4 to 1e-2, Adam, squared error.

    Trials train on all folds but the first and are judged on it (Lin et al. search such a grid).
    """
    rng = np.random.default_rng(seed)
    held = problem.folds == problem.folds.min()
    recipes = [
        Recipe(
            width=int(rng.choice([64, 128, 256, 512])), layers=int(rng.integers(3, 8)), residual=False,
            learning_rate=float(10 ** rng.uniform(-4, -2)), weight_decay=0.0, loss="l2",
        )
        for _ in range(trials)
    ]  # fmt: skip
    recipes = [member_recipe(len(problem.target), problem.law, recipe) for recipe in recipes]
    features, target, asked = problem.features[~held], problem.target[~held], problem.features[held]
    answers = problem.crew.all(
        _judged, [(partial(train_by_recipe, recipe), features, target, seed, asked) for recipe in recipes]
    )
    errors = [gmae(np.exp(found), np.exp(problem.target[held])) for _, found in answers]
    return recipes[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]  # a network may have diverged


def search_paper(problem: Problem, seed: int, trials: int = 6) -> tuple[Outcome, Recipe]:
    """The paper's MLP on log sizes, as `search_recipe` finds it."""
    found = search_recipe(problem, seed, trials)
    return fit_single(problem, partial(train_by_recipe, found), seed), found
