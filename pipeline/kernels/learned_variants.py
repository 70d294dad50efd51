"""Learned variants: members are trained on folds, evaluated on out-of-fold rows, and averaged.

Members are trees, networks and Gaussian processes (`gaussian_process.py`). Gaussian processes have smaller errors with
few samples and are fitted in seconds. With more samples, trees and networks of the folds are averaged with the weights
that minimise the out-of-fold error. One student network then learns the labels of the samples, and the average's
predictions at many sizes between them. It is as accurate as the average, predicts a million calls in seconds, and has a
few hundred kilobytes. `mlp_paper` is the network that Lin et al. published; its only inputs are sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.families.dims import Array, Dims
from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.features import WINDOW_DIMS
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

AVERAGED_FOLDS = 3
"""Number of folds for which members of an average are trained. Rows of other folds have no out-of-fold prediction."""

MEMBER = Recipe(
    width=128, layers=4, batch=128, learning_rate=5e-3, weight_decay=0.1, frequencies=4, units=4
)
"""Recipe of a member network. Times jump from wave to wave; sines and cosines of the inputs follow such jumps, and plain
layers smooth them."""

STUDENT = Recipe(width=128, layers=4, batch=128, frequencies=4, units=4)
"""Recipe of the network that replaces an average. It sees all samples, so that longer training pays more than that of
members."""

EPOCHS = 90
"""Passes over the samples in training, within the limits of `STEPS` or `STUDENT_STEPS`."""

STEPS, STUDENT_STEPS = (800, 2000), (2000, 3000)
"""Minimum and maximum number of optimiser steps of a member network, and of a student."""

MIN_NETWORK_SAMPLES = 100
"""Samples below which an average has only trees."""

TREE_SHARES = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Candidate weights of the trees in the average; the one with the smallest out-of-fold error is taken."""

SYNTHETIC_ROWS = 15_000
"""Number of sizes at which the average is evaluated for the student."""

JITTER = 0.25
"""Standard deviation, in log, of a synthetic size around a sample's size."""

KEEP_SHARE = 0.35
"""Probability that a synthetic row keeps a sampled dim, so that round, aligned sizes stay frequent."""

LABEL_REPEATS = 2
"""Number of copies of each sample in the student's training set, to which the synthetic rows are added."""

T = TypeVar("T")

Member = Network | Trees | GaussianProcess

Trainer = Callable[[Array, Array, int], Member]
"""Trains a member from features (rows, columns), log times (rows,) and a seed."""


@dataclass(frozen=True)
class Problem:
    """The regression problem of one family.

    `target` is the log time, or its difference from the baseline, shape (rows,).
    """

    calls: pd.DataFrame
    features: Array
    target: Array
    folds: npt.NDArray[np.int64]
    featurise: Callable[[pd.DataFrame], Array]


@dataclass(frozen=True)
class Outcome:
    """Members with their weights, and out-of-fold predictions of the target, shape (rows,); NaN where there are none."""

    members: tuple[Member, ...]
    weights: tuple[float, ...]
    out_of_fold: Array
    notes: dict[str, float]


