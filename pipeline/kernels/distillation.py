"""Average trees and networks, and distil them into one network: variant `average`, and last step of `choice`.

The quick way has Gaussian processes in the place of the trees where there are few enough samples (`effort.py`). They
predict 15 times as fast, and for convolutions the error of the average is smaller.

The members of the cross-validation folds are averaged with the weights that minimise the out-of-fold error. One student
network then learns the labels of the samples, and the average's predictions at many sizes between them. The student is
as accurate as the average. It predicts a million calls in seconds, and its pack has a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.error_metrics import gmae
from pipeline.kernels.intervals import bagging_shrink
from pipeline.kernels.learned_variants import (
    FOLDS,
    SMALL_FAMILY_SAMPLES,
    Outcome,
    Problem,
    cross_validate,
    member_recipe,
    train_by_recipe,
    train_one_process,
)
from pipeline.kernels.network_training import train_network
from pipeline.kernels.networks import Network, Recipe
from pipeline.kernels.sample_range import WINDOW_DIMS
from pipeline.kernels.trees import train_fewer_trees, train_trees
from pipeline.kernels.work import Array, Dims

TREE_SHARES = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Candidate weights of the trees in the average; the one with the smallest out-of-fold error is taken."""

STUDENT_STEPS = 4500
"""Smallest number of the student's optimiser steps."""

SMALL_FAMILY_STUDENT_STEPS = 2250
"""The same for families with fewer than `SMALL_FAMILY_SAMPLES` samples.

GMAE on development shapes, in %, with 4500 and 2250 steps:

- layer norm: 0.44 and 0.41 on the V100, 0.62 and 0.59 to 0.61 on the A100;
- softmax: 0.43 and 0.44 on the V100, 0.82 and 0.78 on the A100;
- 1,500 convolutions on the V100: 7.55 and 7.60.
"""

SYNTHETIC_ROWS = 20_000
"""Number of sizes at which the average is evaluated for the student. With 30,000, the errors of layer norm, softmax and
convolutions are the same (`docs/notes/kernels.md`). Evaluating the trees takes an eighth of the time of a fit."""

JITTER = 0.25
"""Standard deviation, in log, of a synthetic size around a sample's size."""

KEEP_SHARE = 0.35
"""Probability that a synthetic row keeps a sampled dim, so that round, aligned sizes stay frequent."""

LABEL_REPEATS = 2
"""Number of copies of each sample in the student's training set, to which the synthetic rows are added."""

MIN_NETWORK_SAMPLES = 100
"""Samples below which only trees are trained."""


class Member(Protocol):
    """A model that predicts log times of shape (rows,) from features of shape (rows, columns)."""

    def predict(self, features: Array) -> Array:
        """Log times of shape (rows,)."""
        ...


def fit_average(problem: Problem, seed: int) -> Outcome:
    """Trees and networks of the folds, averaged with the best out-of-fold weights, distilled into one network."""
    effort, rows = problem.effort, len(problem.target)
    recipe = member_recipe(rows, problem.law, effort=effort)
    if rows < MIN_NETWORK_SAMPLES:
        by_trees, trees = cross_validate(problem, train_trees, seed)
        return Outcome(tuple(trees), (1.0 / len(trees),) * len(trees), by_trees, 1.0, {"tree_share": 1.0})
    train = (
        train_one_process if rows <= effort.gaussian_process_samples else partial(train_fewer_trees, effort.tree_rounds)
    )
    few = rows < SMALL_FAMILY_SAMPLES
    tree_folds, network_folds = (FOLDS, FOLDS) if few else (effort.folds, effort.network_folds)
    by_trees, trees = cross_validate(problem, train, seed, tree_folds)
    by_networks, networks = cross_validate(
        problem, partial(train_by_recipe, effort.member(recipe)), seed, network_folds
    )
    shares, out_of_fold = Shares.best(problem, by_trees, by_networks)
    student = effort.student(student_recipe(recipe, few))
    invented = synthetic_calls(problem.calls, int(effort.synthetic_rows * SYNTHETIC_ROWS), seed)
    teachers, inputs = Teachers(trees, networks, shares), problem.featurise(invented)
    student_data = StudentData(problem.features, problem.target, inputs, teachers.times(problem, invented, inputs))
    return distil(problem, student_data, teachers, out_of_fold, seed, student)


def student_recipe(recipe: Recipe, few: bool = False) -> Recipe:
    """Recipe of the student of members with that recipe, in the long way: the same width, more steps."""
    least = SMALL_FAMILY_STUDENT_STEPS if few else STUDENT_STEPS
    steps = max(recipe.steps, least)
    return Recipe(recipe.width, recipe.layers, steps=steps, frequencies=recipe.frequencies)


