"""Trees and networks, averaged and distilled into one small network: the variant `average`, and the end of `choice`.

Members of cross-validation folds are averaged in the proportion that the out-of-fold errors favour. One student learns the
true labels of the samples and the average's answers at many sizes between them: that keeps the accuracy, predicts a million
calls in seconds, and makes a pack of a few hundred kilobytes.
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
    FEW_ROWS,
    FOLDS,
    Outcome,
    Problem,
    cross_validate,
    member_recipe,
    train_by_recipe,
)
from pipeline.kernels.networks import Recipe, train_network
from pipeline.kernels.sample_range import WINDOW
from pipeline.kernels.trees import train_trees
from pipeline.kernels.work import Array, Dims

NETWORK_FOLDS = 3
"""Folds that networks are trained for, of the five; rows of the others have no unseen prediction of a network. Families
of few samples train for all five."""

TREE_SHARES = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Proportions of trees in the average that out-of-fold errors choose from."""

STUDENT_STEPS = 4500
"""Least steps of the student, ..."""

FEW_STUDENT_STEPS = 2250
"""... and of one whose teachers learned from few samples: with 4500 it errs as much or more (development shapes: layer norm of
the V100 0.44 and 0.41 %, of the A100 0.62 and 0.59 to 0.61, softmax 0.43 and 0.44, 0.82 and 0.78; 1,500 convolutions of the
V100 7.55 and 7.60)."""

SYNTHETIC_ROWS = 20_000
"""Sizes at which the ensemble teaches the student. Trees that answer take an eighth of a fit; with 30,000 of them, layer norm,
softmax and convolutions err as much (`docs/notes/kernels.md`)."""

JITTER = 0.25
"""Standard deviation, in log, of a synthetic size around a sample's."""

KEEP_SHARE = 0.35
"""Probability that a synthetic row keeps a dim, so that round sizes and their alignment stay frequent."""

LABEL_REPEATS = 2
"""How often the student sees each sample's own label beside the synthetic rows."""

FEWEST_FOR_NETWORKS = 100
"""Samples below which only trees are trained; a network needs more."""


class Member(Protocol):
    """What predicts log times of shape (rows,) from features of shape (rows, columns)."""

    def predict(self, features: Array) -> Array:
        """The log times."""
        ...


def fit_average(problem: Problem, seed: int) -> Outcome:
    """Trees and networks on folds, averaged as out-of-fold errors favour, distilled into one network."""
    recipe = member_recipe(len(problem.target), problem.law)
    by_trees, trees = cross_validate(problem, train_trees, seed)
    if len(problem.target) < FEWEST_FOR_NETWORKS:
        return Outcome(tuple(trees), (1.0 / len(trees),) * len(trees), by_trees, 1.0, {"tree_share": 1.0})
    folds = FOLDS if len(problem.target) < FEW_ROWS else NETWORK_FOLDS
    by_networks, networks = cross_validate(problem, partial(train_by_recipe, recipe), seed, folds)
    shares, unseen = Shares.best(problem, by_trees, by_networks)
    student = student_recipe(recipe, few=len(problem.target) < FEW_ROWS)
    invented = synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed)
    lesson = Lesson(problem.features, problem.target, invented, problem.featurise(invented))
    return distil(problem, lesson, Teachers(trees, networks, shares), unseen, seed, student)


def student_recipe(recipe: Recipe, few: bool = False) -> Recipe:
    """Recipe of the network that learns from members of that recipe: as wide, and trained for longer."""
    least = FEW_STUDENT_STEPS if few else STUDENT_STEPS
    return Recipe(recipe.width, recipe.layers, steps=max(recipe.steps, least), frequencies=recipe.frequencies)


@dataclass(frozen=True)
class Shares:
    """Proportions of trees in the average: for calls that the floor hides, and for those above it."""

    floor: float
    above: float

    def mix(self, at_floor: npt.NDArray[np.bool_], by_trees: Array, by_networks: Array) -> Array:
        """The average, shape (..., rows)."""
        share = np.where(at_floor, self.floor, self.above)
        return np.asarray(share * by_trees + (1.0 - share) * by_networks)

    @classmethod
    def best(cls, problem: Problem, by_trees: Array, by_networks: Array) -> tuple[Shares, Array]:
        """The proportions with the least error on rows that both have predicted unseen, and their average."""
        known = np.isfinite(by_networks)
        at_floor = problem.at_floor(problem.calls, (by_trees + by_networks) / 2.0)
        shares = cls(
            *(_best_share(problem.target, by_trees, by_networks, known & rows) for rows in (at_floor, ~at_floor))
        )
        return shares, shares.mix(at_floor, by_trees, by_networks)


