"""Train the scorer and the members that know the choice; see `choice`.

Which kernel ran, and how long it took, are learned from the same few thousand samples, so that every part is learned
several times, on folds, and averaged; one scorer and one network then learn what the averages say at many more sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.kernels.choice import ChosenKernel, Labels, Menu, Observed, Scorer
from pipeline.kernels.learned import (
    FREQUENCIES,
    SYNTHETIC_ROWS,
    Lesson,
    Mean,
    Member,
    Outcome,
    Problem,
    Shares,
    Teachers,
    distil,
    member_recipe,
    student_recipe,
    synthetic_calls,
)
from pipeline.kernels.networks import Float32, Network, standardise, train_network
from pipeline.kernels.samples import assign_folds
from pipeline.kernels.trees import train_trees
from pipeline.kernels.work import Array

if TYPE_CHECKING:
    import torch

FOLDS = 8
"""More than in `learned`: with the kernel known, more samples and more members still help (V100, ensembles on two splits
by shape: 2.02 % GMAE with five folds, 1.96 with ten)."""

WAVY = (128, 4)
"""Width and layers of a second network for each fold, which sees sines and cosines of its inputs. It errs as much as the
plain one, but elsewhere: their mean has 1.92 % where each has 2.05 (V100, a split by shape)."""

WIDTH = 32
"""Units of the scorer; 96 learned the samples by heart."""

LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Lessons:
    """How long a scorer learns: optimiser steps, samples in each, weight decay."""

    steps: int
    batch: int
    weight_decay: float


FROM_SAMPLES = Lessons(4000, 64, 0.05)

FROM_SCORERS = Lessons(8000, 128, 0.0)
"""A scorer that learns what others say of many sizes has nothing to learn by heart, and needs no decay."""

SHARPER = 2.0
"""Power of the odds that it learns: only the likeliest choice is asked for in the end."""


def train_scorer(menu: Menu, features: Array, odds: Float32, seed: int, lessons: Lessons) -> Scorer:
    """Learn how likely each choice is, by cross-entropy.

    Args:
        menu: what there is to choose from.
        features: shape (rows, columns).
        odds: probability of each choice, shape (rows, choices); ones and zeros where the choice is known.
        seed: of the weights and batches.
        lessons: how long to learn.
    """
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    mean, scale = features.mean(axis=0).astype(np.float32), (features.std(axis=0) + 1e-6).astype(np.float32)
    moving = menu.moving(features, np.arange(len(menu.choices), dtype=np.int64)[None, :])
    flat = moving.reshape(-1, moving.shape[-1])
    moving_mean, moving_scale = flat.mean(axis=0), flat.std(axis=0) + np.float32(1e-6)
    moving = (moving - moving_mean) / moving_scale
    fixed = menu.fixed
    fixed = (fixed - fixed.mean(axis=0)) / (fixed.std(axis=0) + np.float32(1e-6))
    counts = odds.sum(axis=0) + np.float32(0.5)
    prior = np.log(counts / counts.sum())

    def layer(inputs: int, outputs: int) -> torch.Tensor:
        bound = inputs**-0.5
        found: torch.Tensor = (torch.rand(inputs, outputs, generator=generator) * 2 - 1) * bound
        return found.requires_grad_()

    context_in, context_out = layer(features.shape[1], WIDTH), layer(WIDTH, WIDTH)
    moving_in, fixed_in, hidden = layer(moving.shape[-1], WIDTH), layer(fixed.shape[1], WIDTH), layer(WIDTH, WIDTH)
    context_bias, offset, hidden_bias, out = (torch.zeros(WIDTH, requires_grad=True) for _ in range(4))
    bias = torch.from_numpy(prior.astype(np.float32)).requires_grad_()
    trained = [context_in, context_out, moving_in, fixed_in, hidden, context_bias, offset, hidden_bias, out, bias]
    optimiser = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=lessons.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=lessons.steps, pct_start=0.1)
    x = torch.from_numpy(standardise(features, mean, scale))
    v, q, y = torch.from_numpy(moving), torch.from_numpy(fixed), torch.from_numpy(odds)
    for _ in range(lessons.steps):
        rows = torch.randint(0, len(y), (lessons.batch,), generator=generator)
        context = torch.relu(x[rows] @ context_in + context_bias) @ context_out
        h = torch.relu(v[rows] @ moving_in + (q @ fixed_in + offset) + context[:, None, :])
        h = h + torch.relu(h @ hidden + hidden_bias)
        value = torch.nn.functional.cross_entropy(h @ out + bias, y[rows])
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()

    def array(tensor: torch.Tensor) -> Float32:
        return np.asarray(tensor.detach().numpy(), dtype=np.float32)

    return Scorer(
        mean, scale, moving_mean, moving_scale, array(context_in), array(context_bias), array(context_out),
        array(moving_in), array(q @ fixed_in + offset), array(hidden), array(hidden_bias), array(out), array(bias),
    )  # fmt: skip


def fit_choice(problem: Problem, observed: Observed, seed: int) -> Outcome:
    """Per fold a scorer, and trees and networks that know the choice; of these one scorer and one network in the end.

    On rows that a fold has not seen, its members are told the scorer's choice, not the one that was made.
    """
    menu, made = observed.menu, observed.choice
    recipe = member_recipe(len(problem.target), problem.law)
    width, layers = WAVY
    wavy = replace(recipe, width=width, layers=layers, frequencies=FREQUENCIES)
    known = made >= 0  # other rows are predicted, and learned from by nobody
    odds = np.eye(len(menu.choices), dtype=np.float32)[made]
    told = menu.inputs(problem.features, made)
    by_trees, by_networks = np.full(len(made), np.nan), np.full(len(made), np.nan)
    scorers, right = [], []
    trees: list[Member] = []
    networks: list[Member] = []
    folds = assign_folds(problem.calls, FOLDS, seed)
    for number in np.unique(folds):
        held, member_seed = folds == number, seed + int(number)
        fit = ~held & known
        scorers.append(train_scorer(menu, problem.features[fit], odds[fit], member_seed, FROM_SAMPLES))
        trees.append(train_trees(told[fit], problem.target[fit], member_seed))
        networks.append(
            Mean(tuple(train_network(told[fit], problem.target[fit], kind, member_seed) for kind in (recipe, wavy)))
        )
        choice = scorers[-1].choose(menu, problem.features[held])
        asked = menu.inputs(problem.features[held], choice)
        by_trees[held], by_networks[held] = trees[-1].predict(asked), networks[-1].predict(asked)
        right.append(choice == made[held])
    shares, unseen = Shares.best(problem, by_trees, by_networks)
    invented = synthetic_calls(problem.calls, SYNTHETIC_ROWS, seed)
    features = problem.featurise(invented)
    likely = np.mean([scorer.odds(menu, features) for scorer in scorers], axis=0)
    sharp = likely**SHARPER
    scorer = train_scorer(
        menu, np.vstack([problem.features[known], features]),
        np.vstack([odds[known], sharp / sharp.sum(axis=1, keepdims=True)]), seed, FROM_SCORERS,
    )  # fmt: skip
    asked = menu.inputs(features, _drawn(likely, seed))
    lesson = Lesson(told[known], problem.target[known], invented, asked)
    found = distil(problem, lesson, Teachers(trees, networks, shares), unseen, seed, student_recipe(recipe))
    network = found.members[0]
    assert isinstance(network, Network)
    notes = {"choices": float(len(menu.choices)), "choices_right": float(np.mean(np.concatenate(right)))}
    return Outcome((ChosenKernel(menu, scorer, network),), (1.0,), unseen, found.shrink, found.notes | notes)


def _drawn(odds: Float32, seed: int) -> Labels:
    """One choice per row, drawn by its odds: a student meets the likely ones of each size, not the likeliest alone."""
    sums = np.cumsum(odds, axis=1)
    at = np.random.default_rng(seed).random((len(odds), 1)) * sums[:, -1:]
    return np.asarray(np.minimum((sums < at).sum(axis=1), odds.shape[1] - 1), dtype=np.int64)