def with_steps(recipe: Recipe, rows: int, limits: tuple[int, int]) -> Recipe:
    """The recipe with `EPOCHS` passes over that many samples, within the limits of the number of steps."""
    return replace(recipe, steps=int(np.clip(rows * EPOCHS // recipe.batch, *limits)))


def member_recipe(rows: int) -> Recipe:
    """Training recipe of a member network, by the number of samples."""
    return with_steps(MEMBER, rows, STEPS)


def cross_validate(
    problem: Problem, train: Trainer, seed: int, folds: int = FOLDS
) -> tuple[Array, list[Member]]:
    """Train one member per fold on the other folds: (out-of-fold predictions, members)."""

    def train_and_predict(
        features: Array, target: Array, seed: int, held_out: Array
    ) -> tuple[Member, Array]:
        member = train(features, target, seed)
        return member, member.predict(held_out)

    return _fold_by_fold(problem, train_and_predict, seed, folds)


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
    members = []
    for number in np.unique(problem.folds)[:folds]:
        held_out = problem.folds == number
        # if there is only one fold, its member is trained on that fold
        rows = ~held_out if (~held_out).any() else held_out
        member, out_of_fold[held_out] = train_and_predict(
            problem.features[rows],
            problem.target[rows],
            seed + int(number),
            problem.features[held_out],
        )
        members.append(member)
    return out_of_fold, members


def fit_single(problem: Problem, train: Trainer, seed: int) -> Outcome:
    """Train one member on all rows and evaluate it by cross-validation: the variants `trees`, `mlp` and `mlp_paper`."""
    member = train(problem.features, problem.target, seed)
    out_of_fold, _ = cross_validate(problem, train, seed)
    return Outcome((member,), (1.0,), out_of_fold, {})


def fit_process(problem: Problem, seed: int) -> Outcome:
    """Fit Gaussian processes on all rows, one per fold, with hyperparameters found on all other folds.

    The out-of-fold prediction of a row comes from a process that was conditioned on the rows of the other folds.
    """

    def find_and_predict(
        features: Array, target: Array, seed: int, held_out: Array
    ) -> tuple[Hyperparameters, Array]:
        hyperparameters = find_hyperparameters(features, target, seed)
        return hyperparameters, train_gaussian_process(features, target, [hyperparameters]).predict(
            held_out
        )

    out_of_fold, settings = _fold_by_fold(problem, find_and_predict, seed)
    return Outcome(
        (train_gaussian_process(problem.features, problem.target, settings),),
        (1.0,),
        out_of_fold,
        {},
    )


TRIALS = 6
"""Number of settings that `search_recipe` tries."""


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
        recipe = with_steps(
            Recipe(
                width=int(rng.choice([64, 128, 256, 512])),
                layers=int(rng.integers(3, 8)),
                residual=False,
                learning_rate=float(10 ** rng.uniform(-4, -2)),
                weight_decay=0.0,
                loss="l2",
            ),
            len(problem.target),
            STEPS,
        )
        predicted = train_network(features, target, seed, recipe).predict(
            problem.features[held_out]
        )
        recipes.append(recipe)
        errors.append(gmae(np.exp(predicted), np.exp(problem.target[held_out])))
    return recipes[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]  # a network may have diverged


def fit_average(problem: Problem, seed: int) -> Outcome:
    """Trees and networks of the folds, averaged with the best out-of-fold weights, distilled into one network."""
    if len(problem.target) < MIN_NETWORK_SAMPLES:
        by_trees, trees = cross_validate(problem, train_trees, seed)
        return Outcome(
            tuple(trees), (1.0 / len(trees),) * len(trees), by_trees, {"tree_share": 1.0}
        )
    by_trees, trees = cross_validate(problem, train_trees, seed, AVERAGED_FOLDS)
    train = partial(train_network, recipe=member_recipe(len(problem.target)))
    by_networks, networks = cross_validate(problem, train, seed, AVERAGED_FOLDS)
    share = best_tree_share(problem.target, by_trees, by_networks)
    inputs = problem.featurise(synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed))
    labels = mix(share, mean_prediction(trees, inputs), mean_prediction(networks, inputs))
    student = train_network(
        np.vstack([problem.features] * LABEL_REPEATS + [inputs]),
        np.concatenate([problem.target] * LABEL_REPEATS + [labels]),
        seed,
        with_steps(STUDENT, len(problem.target), STUDENT_STEPS),
    )
    notes = {
        "tree_share": share,
        "student_mismatch": float(np.median(np.abs(student.predict(inputs) - labels))),
    }
    return Outcome((student,), (1.0,), mix(share, by_trees, by_networks), notes)


def best_tree_share(target: Array, by_trees: Array, by_networks: Array) -> float:
    """The weight of the trees with the smallest error of log times, on rows with predictions of both kinds."""
    known = np.isfinite(by_trees + by_networks)
    errors = {
        share: gmae(np.exp(mix(share, by_trees, by_networks)[known]), np.exp(target[known]))
        for share in TREE_SHARES
    }
    return min(errors, key=errors.__getitem__)


def mix(tree_share: float, by_trees: Array, by_networks: Array) -> Array:
    """The average of predictions by trees and by networks."""
    return np.asarray(tree_share * by_trees + (1.0 - tree_share) * by_networks)


def mean_prediction(members: Sequence[Member], inputs: Array) -> Array:
    """Mean of the members' predictions, shape (rows,)."""
    return np.asarray(np.mean([member.predict(inputs) for member in members], axis=0))


def synthetic_calls(calls: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Random calls with sizes near those of the samples and within their range; ops and windows are from samples."""
    rng = np.random.default_rng(seed)
    drawn = calls.iloc[rng.integers(0, len(calls), rows)].reset_index(drop=True)
    d = Dims(drawn)
    for name in drawn.select_dtypes("number").columns:
        values = d(name)
        if name in WINDOW_DIMS or name == "trans_a" or name == "trans_b" or not np.all(values > 0):
            continue
        moved = np.round(values * np.exp(rng.normal(0.0, JITTER, rows)))
        moved = np.where(rng.random(rows) < KEEP_SHARE, values, moved)
        drawn[name] = np.clip(moved, values.min(), values.max())
    return drawn
