"""Learn which kernel the library runs for a product, and how long that kernel takes.

The choice and the time are learned from the same few thousand samples. Teachers are therefore trained on folds and
averaged. Two networks then learn the averages' predictions at many more sizes: one the choice, one the time. They are
large and slow, so one small network learns their predictions in the end (`tile_network`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.kernels.cublas_choice import Labels, Menu, ObservedChoices, TileNetwork
from pipeline.kernels.cublas_choice_teachers import train_teacher
from pipeline.kernels.distillation import (
    LABEL_REPEATS,
    Shares,
    StudentData,
    Teachers,
    distil,
    student_recipe,
    synthetic_calls,
)
from pipeline.kernels.effort import Effort
from pipeline.kernels.learned_variants import INPUT_FREQUENCIES, Outcome, Problem, member_recipe
from pipeline.kernels.network_training import train_network
from pipeline.kernels.networks import Float32, Network, Recipe
from pipeline.kernels.samples import assign_folds
from pipeline.kernels.tile_network_fit import RECIPE, SIZES, KnownTimes, train_tile_network
from pipeline.kernels.trees import Trees, train_fewer_trees
from pipeline.kernels.work import Array

FOLDS = 8
"""Number of folds, more than in `learned_variants`, because more samples and members still reduce the error here.

With the kernel known (V100, averages on two splits by shape), GMAE is 2.02 % with five folds and 1.96 % with ten."""

PERIODIC_WIDTH = (128, 4)
"""Width and layers of the networks of odd folds, whose inputs include sines and cosines (periodic networks).

Both kinds of networks together have a smaller error than one kind. On the V100 (two splits by shape, trees in the
average), eight plain networks give 1.87 %, four of each kind 1.83 %, and eight of each kind 1.86 %. Alone, with the
kernel known, the error of periodic networks is 6 to 11 % larger than that of plain ones on A100, P4 and T4 (one
development split)."""

SYNTHETIC_ROWS = 30_000
"""Number of sizes for the teachers, more than in `distillation`: kernels change from one size to the next.

With 30,000 and 20,000 sizes, the student's error is 1.83 and 1.97 % on the V100, and 1.80 and 1.84 % on the A100 (one
development split)."""

CHOOSER = Recipe(
    width=256, layers=3, steps=4000, weight_decay=0.05, loss="odds", frequencies=4, units=4
)  # fmt: skip
"""Recipe of the network that learns the teachers' choices.

It is right for 69 % of the V100's unseen shapes, and the teachers for 70 %. Without sines and cosines it is right for
67 %. A network in the form of the scorer is right for 61 to 65 %. Training three times as long did not help."""

NARROW_CHOOSER = replace(CHOOSER, width=128, learning_rate=5e-3)
"""The same in the quick way.

With a width of 128 instead of 256, the error of both networks is 1.82 instead of 1.81 % with the same rate (V100 and A100,
two splits each). The higher rate makes up for it."""

SAMPLE_COPIES, LABEL_COPIES = 24, 12
"""Copies of each sample, and of each size that the teachers label, among the 600,000 sizes of the last network.

