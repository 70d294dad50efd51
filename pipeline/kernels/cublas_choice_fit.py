"""Learn which kernel the library runs for a product, and how long that kernel takes.

The choice and the time are learned from the same few thousand samples. Members are therefore trained on folds and
averaged: a forest rates the kernels on the menu, trees and a network predict the time of a kernel. One small network
then learns the samples, and the time of the likeliest kernel at many more sizes (`cublas_choice.TileNetwork`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.kernels import learned_variants as learned
from pipeline.kernels.cublas_choice import Labels, Menu, ObservedChoices, TileNetwork
from pipeline.kernels.learned_variants import Outcome, Problem
from pipeline.kernels.network_training import Recipe, train_network
from pipeline.kernels.networks import Float32, Network, Trees, train_trees
from pipeline.kernels.samples import assign_folds
from pipeline.kernels.work import Array

FOLDS, AVERAGED_FOLDS = 8, 4
"""Number of folds, and of folds for which members are trained: larger ones than in `learned_variants`."""

FOREST: dict[str, Any] = {"n_estimators": 100, "max_features": 0.5, "n_jobs": 1}
"""Settings of the forests that rate kernels. They are right for 66 % of the V100's unseen shapes."""

SYNTHETIC_ROWS = 100_000
"""Number of sizes for the small network, more than in `learned_variants`: kernels change from one size to the next."""

SAMPLE_COPIES = 8
"""Copies of each sample among these sizes."""

STUDENT = Recipe(width=128, layers=3, steps=8000, batch=512, relu=True)
"""Recipe of the small network."""


@dataclass(frozen=True)
class FoldMembers:
    """Members of a fold, and their predictions for its held-out rows, shape (rows,)."""

    forest: Any
    trees: Trees
    network: Network
    choice: Labels
    by_trees: Array
    by_network: Array


def fit_choice(problem: Problem, observed: ObservedChoices, seed: int) -> Outcome:
    """Train members per fold and distil them into one network.

    Out-of-fold predictions of the time use the predicted choice, not the true one.
    """
    menu, choices = observed.menu, observed.choice
    folds = assign_folds(problem.calls, FOLDS, seed)
    by_trees, by_networks = np.full(len(choices), np.nan), np.full(len(choices), np.nan)
    members, is_right = [], []
    for number in np.unique(folds)[:AVERAGED_FOLDS]:
        held_out = folds == number
        member = _train_fold(problem, observed, held_out, seed + int(number))
        by_trees[held_out], by_networks[held_out] = member.by_trees, member.by_network
        is_right.append(member.choice == choices[held_out])
        members.append(member)
    share = learned.best_tree_share(problem.target, by_trees, by_networks)
    features = problem.featurise(learned.synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed))
    sizes = menu.sizes(features).astype(np.float32)
    likeliest = np.sum([choice_odds(menu, member.forest, sizes) for member in members], axis=0).argmax(axis=1)
    inputs = menu.inputs(features, likeliest)
    labels = learned.mix(
        share,
        learned.mean_prediction([member.trees for member in members], inputs),
        learned.mean_prediction([member.network for member in members], inputs),
    )
    sampled = menu.sizes(problem.features).astype(np.float32)
    student = train_network(
        np.vstack([sampled] * SAMPLE_COPIES + [sizes]),
        np.concatenate([problem.target] * SAMPLE_COPIES + [labels]),
        seed, STUDENT,
    )  # fmt: skip
    notes = {
        "choices": float(len(menu.choices)), "choices_right": float(np.mean(np.concatenate(is_right))),
        "tree_share": share, "student_mismatch": float(np.median(np.abs(student.predict(sizes) - labels))),
    }  # fmt: skip
    return Outcome((TileNetwork(menu, student),), (1.0,), learned.mix(share, by_trees, by_networks), notes)


def _train_fold(problem: Problem, observed: ObservedChoices, held_out: npt.NDArray[np.bool_], seed: int) -> FoldMembers:
    """Train on the rows that are not held out and whose kernel is known."""
    from sklearn.ensemble import ExtraTreesClassifier

    menu, rows = observed.menu, ~held_out & (observed.choice >= 0)
    features, choices, target = problem.features[rows], observed.choice[rows], problem.target[rows]
    forest = ExtraTreesClassifier(random_state=seed, **FOREST).fit(menu.sizes(features).astype(np.float32), choices)
    inputs = menu.inputs(features, choices)
    trees = train_trees(inputs, target, seed)
    network = train_network(inputs, target, seed, learned.member_recipe(len(target)))
    unseen = problem.features[held_out]
    predicted = choice_odds(menu, forest, menu.sizes(unseen).astype(np.float32)).argmax(axis=1)
    unseen_inputs = menu.inputs(unseen, predicted)
    return FoldMembers(forest, trees, network, predicted, trees.predict(unseen_inputs), network.predict(unseen_inputs))


def choice_odds(menu: Menu, forest: Any, sizes: Float32) -> Float32:
    """Probability of every choice on the menu, shape (rows, choices), from `Menu.sizes`."""
    odds = np.zeros((len(sizes), len(menu.choices)), dtype=np.float32)
    odds[:, forest.classes_] = forest.predict_proba(sizes)
    return odds
