"""Learned variants: members are trained on folds and evaluated on out-of-fold rows.

Members are trees, networks and Gaussian processes (`gaussian_process.py`). Gaussian processes have smaller errors with
few samples and are fitted in seconds. `distil` replaces many members by one small network. `mlp_paper` is the network
that Lin et al. published; its only inputs are sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.cublas_choice import TileNetwork
from pipeline.kernels.effort import LONG, Effort
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.families import Law
from pipeline.kernels.fit_workers import TrainingPool
from pipeline.kernels.gaussian_process import (
    GaussianProcess,
    Hyperparameters,
    find_hyperparameters,
    train_gaussian_process,
)
from pipeline.kernels.network_training import train_network
from pipeline.kernels.networks import Network, Recipe
from pipeline.kernels.trees import Trees
from pipeline.kernels.work import Array

FOLDS = 5
"""Number of cross-validation folds of the trees."""

WIDTHS = {Law.COMPUTE: (192, 5)}
"""Width and layers of networks, by the law of the family. Times of matrix kernels jump from wave to wave, so their
networks are wider and deeper."""

DEFAULT_WIDTH = (128, 4)
"""Width and layers of networks for all other laws, whose times are smooth."""

SMALL_FAMILY_SAMPLES = 3000
"""Number of samples below which a family gets the `FEW_` settings. With so few samples a wide network costs little
time."""

SMALL_FAMILY_WIDTH = (256, 4)
"""Width and layers of networks for few samples."""

NARROW_SMALL_FAMILY_WIDTH = (192, 4)
"""The same in the quick way (`effort.Effort.narrow_networks`)."""

NARROW_MATRIX_RATE = 5e-3
"""Peak learning rate of the narrow networks of matrix families. They have sines and cosines, unless they are averaged with
Gaussian processes: then sines cost time and change nothing (convolutions: 1.01 times the long way's error with both).

Four such members, trained in the quick way, predict products as well as the eight members of the long way: GMAE 1.77 and
1.79 %. With a rate of 3e-3 it is 1.80 % (V100 and A100, two splits each, kernels chosen by the teachers)."""

SMALL_FAMILY_BATCH = 128
"""Batch size for few samples. Smaller batches reduce the error above the latency floor (layer norm, A100 and T4)."""

SMALL_FAMILY_STEPS = 1500
"""Minimum optimiser steps for few samples: half of the steps that networks without sines and cosines need."""

NEAR_FLOOR_RATIO = 1.1
"""Multiple of the latency floor up to which samples differ mostly by the floor's noise. Calls below it get separate
weights in the average of trees and networks."""

INPUT_FREQUENCIES = 8
"""Number of frequencies per input, each with a sine and a cosine, in networks for few samples. Where samples are
sparse, plain layers smooth the jumps between waves. With sines and cosines the error (GMAE) of layer norm on
development shapes fell from 0.92 to 0.67 % on A100, and from 0.50 to 0.46 % on V100. In matrix families the mean of
several networks improved, but a single network did not (out of fold, convolutions of A100: from 8.1 to 8.5 %)."""

BATCH = 256
"""Batch size of member networks."""

EPOCHS = 120
"""Epochs of a member network, within the limits of `STEPS`."""

STEPS = (1200, 4500)
"""Minimum and maximum number of optimiser steps of a member network."""

T = TypeVar("T")

Member = Network | Trees | GaussianProcess

Trainer = Callable[[Array, Array, int], Member]
"""Trains a member from features (rows, columns), log times (rows,) and a seed; a new process can import it."""


@dataclass(frozen=True)
class Problem:
    """The regression problem of one family.

    `target` is log time minus `baseline`, both of shape (rows,). `training_pool` runs the training of members.
    """

    calls: pd.DataFrame
    features: Array
    target: Array
    baseline: Array
    folds: npt.NDArray[np.int64]
    law: Law
    featurise: Callable[[pd.DataFrame], Array]
    log_over_floor: Callable[[pd.DataFrame], Array]  # log of the baseline over the floor, shape (rows,)
    training_pool: TrainingPool = field(default_factory=TrainingPool)
    effort: Effort = field(default_factory=Effort)

    def at_floor(self, calls: pd.DataFrame, learned: Array) -> npt.NDArray[np.bool_]:
        """Whether each call is at the latency floor; `learned` are the members' predictions, without the baseline."""
        return np.asarray(self.log_over_floor(calls) + learned < np.log(NEAR_FLOOR_RATIO))


@dataclass(frozen=True)
class Outcome:
    """Members with their weights, out-of-fold predictions, and the factor on their residuals."""

    members: tuple[Network | Trees | TileNetwork | GaussianProcess, ...]
    weights: tuple[float, ...]
    out_of_fold: Array  # out-of-fold predictions of the target, shape (rows,); NaN where there are none
    shrink: float
    notes: dict[str, float]


def member_recipe(rows: int, law: Law, base: Recipe | None = None, effort: Effort = LONG) -> Recipe:
    """Training recipe of a member network in the long way, by the number of samples and the law.

    Only width, layers, sines and rate depend on `effort`.
    """
    few = rows < SMALL_FAMILY_SAMPLES
    if effort.narrow_networks:
        width, layers = NARROW_SMALL_FAMILY_WIDTH if few else DEFAULT_WIDTH
    else:
        width, layers = WIDTHS.get(law, SMALL_FAMILY_WIDTH if few else DEFAULT_WIDTH)
    narrow_matrix = effort.narrow_networks and law is Law.COMPUTE and not few
    periodic = few or (narrow_matrix and rows > effort.gaussian_process_samples)
    recipe = base or Recipe(
        width=width, layers=layers, weight_decay=0.1, batch=SMALL_FAMILY_BATCH if few else BATCH,
        frequencies=INPUT_FREQUENCIES if periodic else 0,
        learning_rate=NARROW_MATRIX_RATE if narrow_matrix else Recipe.learning_rate,
    )  # fmt: skip
    least, most = STEPS
    steps = int(np.clip(rows * EPOCHS // recipe.batch, SMALL_FAMILY_STEPS if few and base is None else least, most))
    return replace(recipe, steps=steps)


def cross_validate(problem: Problem, train: Trainer, seed: int, folds: int = FOLDS) -> tuple[Array, list[Member]]:
    """Train one member per fold on the other folds: (out-of-fold predictions, members)."""
    return _fold_by_fold(problem, partial(_train_and_predict, train), seed, folds)


def _fold_by_fold(
    problem: Problem,
    train_and_predict: Callable[[Array, Array, int, Array], tuple[T, Array]],
    seed: int,
    folds: int = FOLDS,
) -> tuple[Array, list[T]]:
    """Call `train_and_predict` once per fold with the rows of the other folds.

    Returns:
        The predictions of each fold's own rows, and the first result of each call.
    """
    out_of_fold = np.full(len(problem.target), np.nan)
    parts, calls = [], []
    for number in np.unique(problem.folds)[:folds]:
        held = problem.folds == number
        # if there is only one fold, its member is trained on that fold
        fit = ~held if (~held).any() else held
        parts.append(held)
        calls.append((problem.features[fit], problem.target[fit], seed + int(number), problem.features[held]))
    made = []
    for held, (each, found) in zip(parts, problem.training_pool.all(train_and_predict, calls), strict=True):
        out_of_fold[held] = found
        made.append(each)
    return out_of_fold, made


def _train_and_predict(
    train: Trainer, features: Array, target: Array, seed: int, held_out: Array
) -> tuple[Member, Array]:
    """Train a member on features and log times: (member, its predictions for the features `held_out`)."""
    member = train(features, target, seed)
    return member, member.predict(held_out)


def train_one_process(features: Array, target: Array, seed: int) -> GaussianProcess:
    """Train a single Gaussian process, as a member of an average."""
    return train_gaussian_process(features, target, [find_hyperparameters(features, target, seed)])


def train_by_recipe(recipe: Recipe, features: Array, target: Array, seed: int) -> Network:
    """`train_network` with the recipe as the first argument, so that `partial` can turn it into a `Trainer`."""
    return train_network(features, target, recipe, seed)


def fit_single(problem: Problem, train: Trainer, seed: int) -> Outcome:
    """Train one member on all rows and evaluate it by cross-validation: the variants `trees`, `mlp` and `mlp_paper`."""
    member = problem.training_pool.start(train, problem.features, problem.target, seed)
    out_of_fold, _ = cross_validate(problem, train, seed)
    return Outcome((member(),), (1.0,), out_of_fold, 1.0, {})


def fit_process(problem: Problem, seed: int) -> Outcome:
    """Fit Gaussian processes on all rows, one per fold, with hyperparameters found on all other folds.

    The out-of-fold prediction of a row comes from a process that was conditioned on the rows of the other folds.
    """
    out_of_fold, settings = _fold_by_fold(problem, _find_and_predict, seed)
    return Outcome((train_gaussian_process(problem.features, problem.target, settings),), (1.0,), out_of_fold, 1.0, {})


def _find_and_predict(features: Array, target: Array, seed: int, held_out: Array) -> tuple[Hyperparameters, Array]:
    """Hyperparameters from features and log times, and the predictions of such a process for `held_out`."""
    found = find_hyperparameters(features, target, seed)
    return found, train_gaussian_process(features, target, [found]).predict(held_out)


def search_recipe(problem: Problem, seed: int, trials: int = 6) -> Recipe:
    """Random search over settings of networks: 3 to 7 layers, width 64 to 512, learning rate 1e-4 to 1e-2.

    All trials use Adam and the squared error. Each trial is trained on all folds except the first, and evaluated on the
    first. Lin et al. search a grid of such settings.
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
    features, target, held_out = problem.features[~held], problem.target[~held], problem.features[held]
    answers = problem.training_pool.all(
        _train_and_predict,
        [(partial(train_by_recipe, recipe), features, target, seed, held_out) for recipe in recipes],
    )
    errors = [gmae(np.exp(found), np.exp(problem.target[held])) for _, found in answers]
    return recipes[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]  # a network may have diverged
