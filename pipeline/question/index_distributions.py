"""How often the rows of embedding tables are looked up: uniformly, by Zipf's law, or as a histogram says.

A distribution is a text: `uniform`, `zipf:ALPHA`, or `bins:` with pairs of a share of the rows and their share of the lookups, most
popular first. A file of such pairs is read into that text, so that a captured step holds what the file said.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.arrays import Array
from pipeline.errors import ConfigError
from pipeline.yaml_text import YamlError, load_yaml

UNIFORM, ZIPF, BINS = "uniform", "zipf", "bins:"

HARMONIC_TERMS = 4096
"""Number of Zipf ranks that are summed one by one; higher ranks are summed in logarithmic bins."""


def distributions(config: Mapping[str, Any], tables: int) -> list[str]:
    """The distribution of the indices of each table of a workload.

    Args:
        config: section `model`; `distribution` is a distribution, or the path of a file in YAML or JSON. The file has pairs of a
            share of the rows and their share of the lookups for all tables, or a list of such pairs for each.
        tables: number of tables.

    Raises:
        ConfigError: there is no such distribution or file, or it is not of these tables.
    """
    text = config.get("distribution", UNIFORM)
    kind, _, exponent = str(text).partition(":")
    try:
        if text == UNIFORM or (kind == ZIPF and 0.0 < float(exponent or 1.05) < 10.0):
            return [str(text)] * tables
        content = load_yaml(Path(str(text)).read_text(encoding="utf-8"))
        several = isinstance(content[0][0], list)
        found = [_of_pairs(each) for each in (content if several else [content])]
    except (OSError, ValueError, TypeError, KeyError, IndexError, YamlError):
        raise ConfigError(
            f"model.distribution={text}: give uniform, zipf:ALPHA such as zipf:1.05, or a file with"
            " pairs of a share of the rows and their share of the lookups, [[0.01, 0.8], [0.99,"
            " 0.2]], or a list of them for each table"
        ) from None
    if several and len(found) != tables:
        raise ConfigError(
            f"model.distribution={text}: is of {len(found)} tables; the model has {tables}"
        )
    return found if several else found * tables


def _of_pairs(pairs: Any) -> str:
    """The text of a histogram."""
    shares = np.array(pairs, float)
    shares = shares / shares.sum(axis=0)
    if shares.ndim != 2 or shares.shape[1] != 2 or not (shares > 0).all():
        raise ValueError
    popular = shares[np.argsort(-shares[:, 1] / shares[:, 0], kind="stable")]
    return BINS + ",".join(f"{rows:.6g}/{lookups:.6g}" for rows, lookups in popular)


@lru_cache(maxsize=256)
def _bins(rows: float, distribution: str) -> tuple[Array, Array, Array]:
    """Bins of rows, most popular first: rows before a bin, rows of it, and the probability of one; all lookups are 1."""
    if not distribution.startswith((ZIPF, BINS)):
        return np.zeros(1), np.array([rows]), np.array([1.0 / max(rows, 1.0)])
    if distribution.startswith(BINS):
        pairs = [each.split("/") for each in distribution.removeprefix(BINS).split(",")]
        shares = np.array(pairs, float)
        count = np.maximum(shares[:, 0] * rows, 1e-9)
        return np.cumsum(count) - count, count, shares[:, 1] / shares[:, 1].sum() / count
    alpha = float(distribution.partition(":")[2] or 1.05)
    head = np.arange(1, min(rows, HARMONIC_TERMS) + 1, dtype=float)
    edges = (
        np.unique(np.floor(np.geomspace(HARMONIC_TERMS + 1, rows + 1, 400)))
        if rows > HARMONIC_TERMS
        else head[:0]
    )
    first = np.concatenate([head, edges[:-1]])
    count = np.concatenate([np.ones_like(head), np.diff(edges)])
    weight = (first + (count - 1.0) / 2.0) ** -alpha
    return first - 1.0, count, weight / float((weight * count).sum())


@lru_cache(maxsize=1024)
def distinct_rows(rows: float, accesses: float, distribution: str) -> float:
    """Expected number of different rows among the accesses of a table."""
    _, count, share = _bins(rows, distribution)
    return float((count * -np.expm1(accesses * np.log1p(-np.minimum(share, 1.0 - 1e-12)))).sum())


def popular_rows(
    rows: float, accesses: float, distribution: str, cached: float
) -> tuple[float, float]:
    """Share of accesses to the `cached` most popular rows, and the expected number of these rows that are accessed."""
    before, count, share = _bins(rows, distribution)
    inside = np.clip(cached - before, 0.0, count)
    touched = inside * -np.expm1(accesses * np.log1p(-np.minimum(share, 1.0 - 1e-12)))
    return float((inside * share).sum()), float(touched.sum())
