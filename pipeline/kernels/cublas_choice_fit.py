"""Train the two networks of a chosen kernel; see `choice`.

Which kernel ran, and how long it took, are learned from the same few thousand samples, so that every part is learned
several times, on folds, and averaged; one network for the choice and one for the time then learn what the averages say
at many more sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeline.kernels.cublas_choice import ChosenKernel, Labels, Menu, Observed
from pipeline.kernels.cublas_choice_teachers import train_teacher
from pipeline.kernels.distillation import (
    LABEL_REPEATS,
    Lesson,
    Shares,
    Teachers,
    distil,
    student_recipe,
    synthetic_calls,
)
from pipeline.kernels.learned_variants import FREQUENCIES, Outcome, Problem, member_recipe
from pipeline.kernels.networks import Float32, Network, Recipe, train_network
from pipeline.kernels.samples import assign_folds
from pipeline.kernels.trees import Trees, train_trees
from pipeline.kernels.work import Array

FOLDS = 8
"""More than in `learned`: with the kernel known, more samples and more members still help (V100, ensembles on two splits
by shape: 2.02 % GMAE with five folds, 1.96 with ten)."""

WAVY = (128, 4)
"""Width and layers of the networks of odd folds, which see sines and cosines of their inputs. On the V100 they err as
much as plain ones, but elsewhere (two splits by shape, with trees in the mean: eight plain networks 1.87 %, four of each
1.83, eight of each 1.86); on A100, P4 and T4, told the kernel, by 6 to 11 % more than plain ones (one development split)."""

SYNTHETIC_ROWS = 30_000
"""Sizes at which teachers are asked, more than in `distil`: kernels change from one size to the next, and with 20,000 products
err more on unseen shapes, though the teachers do not (one development split: V100 1.83 and 1.97 %, A100 1.80 and 1.84)."""

CHOOSER = Recipe(
    width=256, layers=3, steps=4000, weight_decay=0.05, loss="odds", frequencies=4, units=4
)  # fmt: skip
"""Network that learns what the teachers say: right in 69 % of the V100's unseen shapes, they in 70. Without sines and
cosines 67, trained for three times as long no better, the scorer's own form 61 to 65."""

SHARPER = 2.0
"""Power of the odds that it learns: only the likeliest choice is asked for in the end."""


def fit_choice(problem: Problem, observed: Observed, seed: int) -> Outcome:
    """Per fold a teacher of the choice, and trees and a network that know it; of these one network each in the end.

    On rows that a fold has not seen, its members are told the teacher's choice, not the one that was made.
    """
    menu, made = observed.menu, observed.choice
    recipe = member_recipe(len(problem.target), problem.law)
    width, layers = WAVY
    wavy = replace(recipe, width=width, layers=layers, frequencies=FREQUENCIES)
    # a plain student loses what wavy teachers know: 1.86 and 1.99 % on two splits of the V100, they 1.85 and 1.88
    student = replace(student_recipe(recipe), frequencies=FREQUENCIES)
    known = made >= 0  # other rows are predicted, and learned from by nobody
    told = menu.inputs(problem.features, made)
    invented = synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed)
    features = problem.featurise(invented)
    folds = assign_folds(problem.calls, FOLDS, seed)
    numbers = np.unique(folds)
    calls = []
    for number in numbers:
        held = folds == number
        fit = ~held & known
        seen = Seen(problem.features[fit], told[fit], made[fit], problem.target[fit])
        kind = recipe if number % 2 == 0 else wavy
        calls.append((menu, seen, kind, seed + int(number), problem.features[held], features))
    by_trees, by_networks = np.full(len(made), np.nan), np.full(len(made), np.nan)
    right = []
    members = problem.crew.all(_train_fold, calls)
    for number, found in zip(numbers, members, strict=True):
        held = folds == number
        by_trees[held], by_networks[held] = found.by_trees, found.by_network
        right.append(found.choice == made[held])
    shares, unseen = Shares.best(problem, by_trees, by_networks)
    likely = np.mean([found.odds for found in members], axis=0)
    chooser = problem.crew.start(_train_chooser, menu, problem.features[known], made[known], features, likely, seed)
    asked = menu.inputs(features, _drawn(likely, seed))
    lesson = Lesson(told[known], problem.target[known], invented, asked)
    teachers = Teachers([found.trees for found in members], [found.network for found in members], shares)
    taught = distil(problem, lesson, teachers, unseen, seed, student)
    network = taught.members[0]
    assert isinstance(network, Network)
    notes = {"choices": float(len(menu.choices)), "choices_right": float(np.mean(np.concatenate(right)))}
    return Outcome((ChosenKernel(menu, chooser(), network),), (1.0,), unseen, taught.shrink, taught.notes | notes)


@dataclass(frozen=True)
class Seen:
    """What a fold's members learn from: features, the same and what the choice makes of them, choices, log times (rows,)."""

    features: Array
    told: Array
    made: Labels
    target: Array


@dataclass(frozen=True)
class FoldMembers:
    """A fold's members, what they say of the fold's own rows, and the odds of every choice at invented sizes."""

    trees: Trees
    network: Network
    choice: Labels
    by_trees: Array
    by_network: Array
    odds: Float32


def _train_fold(menu: Menu, seen: Seen, kind: Recipe, seed: int, held: Array, invented: Array) -> FoldMembers:
    """Train on what was seen; `held` are features of the fold's rows, `invented` of other sizes."""
    teacher = train_teacher(menu, seen.features, seen.made, seed)
    trees = train_trees(seen.told, seen.target, seed)
    network = train_network(seen.told, seen.target, kind, seed)
    choice = teacher.odds(menu, held).argmax(axis=1)
    asked = menu.inputs(held, choice)
    return FoldMembers(
        trees, network, choice, trees.predict(asked), network.predict(asked), teacher.odds(menu, invented)
    )


def _train_chooser(menu: Menu, sampled: Array, made: Labels, invented: Array, likely: Float32, seed: int) -> Network:
    """Learn choices that were made, shape (samples,), and what teachers say of invented sizes, shape (rows, choices)."""
    sharp = likely**SHARPER
    odds = np.vstack([
        *[np.eye(len(menu.choices), dtype=np.float32)[made]] * LABEL_REPEATS, sharp / sharp.sum(axis=1, keepdims=True)
    ])  # fmt: skip
    inputs = np.vstack([*[menu.sizes(sampled)] * LABEL_REPEATS, menu.sizes(invented)])
    return train_network(inputs, odds.astype(np.float32), CHOOSER, seed)


def _drawn(odds: Float32, seed: int) -> Labels:
    """One choice per row, drawn by its odds: a student meets the likely ones of each size, not the likeliest alone."""
    sums = np.cumsum(odds, axis=1)
    at = np.random.default_rng(seed).random((len(odds), 1)) * sums[:, -1:]
    return np.asarray(np.minimum((sums < at).sum(axis=1), odds.shape[1] - 1), dtype=np.int64)