Without them, its error is 1.03 times that of the two networks that it learns from. With the samples alone it is 1.015 times,
with both 1.005 times. Twice as many give 1.01 times (V100 and A100, two splits and three seeds each)."""

SHARPENING_POWER = 2.0
"""Power applied to the probabilities that the network learns, because only the most probable choice is used."""


@dataclass(frozen=True)
class ChosenKernel:
    """Predicts which kernel runs, then the time of that kernel.

    Attributes:
        menu: the possible choices.
        chooser: network from `Menu.sizes` to a score for each choice.
        network: network from `Menu.inputs` to log time.
    """

    menu: Menu
    chooser: Network
    network: Network

    def choose(self, features: Array, table_rows: int = 0) -> Labels:
        """The most probable choice of each row, shape (rows,); `table_rows` as in `Network.scores`."""
        return np.asarray(self.chooser.scores(self.menu.sizes(features), table_rows).argmax(axis=1), dtype=np.int64)

    def predict(self, features: Array, table_rows: int = 0) -> Array:
        """Log times of shape (rows,) from features of shape (rows, columns); `table_rows` as in `Network.scores`."""
        return self.network.predict(self.menu.inputs(features, self.choose(features, table_rows)), table_rows)


def fit_choice(problem: Problem, observed: ObservedChoices, seed: int) -> Outcome:
    """Train a teacher of the choice, and trees and a network of the time, per fold; distil all into one network.

    Out-of-fold predictions of the time use the teacher's choice, not the true one.
    """
    menu, choices = observed.menu, observed.choice
    effort = problem.effort
    recipe = member_recipe(len(problem.target), problem.law, effort=effort)
    width, layers = PERIODIC_WIDTH
    periodic = replace(recipe, width=width, layers=layers, frequencies=INPUT_FREQUENCIES)
    # without sines, a student's error is larger than its teachers': on two splits of the V100, 1.86 and 1.99 %
    # against 1.85 and 1.88 %
    student = replace(effort.choice_student(student_recipe(recipe)), frequencies=INPUT_FREQUENCIES)
    if effort.warm_student:
        student = replace(student, width=width, layers=layers)
    known = choices >= 0  # other rows are predicted but not trained on
    choice_inputs = menu.inputs(problem.features, choices)
    synthetic = synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed)
    features = problem.featurise(synthetic)
    folds = assign_folds(problem.calls, FOLDS, seed)
    numbers = np.unique(folds)[: effort.choice_folds]
    calls = []
    for number in numbers:
        held = folds == number
        fit = ~held & known
        samples = FoldSamples(problem.features[fit], choice_inputs[fit], choices[fit], problem.target[fit])
        # narrow networks are all periodic: plain ones of that width predict worse
        plain = number % 2 == 0 and not effort.narrow_networks
        kind = effort.member(recipe if plain else periodic)
        calls.append((
            menu, samples, kind, effort, seed + int(number), problem.features[held], features
        ))  # fmt: skip
    by_trees, by_networks = np.full(len(choices), np.nan), np.full(len(choices), np.nan)
    right = []
    members = problem.training_pool.all(_train_fold, calls)
    for number, found in zip(numbers, members, strict=True):
        held = folds == number
        by_trees[held], by_networks[held] = found.by_trees, found.by_network
        right.append(found.choice == choices[held])
    shares, out_of_fold = Shares.best(problem, by_trees, by_networks)
    mean_probabilities = np.mean([found.probabilities for found in members], axis=0)
    chooser = problem.training_pool.start(
        _train_chooser,
        menu,
        problem.features[known],
        choices[known],
        features,
        mean_probabilities,
        effort.choice_student(NARROW_CHOOSER if effort.narrow_networks else CHOOSER),
        seed,
    )
    drawn = _draw_choices(mean_probabilities, seed)
    synthetic_inputs = menu.inputs(features, drawn)
    teachers = Teachers([found.trees for found in members], [found.network for found in members], shares)
    labels = teachers.times(problem, synthetic, synthetic_inputs)
    student_data = StudentData(choice_inputs[known], problem.target[known], synthetic_inputs, labels)
    distilled = distil(problem, student_data, teachers, out_of_fold, seed, student)
    network = distilled.members[0]
    assert isinstance(network, Network)
    likely = drawn == mean_probabilities.argmax(axis=1)  # other labels are times of another kernel
    known_times = (
        KnownTimes(problem.features[known], problem.target[known], SAMPLE_COPIES),
        KnownTimes(features[likely], labels.mean[likely], LABEL_COPIES),
    )
    member = _replace_both(problem, ChosenKernel(menu, chooser(), network), known_times, seed)
    notes = {"choices": float(len(menu.choices)), "choices_right": float(np.mean(np.concatenate(right)))}
    return Outcome((member,), (1.0,), out_of_fold, distilled.shrink, distilled.notes | notes)


@dataclass(frozen=True)
class FoldSamples:
    """Training data of a fold, a row per sample: features, inputs with choices (`Menu.inputs`), choices, log times."""

    features: Array
    choice_inputs: Array
    choices: Labels
    target: Array


@dataclass(frozen=True)
class FoldMembers:
    """Members of a fold, their predictions for its held-out rows, and probabilities of choices at synthetic sizes."""

    trees: Trees
    network: Network
    choice: Labels
    by_trees: Array
    by_network: Array
    probabilities: Float32


def _train_fold(
    menu: Menu, samples: FoldSamples, kind: Recipe, effort: Effort, seed: int, held: Array, synthetic: Array
) -> FoldMembers:
    """Train on a fold; `held` are features of its held-out rows, `synthetic` are features of synthetic sizes."""
    teacher = train_teacher(menu, samples.features, samples.choices, seed, effort.choice_teacher_steps)
    trees = train_fewer_trees(effort.tree_rounds, samples.choice_inputs, samples.target, seed)
    network = train_network(samples.choice_inputs, samples.target, kind, seed)
    choice = teacher.probabilities(menu, held).argmax(axis=1)
    held_inputs = menu.inputs(held, choice)
    return FoldMembers(
        trees,
        network,
        choice,
        trees.predict(held_inputs),
        network.predict(held_inputs),
        teacher.probabilities(menu, synthetic),
    )


def _train_chooser(
    menu: Menu,
    sampled: Array,
    choices: Labels,
    synthetic: Array,
    mean_probabilities: Float32,
    recipe: Recipe,
    seed: int,
) -> Network:
    """Train on the samples' choices, shape (samples,), and on the teachers' odds at synthetic sizes (rows, choices)."""
    sharp = mean_probabilities**SHARPENING_POWER
    probabilities = np.vstack([
        *[np.eye(len(menu.choices), dtype=np.float32)[choices]] * LABEL_REPEATS, sharp / sharp.sum(axis=1, keepdims=True)
    ])  # fmt: skip
    inputs = np.vstack([*[menu.sizes(sampled)] * LABEL_REPEATS, menu.sizes(synthetic)])
    return train_network(inputs, probabilities.astype(np.float32), recipe, seed)


def _replace_both(problem: Problem, both: ChosenKernel, known: Sequence[KnownTimes], seed: int) -> TileNetwork:
    """Train the network that replaces both; `known` has the copies of the long way."""
    effort = problem.effort
    share = effort.synthetic_rows
    known = [replace(times, copies=max(1, round(share * times.copies))) for times in known]
    return problem.training_pool.start(
        train_tile_network, both, problem.calls, problem.featurise, effort.tile_network(RECIPE), round(share * SIZES),
        effort.tile_near_share, seed, known,
    )()  # fmt: skip


def _draw_choices(probabilities: Float32, seed: int) -> Labels:
    """Draw one choice per row by its probability, so that a student is trained on all probable choices of a size."""
    sums = np.cumsum(probabilities, axis=1)
    at = np.random.default_rng(seed).random((len(probabilities), 1)) * sums[:, -1:]
    return np.asarray(np.minimum((sums < at).sum(axis=1), probabilities.shape[1] - 1), dtype=np.int64)
