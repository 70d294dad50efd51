"""Learned variants of kernel models: a member is trained on all rows, and evaluated on rows of folds that it has not seen.

A member is a Gaussian process (`gaussian_process.py`), a network or boosted trees. Gaussian processes have smaller
errors with few samples and are fitted in seconds; networks predict a million calls in seconds and have a few hundred
kilobytes. `mlp_paper` is the network that Lin et al. published; its only inputs are sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pipeline.arrays import Array, Ints
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.gaussian_process import (
    GaussianProcess,
    Hyperparameters,
    find_hyperparameters,
    train_gaussian_process,
)
from pipeline.kernels.network_training import Recipe, train_network
from pipeline.kernels.networks import Network, Trees, train_trees

FOLDS = 5
"""Number of cross-validation folds."""

NETWORK_FOLDS = 3
"""Number of folds that networks predict. Rows of other folds have no out-of-fold prediction."""

NETWORK = Recipe(
    width=128, layers=4, batch=128, learning_rate=5e-3, weight_decay=0.1, frequencies=4, units=4
)
"""Recipe of a network. Times jump from wave to wave; sines and cosines of the inputs follow such jumps, and plain layers
smooth them. An average of trees and networks had errors of 0.96 to 1.01 times those of this network (docs/kernels.md)."""

PAPER_STEPS, TRIALS = 2000, 6
"""Optimiser steps of the published network, and number of settings that `search_recipe` tries."""

Member = Network | Trees | GaussianProcess

Trainer = Callable[[Array, Array, int], Member]
"""Trains a member from features (rows, columns), log times (rows,) and a seed."""


@dataclass(frozen=True)
class Problem:
    """The regression problem of one family: features (rows, columns), target and fold number (rows,).

    `target` is the log time, or its difference from the baseline.
    """

    features: Array
    target: Array
    folds: Ints


@dataclass(frozen=True)
class Outcome:
    """A member, out-of-fold predictions of the target, shape (rows,), NaN where there are none, and facts of the fit."""

    member: Member
    out_of_fold: Array
    notes: dict[str, Any] = field(default_factory=dict)


def fit_member(variant: str, problem: Problem, seed: int) -> Outcome:
    """Fit the member of a learned variant (`fit_gpu.VARIANTS`)."""
    if variant == "process":
        return fit_process(problem, seed)
    if variant == "trees":
        return fit_single(problem, train_trees, seed)
    recipe, notes = NETWORK, {}
    if variant == "mlp_paper":
        recipe = search_recipe(problem, seed)
        notes = {name: getattr(recipe, name) for name in ("width", "layers", "learning_rate")}
    train = partial(train_network, recipe=recipe)
    return replace(fit_single(problem, train, seed, NETWORK_FOLDS), notes=notes)


def cross_validate(problem: Problem, train: Trainer, seed: int, folds: int = FOLDS) -> Array:
    """Out-of-fold predictions of members, each trained on the rows of the other folds; shape (rows,)."""
    out_of_fold = np.full(len(problem.target), np.nan)
    for number in np.unique(problem.folds)[:folds]:
        held_out = problem.folds == number
        # if there is only one fold, its member is trained on that fold
        rows = ~held_out if (~held_out).any() else held_out
        member = train(problem.features[rows], problem.target[rows], seed + int(number))
        out_of_fold[held_out] = member.predict(problem.features[held_out])
    return out_of_fold


def fit_single(problem: Problem, train: Trainer, seed: int, folds: int = FOLDS) -> Outcome:
    """Train one member on all rows and evaluate it by cross-validation."""
    member = train(problem.features, problem.target, seed)
    return Outcome(member, cross_validate(problem, train, seed, folds))


def fit_process(problem: Problem, seed: int) -> Outcome:
    """Fit Gaussian processes on all rows, one per fold, with hyperparameters found on all other folds.

    The out-of-fold prediction of a row comes from a process that was conditioned on the rows of the other folds.
    """
    settings: list[Hyperparameters] = []

    def train(features: Array, target: Array, seed: int) -> GaussianProcess:
        settings.append(find_hyperparameters(features, target, seed))
        return train_gaussian_process(features, target, settings[-1:])

    out_of_fold = cross_validate(problem, train, seed)
    return Outcome(train_gaussian_process(problem.features, problem.target, settings), out_of_fold)


def search_recipe(problem: Problem, seed: int) -> Recipe:
    """Random search over settings of networks: 3 to 7 layers, width 64 to 512, learning rate 1e-4 to 1e-2.

    All trials use Adam and the squared error. Each trial is trained on all folds except the first, and evaluated on the
    first. Lin et al. search a grid of such settings.
    """
    rng = np.random.default_rng(seed)
    held_out = problem.folds == problem.folds.min()
    features, target = problem.features[~held_out], problem.target[~held_out]
    recipes, errors = [], []
    for _ in range(TRIALS):
        recipe = Recipe(
            width=int(rng.choice([64, 128, 256, 512])),
            layers=int(rng.integers(3, 8)),
            residual=False,
            steps=PAPER_STEPS,
            learning_rate=float(10 ** rng.uniform(-4, -2)),
            weight_decay=0.0,
            loss="l2",
        )
        network = train_network(features, target, seed, recipe)
        predicted = network.predict(problem.features[held_out])
        recipes.append(recipe)
        errors.append(gmae(np.exp(predicted), np.exp(problem.target[held_out])))
    return recipes[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]  # a network may have diverged
