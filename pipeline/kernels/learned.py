"""Learned variants: how members are trained, judged on rows they have not seen, averaged, and distilled.

`auto` trains trees and networks on cross-validation folds, averages the two in the proportion that the out-of-fold
errors favour, and distils the ensemble into one small network: it learns the true labels of the samples and the
ensemble's answers at many sizes between them. That keeps the accuracy, predicts a million calls in seconds, and makes
a pack of a few hundred kilobytes.

Few samples are learned with Gaussian processes instead (`process.py`), which err less there and take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.choice import ChosenKernel
from pipeline.kernels.evaluate import gmae
from pipeline.kernels.families import Law
from pipeline.kernels.networks import Network, Recipe, train_network
from pipeline.kernels.parallel import Crew
from pipeline.kernels.process import Process, Settings, find_settings, train_process
from pipeline.kernels.trees import Trees, train_trees
from pipeline.kernels.work import Array, Dims

FOLDS = 5
"""Cross-validation folds of the trees."""

NETWORK_FOLDS = 3
"""Folds that networks are trained for, of the five; rows of the others have no unseen prediction of a network. Families
of few samples train for all five."""

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

TREE_SHARES = (0.0, 0.2, 0.35, 0.5, 0.7, 1.0)
"""Proportions of trees in the average that out-of-fold errors choose from."""

EPOCHS = 120
"""Passes over the samples that a member network trains for, within `STEPS`."""

STEPS = (1200, 4500)
"""Least and most optimiser steps of a member network."""

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


class Member(Protocol):
    """What predicts log times of shape (rows,) from features of shape (rows, columns)."""

    def predict(self, features: Array) -> Array:
        """The log times."""
        ...


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


def _network(recipe: Recipe, features: Array, target: Array, seed: int) -> Network:
    return train_network(features, target, recipe, seed)


def fit_single(problem: Problem, train: Trainer, seed: int) -> Outcome:
    """One member on all rows, judged by cross-validation: the variants `trees`, `mlp` and `mlp_paper`."""
    member = problem.crew.start(train, problem.features, problem.target, seed)
    unseen, _ = cross_validate(problem, train, seed)
    return Outcome((member(),), (1.0,), unseen, 1.0, {})


def fit_trees(problem: Problem, seed: int) -> Outcome:
    """Boosted trees alone."""
    return fit_single(problem, train_trees, seed)


def fit_network(problem: Problem, seed: int, recipe: Recipe | None = None) -> Outcome:
    """One network alone."""
    chosen = member_recipe(len(problem.target), problem.law, recipe)
    return fit_single(problem, partial(_network, chosen), seed)


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


def fit_average(problem: Problem, seed: int, student: Recipe | None = None) -> Outcome:
    """Trees and networks on folds, averaged as out-of-fold errors favour, distilled into one network."""
    recipe = member_recipe(len(problem.target), problem.law)
    by_trees, trees = cross_validate(problem, train_trees, seed)
    if len(problem.target) < FEWEST_FOR_NETWORKS:
        return Outcome(tuple(trees), (1.0 / len(trees),) * len(trees), by_trees, 1.0, {"tree_share": 1.0})
    folds = FOLDS if len(problem.target) < FEW_ROWS else NETWORK_FOLDS
    by_networks, networks = cross_validate(problem, partial(_network, recipe), seed, folds)
    shares, unseen = Shares.best(problem, by_trees, by_networks)
    chosen = student or student_recipe(recipe, few=len(problem.target) < FEW_ROWS)
    invented = synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed)
    lesson = Lesson(problem.features, problem.target, invented, problem.featurise(invented))
    return distil(problem, lesson, Teachers(trees, networks, shares), unseen, seed, chosen)


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
    from pipeline.kernels.intervals import bagging_shrink

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
    from pipeline.kernels.scope import WINDOW

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
        _judged, [(partial(_network, recipe), features, target, seed, asked) for recipe in recipes]
    )
    errors = [gmae(np.exp(found), np.exp(problem.target[held])) for _, found in answers]
    return recipes[int(np.argmin(np.nan_to_num(errors, nan=np.inf)))]  # a network may have diverged


def search_paper(problem: Problem, seed: int, trials: int = 6) -> tuple[Outcome, Recipe]:
    """The paper's MLP on log sizes, as `search_recipe` finds it."""
    found = search_recipe(problem, seed, trials)
    return fit_single(problem, partial(_network, found), seed), found
