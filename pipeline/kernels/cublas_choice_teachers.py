"""What a library's choice of kernel is learned with: a scorer, and boosted trees that judge what it finds likely.

The scorer is the same small network for every choice on the menu, from the waves and the steps that the choice would
make (a conditional logit): it knows what has been seen a few times only, but smooths. The rules of a library are
tables with sharp edges, which trees over pairs of a size and a choice find: on unseen shapes of the V100 the scorers'
mean is right in 61 %, trees of 255 leaves on top of it in 70. `choice_fit` teaches one network what their averages say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.kernels.cublas_choice import MOVING, Labels, Menu, product_sizes
from pipeline.kernels.networks import Float32, standardise
from pipeline.kernels.training_loop import minimise, uniform
from pipeline.kernels.trees import Trees, train_judges
from pipeline.kernels.work import Array

if TYPE_CHECKING:
    import torch

CELLS_AT_ONCE = 1 << 12
"""Rows times choices that a scorer looks at together: activations stay in the processor's cache."""

WIDTH = 32
"""Units of the scorer; 96 learned the samples by heart."""

STEPS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 1200, 64, 3e-3, 0.05
"""Trained for longer, it is right more often, but trees on top of it are not: with 2,000, 1,200 and 800 steps they are right in
66.7, 67.0 and 65.9 % on the V100, in 79.8, 79.3 and 80.3 % on the A100 (half of the folds of a development split)."""

CANDIDATES = 12
"""Choices of a sample that trees learn to judge, the scorer's likeliest: the one that was made is among them in 98 %
(V100)."""

ASKED = 8
"""Choices of other sizes that they are asked about."""

JUDGES_SHARE = 2.0 / 3.0
"""Weight of the trees' odds beside the scorer's: 0.93 nats on unseen shapes, trees alone 0.97, the scorer 1.19 (V100)."""


@dataclass(frozen=True)
class Scorer:
    """How much the library prefers each choice of a menu, by the same small network for all of them (a conditional logit):
    two layers on what moves with size and choice, with an offset for the choice and one for the features.

    Attributes:
        mean, scale: of the features, shape (columns,).
        moving_mean, moving_scale: of `Menu.moving`, shape (`MOVING`,).
        context_in, context_bias, context_out: two layers on the features, shapes (columns, width), (width,) and
            (width, width).
        moving_in: of the moving columns, shape (`MOVING`, width).
        choice_offset: of each choice, shape (choices, width).
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
        x = moving.reshape(-1, MOVING) @ self.moving_in
        x = x.reshape(len(features), len(self.prior), -1)
        x += self.choice_offset
        x += (context @ self.context_out)[:, None, :]
        x = np.maximum(x, 0, out=x).reshape(-1, x.shape[2])
        y = x @ self.hidden
        y += self.hidden_bias
        x += np.maximum(y, 0, out=y)
        return np.asarray((x @ self.out).reshape(len(features), -1) + self.prior)

    def odds(self, menu: Menu, features: Array) -> Float32:
        """Probability of every choice, shape (rows, choices)."""
        found = np.empty((len(features), len(self.prior)), dtype=np.float32)
        at_once = max(1, CELLS_AT_ONCE // len(self.prior))
        for start in range(0, len(features), at_once):
            rows = slice(start, start + at_once)
            scores = self.scores(menu, features[rows])
            found[rows] = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(found / found.sum(axis=1, keepdims=True))


def train_scorer(menu: Menu, features: Array, made: Labels, seed: int) -> Scorer:
    """Learn how likely each choice is, by cross-entropy.

    Args:
        menu: what there is to choose from.
        features: shape (rows, columns).
        made: the choice of each row, shape (rows,).
        seed: of the weights and batches.
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
    counts = np.bincount(made, minlength=len(menu.choices)) + 0.5
    prior = np.log(counts / counts.sum())

    def layer(inputs: int, outputs: int) -> torch.Tensor:
        return uniform((inputs, outputs), inputs**-0.5, generator)

    context_in, context_out = layer(features.shape[1], WIDTH), layer(WIDTH, WIDTH)
    moving_in, fixed_in, hidden = layer(moving.shape[-1], WIDTH), layer(fixed.shape[1], WIDTH), layer(WIDTH, WIDTH)
    context_bias, offset, hidden_bias, out = (torch.zeros(WIDTH) for _ in range(4))
    bias = torch.from_numpy(prior.astype(np.float32))
    trained = [context_in, context_out, moving_in, fixed_in, hidden, context_bias, offset, hidden_bias, out, bias]
    x = torch.from_numpy(standardise(features, mean, scale))
    v, q, y = torch.from_numpy(moving), torch.from_numpy(fixed), torch.from_numpy(made)

    def loss() -> torch.Tensor:
        rows = torch.randint(0, len(y), (BATCH,), generator=generator)
        context = torch.relu(x[rows] @ context_in + context_bias) @ context_out
        h = torch.relu(v[rows] @ moving_in + (q @ fixed_in + offset) + context[:, None, :])
        h = h + torch.relu(h @ hidden + hidden_bias)
        return torch.nn.functional.cross_entropy(h @ out + bias, y[rows])

    minimise(loss, trained, STEPS, LEARNING_RATE, weight_decay=WEIGHT_DECAY, warm_up=0.1, fused=True)

    def array(tensor: torch.Tensor) -> Float32:
        return np.asarray(tensor.detach().numpy(), dtype=np.float32)

    return Scorer(
        mean, scale, moving_mean, moving_scale, array(context_in), array(context_bias), array(context_out),
        array(moving_in), array(q @ fixed_in + offset), array(hidden), array(hidden_bias), array(out), array(bias),
    )  # fmt: skip


@dataclass(frozen=True)
class Teacher:
    """A scorer, and the trees that judge its candidates."""

    scorer: Scorer
    judges: Trees

    def odds(self, menu: Menu, features: Array) -> Float32:
        """Probability of every choice, shape (rows, choices)."""
        by_scorer = self.scorer.odds(menu, features)
        top = _candidates(by_scorer, ASKED)
        score = self.judges.scores(_pairs(menu, features, top)).reshape(top.shape)
        likely = np.exp(score - score.max(axis=1, keepdims=True))
        by_judges = np.zeros_like(by_scorer)
        np.put_along_axis(by_judges, top, (likely / likely.sum(axis=1, keepdims=True)).astype(np.float32), axis=1)
        return np.asarray(JUDGES_SHARE * by_judges + (1.0 - JUDGES_SHARE) * by_scorer, dtype=np.float32)


def train_teacher(menu: Menu, features: Array, made: Labels, seed: int) -> Teacher:
    """Learn the choices of rows, all of them known: features of shape (rows, columns), choices of shape (rows,)."""
    scorer = train_scorer(menu, features, made, seed)
    top = _candidates(scorer.odds(menu, features), CANDIDATES)
    return Teacher(scorer, train_judges(_pairs(menu, features, top), (top == made[:, None]).ravel(), seed))


def _candidates(odds: Float32, most: int) -> Labels:
    """The likeliest choices of each row, best first, shape (rows, at most `most`)."""
    return np.asarray(np.argsort(-odds, axis=1, kind="stable")[:, :most], dtype=np.int64)


def _pairs(menu: Menu, features: Array, top: Labels) -> Array:
    """What trees see of rows and their candidates, shape (rows x candidates, columns): sizes, alignment, the candidate's
    tile, slices and split, and what they make of the sizes (its waves and steps as `Menu.moving` has them).
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