def _best_share(target: Array, by_trees: Array, by_networks: Array, rows: npt.NDArray[np.bool_]) -> float:
    """The proportion of trees with the least error on rows; half where there are none."""
    if not rows.any():
        return 0.5
    actual = np.exp(target[rows])
    errors = {
        share: gmae(np.exp(share * by_trees[rows] + (1.0 - share) * by_networks[rows]), actual) for share in TREE_SHARES
    }
    return min(errors, key=errors.__getitem__)


@dataclass(frozen=True)
class Teachers:
    """Members of the folds, and the proportions of their average."""

    trees: Sequence[Member]
    networks: Sequence[Member]
    shares: Shares

    def answers(self, problem: Problem, calls: pd.DataFrame, inputs: Array) -> tuple[Array, Array]:
        """The average, shape (rows,), and that of each fold with both kinds of members, shape (folds, rows)."""
        members = [*self.trees, *self.networks]
        each_says = np.array(problem.crew.all(_says, [(member, inputs) for member in members]))
        by_trees, by_networks = each_says[: len(self.trees)], each_says[len(self.trees) :]
        means = by_trees.mean(axis=0), by_networks.mean(axis=0)
        at_floor = problem.at_floor(calls, (means[0] + means[1]) / 2.0)
        each = self.shares.mix(at_floor, by_trees[: len(by_networks)], by_networks)
        return self.shares.mix(at_floor, *means), each


def _says(member: Member, inputs: Array) -> Array:
    return member.predict(inputs)


@dataclass(frozen=True)
class Lesson:
    """What a student learns from: samples with their labels, and calls at which the teachers answer."""

    inputs: Array
    target: Array
    calls: pd.DataFrame
    asked: Array  # inputs of `calls`


def distil(problem: Problem, lesson: Lesson, teachers: Teachers, unseen: Array, seed: int, recipe: Recipe) -> Outcome:
    """One network that answers as the teachers' average does, in their place."""
    taught, answers = teachers.answers(problem, lesson.calls, lesson.asked)
    inputs = np.vstack([lesson.inputs] * LABEL_REPEATS + [lesson.asked])
    targets = np.concatenate([lesson.target] * LABEL_REPEATS + [taught])
    student = problem.crew.start(train_network, inputs, targets, recipe, seed)()
    mismatch = student.predict(lesson.asked) - taught
    known = np.isfinite(unseen)
    shrink = bagging_shrink((problem.target - unseen)[known], answers, mismatch)
    if len(problem.target) < FEW_ROWS:
        shrink = max(shrink, 1.0)  # at 0.95, intervals of layer norm held 69 to 73 % of new development shapes
    notes = {
        "tree_share_floor": teachers.shares.floor, "tree_share": teachers.shares.above,
        "student_mismatch": float(np.median(np.abs(mismatch))), "shrink": shrink,
    }  # fmt: skip
    return Outcome((student,), (1.0,), unseen, shrink, notes)


def synthetic_calls(calls: pd.DataFrame, rows: int, seed: int) -> pd.DataFrame:
    """Calls at sizes around those of the samples, within their range; ops and windows as sampled, shape (rows, ...)."""
    rng = np.random.default_rng(seed)
    chosen = calls.iloc[rng.integers(0, len(calls), rows)].reset_index(drop=True)
    d = Dims(chosen)
    for name in chosen.select_dtypes("number").columns:
        values = d(name)
        if name in WINDOW or name == "trans_a" or name == "trans_b" or not np.all(values > 0):
            continue
        moved = np.round(values * np.exp(rng.normal(0.0, JITTER, rows)))
        moved = np.where(rng.random(rows) < KEEP_SHARE, values, moved)
        chosen[name] = np.clip(moved, values.min(), values.max())
    return chosen
