"""Teachers of a library's choice of kernel: a scorer, and boosted trees that rate the choices it finds likely.

The scorer is one small network for every choice on the menu (a conditional logit). Its inputs are the waves and the
steps that the choice would make. It learns choices with few samples, but it smooths.

The rules of a library are tables with sharp edges. Trees over pairs of a size and a choice find these edges. On unseen
shapes of the V100, the mean of the scorers is right in 61 % of cases. Trees of 255 leaves on top of it are right in
70 %. `cublas_choice_fit` trains one network on the averages of the teachers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.kernels.cublas_choice import MOVING_COLUMNS, Labels, Menu, product_sizes
from pipeline.kernels.networks import Float32, standardise
from pipeline.kernels.training_loop import minimise, uniform
from pipeline.kernels.trees import Trees, train_classifier
from pipeline.kernels.work import Array

if TYPE_CHECKING:
    import torch

CELLS_AT_ONCE = 1 << 12
"""Rows times choices that a scorer computes at once; their activations fit the processor's cache."""

WIDTH = 32
"""Units of each layer of the scorer. With 96 units it overfits the samples."""

STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 1200, 64, 3e-3, 0.05
"""Optimiser settings of the scorer. Longer training makes the scorer right more often, but not the trees on top of it.

With 2,000, 1,200 and 800 steps the trees are right in 66.7, 67.0 and 65.9 % on the V100. On the A100 they are right in
79.8, 79.3 and 80.3 % (half of the folds of a development split)."""

CANDIDATES = 12
"""Number of choices of a sample that the trees learn to rate: those that the scorer finds most likely. The true choice
is among them in 98 % of samples (V100)."""

RATED_CANDIDATES = 8
"""Number of choices that the trees rate at a size to be predicted."""

TREES_WEIGHT = 2.0 / 3.0
"""Weight of the trees' probabilities; the rest is the scorer's. On unseen shapes of the V100, cross-entropy is 0.93
nats with this weight, 0.97 for the trees alone, and 1.19 for the scorer alone."""


@dataclass(frozen=True)
class Scorer:
    """Score of each choice of a menu, by one small network for all of them (a conditional logit).

    The network has two layers on the columns that depend on size and choice. Offsets of the choice and of the features
    are added in the first layer.

    Attributes:
        mean, scale: mean and scale of the features, shape (columns,).
        moving_mean, moving_scale: mean and scale of `Menu.moving`, shape (`MOVING_COLUMNS`,).
        context_in, context_bias, context_out: two layers on the features, shapes (columns, width), (width,) and
            (width, width).
        moving_in: weights of the columns of `Menu.moving`, shape (`MOVING_COLUMNS`, width).
        choice_offset: offset of each choice, shape (choices, width).
        hidden, hidden_bias, out: the second layer, and the score, shapes (width, width), (width,) and (width,).
        prior: added to each choice's score, shape (choices,).
    """

    mean: Float32
    scale: Float32
    moving_mean: Float32
    moving_scale: Float32
    context_in: Float32
    context_bias: Float32
    context_out: Float32
    moving_in: Float32
    choice_offset: Float32
    hidden: Float32
    hidden_bias: Float32
    out: Float32
    prior: Float32

    def scores(self, menu: Menu, features: Array) -> Float32:
        """Log-odds of every choice, shape (rows, choices)."""
        everything = np.arange(len(menu.choices), dtype=np.int64)[None, :]
        moving = (menu.moving(features, everything) - self.moving_mean) / self.moving_scale
        context = np.maximum(standardise(features, self.mean, self.scale) @ self.context_in + self.context_bias, 0)
        x = moving.reshape(-1, MOVING_COLUMNS) @ self.moving_in
        x = x.reshape(len(features), len(self.prior), -1)
        x += self.choice_offset
        x += (context @ self.context_out)[:, None, :]
        x = np.maximum(x, 0, out=x).reshape(-1, x.shape[2])
        y = x @ self.hidden
        y += self.hidden_bias
        x += np.maximum(y, 0, out=y)
        return np.asarray((x @ self.out).reshape(len(features), -1) + self.prior)

    def probabilities(self, menu: Menu, features: Array) -> Float32:
        """Probability of every choice, shape (rows, choices)."""
        found = np.empty((len(features), len(self.prior)), dtype=np.float32)
        at_once = max(1, CELLS_AT_ONCE // len(self.prior))
        for start in range(0, len(features), at_once):
            rows = slice(start, start + at_once)
            scores = self.scores(menu, features[rows])
            found[rows] = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))


