"""Lengths of the sequences of a batch: the distribution that `model.lengths` names, its mean, and a typical batch of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.arrays import Array, Ints
from pipeline.errors import ConfigError
from pipeline.question.index_distributions import UNIFORM, ZIPF
from pipeline.yaml_text import YamlError, load_yaml

FULL = "full"

STEPS, MOST_DRAWS = 31, 4_000_000
"""Steps of which the one in the middle is taken, and the lengths that are drawn for them at most."""


def distribution(text: object, longest: int) -> tuple[Ints, Array]:
    """Lengths and their probabilities, each of shape (lengths,).

    Args:
        text: `full`, `uniform`, `zipf:ALPHA` (a length is as likely as its power -ALPHA), or the path of a histogram: a list of
            pairs of a length and how often it occurs, in YAML or JSON.
        longest: no sequence is longer; longer ones of a histogram are cut.

    Raises:
        ConfigError: there is no such distribution or file.
    """
    kind, _, exponent = str(text).partition(":")
    lengths = np.arange(1, longest + 1)
    if kind == FULL:
        return lengths[-1:], np.ones(1)
    if kind == UNIFORM:
        return lengths, np.full(longest, 1.0 / longest)
    try:
        if kind == ZIPF:
            weights = lengths ** -float(exponent or 1.2)
        else:
            pairs = np.array(load_yaml(Path(str(text)).read_text(encoding="utf-8")), float)
            lengths, weights = np.minimum(pairs[:, 0].astype(int), longest), pairs[:, 1]
        if lengths.min() < 1 or weights.min() < 0 or not 0 < weights.sum() < np.inf:
            raise ValueError
    except (OSError, ValueError, TypeError, IndexError, YamlError):
        raise ConfigError(
            f"model.lengths={text}: give full, uniform, zipf:1.2, or a file with pairs of a length"
            " and how often it occurs, such as [[10, 500], [200, 80]]"
        ) from None
    return lengths, weights / weights.sum()


def mean_length(config: Mapping[str, Any]) -> float:
    """Mean length of the sequences of a workload."""
    lengths, shares = distribution(config["lengths"], int(config["seq_len"]))
    return float((lengths * shares).sum())


def typical_lengths(config: Mapping[str, Any], batch_size: int, ranks: int) -> Ints:
    """The lengths of a batch as the slowest rank has it in a typical step, shape (batch_size,).

    Attention takes time by the squares of lengths. Of the drawn batches of all ranks, that with the largest sum of squares is the
    slowest; of several such steps, the one in the middle is taken. The seed is fixed.

    Args:
        config: section `model`, with `lengths` and `seq_len`.
        batch_size: samples of a rank.
        ranks: that draw their batches independently.
    """
    return _drawn(str(config["lengths"]), int(config["seq_len"]), batch_size, ranks)


@lru_cache(maxsize=64)
def _drawn(text: str, longest: int, batch_size: int, ranks: int) -> Ints:
    lengths, shares = distribution(text, longest)
    steps = int(np.clip(MOST_DRAWS // (batch_size * ranks), 1, STEPS))
    random, slowest = np.random.default_rng(0), []
    for _ in range(steps):
        drawn = random.choice(lengths, (ranks, batch_size), p=shares)
        slowest.append(drawn[(drawn.astype(float) ** 2).sum(axis=1).argmax()])
    order = np.argsort([(each.astype(float) ** 2).sum() for each in slowest])
    return np.asarray(slowest[order[steps // 2]])
