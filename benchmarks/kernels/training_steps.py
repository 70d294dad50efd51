"""Time of a training step of networks: gradients written out by hand, as a ratio to torch's automatic ones.

Both train the same layers on the same batches with the same optimizer, on one thread. Processor times are medians over
rounds; the two ways take turns.

Usage::

    python benchmarks/kernels/training_steps.py [--rounds N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from evaluation.pages.markdown import markdown
from pipeline.kernels.network_training import FINAL_DIVISOR, WARM_UP, train_network
from pipeline.kernels.networks import Recipe
from pipeline.kernels.training_loop import minimise, shuffled_batches

STEPS = 400
"""Optimizer steps of a round."""

RECIPES = {
    "matrix family": (72, Recipe(width=192, layers=5, batch=256)),
    "element-wise": (25, Recipe(width=128, layers=4, batch=128)),
    "few samples": (40, Recipe(width=192, layers=4, batch=64)),
    "last network of products": (91, Recipe(width=128, layers=3, batch=1024, relu=True)),
}
"""Columns and recipes of networks that a fit trains, without sines and cosines."""


class Layers(torch.nn.Module):
    """The layers of a network in torch's own modules."""

    def __init__(self, columns: int, recipe: Recipe) -> None:
        super().__init__()
        sizes = [columns, *[recipe.width] * recipe.layers]
        self.hidden = torch.nn.ModuleList(map(torch.nn.Linear, sizes[:-1], sizes[1:]))
        self.last = torch.nn.Linear(recipe.width, 1)
        self.activation = torch.nn.ReLU() if recipe.relu else torch.nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Outputs, shape (rows,)."""
        x = self.activation(self.hidden[0](x))
        for layer in self.hidden[1:]:
            x = x + self.activation(layer(x))
        return torch.as_tensor(self.last(x)[:, 0])


def train_automatically(features: np.ndarray, target: np.ndarray, recipe: Recipe) -> None:
    """Train `Layers` with the schedule of `train_network`."""
    x, y = torch.from_numpy(features), torch.from_numpy(target.astype(np.float32))
    layers, batches = Layers(features.shape[1], recipe), shuffled_batches(len(y), recipe.batch, torch.Generator())

    def loss() -> torch.Tensor:
        rows = next(batches)
        return (layers(x[rows]) - y[rows]).abs().mean()

    minimise(
        loss, list(layers.parameters()), recipe.steps, recipe.learning_rate, weight_decay=recipe.weight_decay,
        warm_up=WARM_UP, final_divisor=FINAL_DIVISOR, fused=True,
    )  # fmt: skip


def processor_seconds(work: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows = []
    for name, (columns, recipe) in RECIPES.items():
        features = np.random.default_rng(0).normal(size=(20_000, columns)).astype(np.float32)
        target, timed = features[:, :3].sum(axis=1).astype(np.float64), replace(recipe, steps=STEPS)
        automatic, own = [], []
        for _ in range(rounds):
            automatic.append(processor_seconds(lambda: train_automatically(features, target, timed)))  # noqa: B023
            own.append(processor_seconds(lambda: train_network(features, target, timed, 0)))  # noqa: B023
        milliseconds = [1e3 * median(found) / STEPS for found in (automatic, own)]
        rows.append((name, *(f"{found:.2f}" for found in milliseconds), f"{milliseconds[1] / milliseconds[0]:.2f}"))
    print(markdown(("network", "automatic, ms", "by hand, ms", "ratio"), rows))


if __name__ == "__main__":
    main()