def train_scorer(menu: Menu, features: Array, choices: Labels, seed: int, steps: float = 1.0) -> Scorer:
    """Train a scorer of the choices by cross-entropy.

    Args:
        menu: the choices.
        features: shape (rows, columns).
        choices: the choice of each row, shape (rows,).
        seed: of the weights and batches.
        steps: factor on the optimiser steps; the learning rate is divided by it.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    mean, scale = features.mean(axis=0).astype(np.float32), (features.std(axis=0) + 1e-6).astype(np.float32)
    moving = menu.moving(features, np.arange(len(menu.choices), dtype=np.int64)[None, :])
    flat = moving.reshape(-1, moving.shape[-1])
    moving_mean, moving_scale = flat.mean(axis=0), flat.std(axis=0) + np.float32(1e-6)
    moving = (moving - moving_mean) / moving_scale
    fixed = menu.fixed
    fixed = (fixed - fixed.mean(axis=0)) / (fixed.std(axis=0) + np.float32(1e-6))
    counts = np.bincount(choices, minlength=len(menu.choices)) + 0.5
    prior = np.log(counts / counts.sum())

    def layer(inputs: int, outputs: int) -> torch.Tensor:
        return uniform((inputs, outputs), inputs**-0.5, generator)

    context_in, context_out = layer(features.shape[1], WIDTH), layer(WIDTH, WIDTH)
    moving_in, fixed_in, hidden = layer(moving.shape[-1], WIDTH), layer(fixed.shape[1], WIDTH), layer(WIDTH, WIDTH)
    context_bias, offset, hidden_bias, out = (torch.zeros(WIDTH) for _ in range(4))
    bias = torch.from_numpy(prior.astype(np.float32))
    trained = [context_in, context_out, moving_in, fixed_in, hidden, context_bias, offset, hidden_bias, out, bias]
    x = torch.from_numpy(np.ascontiguousarray(standardise(features, mean, scale)))  # rows are drawn
    v, q, y = torch.from_numpy(moving), torch.from_numpy(fixed), torch.from_numpy(choices)

    def loss() -> torch.Tensor:
        rows = torch.randint(0, len(y), (BATCH,), generator=generator)
        context = torch.relu(x[rows] @ context_in + context_bias) @ context_out
        h = torch.relu(v[rows] @ moving_in + (q @ fixed_in + offset) + context[:, None, :])
        h = h + torch.relu(h @ hidden + hidden_bias)
        return torch.nn.functional.cross_entropy(h @ out + bias, y[rows])

    minimise(
        loss, trained, round(steps * STEPS), LEARNING_RATE / steps, weight_decay=WEIGHT_DECAY, warm_up=0.1, fused=True
    )

    def array(tensor: torch.Tensor) -> Float32:
        return np.asarray(tensor.detach().numpy(), dtype=np.float32)

    return Scorer(
        mean, scale, moving_mean, moving_scale, array(context_in), array(context_bias), array(context_out),
        array(moving_in), array(q @ fixed_in + offset), array(hidden), array(hidden_bias), array(out), array(bias),
    )  # fmt: skip


@dataclass(frozen=True)
class Teacher:
    """A scorer, and the trees that rate its candidates."""

    scorer: Scorer
    rating_trees: Trees

    def probabilities(self, menu: Menu, features: Array) -> Float32:
        """Probability of every choice, shape (rows, choices)."""
        by_scorer = self.scorer.probabilities(menu, features)
        top = _candidates(by_scorer, RATED_CANDIDATES)
        score = self.rating_trees.scores(_tree_inputs(menu, features, top)).reshape(top.shape)
        tree_odds = np.exp(score - score.max(axis=1, keepdims=True))
        by_trees = np.zeros_like(by_scorer)
        np.put_along_axis(by_trees, top, (tree_odds / tree_odds.sum(axis=1, keepdims=True)).astype(np.float32), axis=1)
        return np.asarray(TREES_WEIGHT * by_trees + (1.0 - TREES_WEIGHT) * by_scorer, dtype=np.float32)


def train_teacher(menu: Menu, features: Array, choices: Labels, seed: int, steps: float = 1.0) -> Teacher:
    """Train a teacher on rows whose choices are all known.

    Args:
        menu: the choices.
        features: shape (rows, columns).
        choices: the choice of each row, shape (rows,).
        seed: of weights, batches and trees.
        steps: factor on optimiser steps and boosting rounds; the learning rates are divided by it.
    """
    scorer = train_scorer(menu, features, choices, seed, steps)
    top = _candidates(scorer.probabilities(menu, features), CANDIDATES)
    is_chosen = (top == choices[:, None]).ravel()
    return Teacher(scorer, train_classifier(_tree_inputs(menu, features, top), is_chosen, seed, steps))


def _candidates(probabilities: Float32, limit: int) -> Labels:
    """The most likely choices of each row, best first, shape (rows, at most `limit`)."""
    return np.asarray(np.argsort(-probabilities, axis=1, kind="stable")[:, :limit], dtype=np.int64)


def _tree_inputs(menu: Menu, features: Array, top: Labels) -> Array:
    """Inputs of the trees for rows and their candidates, shape (rows x candidates, columns).

    The columns are sizes and their alignment, the candidate's tile, slices and split, and its waves and steps
    (`Menu.moving`).
    """
    choice = top.ravel()
    rows = np.repeat(features, top.shape[1], axis=0)
    batch, m, n, k = product_sizes(rows, menu.at, menu.batched).T
    tile_k, tile_m, slices, split = menu.choices[choice].T
    along_k, along_m = np.ceil(k / tile_k), np.ceil(m / tile_m)
    return np.column_stack([
        np.log2(m), np.log2(n), np.log2(k), np.log2(batch), menu.moving(rows, choice), tile_k, tile_m, slices, split, choice,
        m % 4, n % 4, k % 4, n % 8, n % 32, m % 32, k % 32, along_k, along_m, k / (along_k * tile_k),
        m / (along_m * tile_m), np.ceil(n / split / 8), np.log2(m / k), np.log2(n * n / (m * k)), m * k,
        np.minimum(m, k), np.maximum(m, k), tile_k * tile_m,
    ]).astype(np.float32)  # fmt: skip