@dataclass(frozen=True)
class Shares:
    """Weights of trees in the average: for calls at the latency floor, and for calls above it."""

    floor: float
    above: float

    def mix(self, at_floor: npt.NDArray[np.bool_], by_trees: Array, by_networks: Array) -> Array:
        """The average, shape (..., rows)."""
        share = np.where(at_floor, self.floor, self.above)
        return np.asarray(share * by_trees + (1.0 - share) * by_networks)

    @classmethod
    def best(cls, problem: Problem, by_trees: Array, by_networks: Array) -> tuple[Shares, Array]:
        """The weights with the smallest error on rows with out-of-fold predictions of both kinds, and the average."""
        known = np.isfinite(by_networks)
        at_floor = problem.at_floor(problem.calls, (by_trees + by_networks) / 2.0)
        shares = cls(
            *(_best_share(problem.target, by_trees, by_networks, known & rows) for rows in (at_floor, ~at_floor))
        )
        return shares, shares.mix(at_floor, by_trees, by_networks)


def _best_share(target: Array, by_trees: Array, by_networks: Array, rows: npt.NDArray[np.bool_]) -> float:
    """The weight of trees with the smallest error on `rows`; 0.5 where there are none."""
    if not rows.any():
        return 0.5
    actual = np.exp(target[rows])
    errors = {
        share: gmae(np.exp(share * by_trees[rows] + (1.0 - share) * by_networks[rows]), actual) for share in TREE_SHARES
    }
    return min(errors, key=errors.__getitem__)


@dataclass(frozen=True)
class TeacherTimes:
    """Log times from teachers: their average, shape (rows,), and that of each fold with both kinds of members, shape
    (folds, rows).
    """

    mean: Array
    by_fold: Array


@dataclass(frozen=True)
class Teachers:
    """Members of the folds, and the weights of their average."""

    trees: Sequence[Member]
    networks: Sequence[Member]
    shares: Shares

    def times(self, problem: Problem, calls: pd.DataFrame, inputs: Array) -> TeacherTimes:
        """The teachers' log times of calls, from the inputs of their members, shape (rows, columns)."""
        members = [*self.trees, *self.networks]
        by_member = np.array(problem.training_pool.all(_member_predictions, [(member, inputs) for member in members]))
        by_trees, by_networks = by_member[: len(self.trees)], by_member[len(self.trees) :]
        means = by_trees.mean(axis=0), by_networks.mean(axis=0)
        at_floor = problem.at_floor(calls, (means[0] + means[1]) / 2.0)
        each = self.shares.mix(at_floor, by_trees[: len(by_networks)], by_networks)
        return TeacherTimes(self.shares.mix(at_floor, *means), each)


def _member_predictions(member: Member, inputs: Array) -> Array:
    return member.predict(inputs)


@dataclass(frozen=True)
class StudentData:
    """Training data of a student: inputs and log times of samples, and inputs of synthetic calls with their labels."""

    inputs: Array
    target: Array
    synthetic_inputs: Array
    labels: TeacherTimes


def distil(
    problem: Problem, student_data: StudentData, teachers: Teachers, out_of_fold: Array, seed: int, recipe: Recipe
) -> Outcome:
    """Train one network that replaces the teachers' average; the quick way starts from one of them (`effort.py`)."""
    labels = student_data.labels
    inputs = np.vstack([student_data.inputs] * LABEL_REPEATS + [student_data.synthetic_inputs])
    targets = np.concatenate([student_data.target] * LABEL_REPEATS + [labels.mean])
    start = next((m for m in teachers.networks if _has_form(m, recipe)), None) if problem.effort.warm_student else None
    student = problem.training_pool.start(train_network, inputs, targets, recipe, seed, start)()
    mismatch = student.predict(student_data.synthetic_inputs) - labels.mean
    known = np.isfinite(out_of_fold)
    shrink = bagging_shrink((problem.target - out_of_fold)[known], labels.by_fold, mismatch)
    if len(problem.target) < SMALL_FAMILY_SAMPLES:
        shrink = max(shrink, 1.0)  # at 0.95, intervals of layer norm held 69 to 73 % of new development shapes
    notes = {
        "tree_share_floor": teachers.shares.floor, "tree_share": teachers.shares.above,
        "student_mismatch": float(np.median(np.abs(mismatch))), "shrink": shrink,
    }  # fmt: skip
    return Outcome((student,), (1.0,), out_of_fold, shrink, notes)


def _has_form(member: Member, recipe: Recipe) -> bool:
    """Whether a member has the inputs, width and layers that a student of that recipe has."""
    return isinstance(member, Network) and recipe.has_form(member)


def synthetic_calls(calls: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Random calls with sizes near those of the samples and within their range; ops and windows are from samples."""
    rng = np.random.default_rng(seed)
    chosen = calls.iloc[rng.integers(0, len(calls), rows)].reset_index(drop=True)
    d = Dims(chosen)
    for name in chosen.select_dtypes("number").columns:
        values = d(name)
        if name in WINDOW_DIMS or name == "trans_a" or name == "trans_b" or not np.all(values > 0):
            continue
        moved = np.round(values * np.exp(rng.normal(0.0, JITTER, rows)))
        moved = np.where(rng.random(rows) < KEEP_SHARE, values, moved)
        chosen[name] = np.clip(moved, values.min(), values.max())
    return chosen
