"""The graph of a step at one batch size, computed from its graphs at two others.

Every number of a graph that depends on the batch size (a size, a stride, an argument of an operator, bytes of memory) lies
on a straight line over it. Graphs at two sizes give this line. A third graph on the same line, and a step that decides
nothing by its batch size (`pipeline.graph.batch_line`), show that the line holds between the two sizes:

* The same operators run at each size. Sizes of tensors are then sums and products of the batch size and of constants, or
  quotients that are rounded. A third point excludes products of two batch sizes.
* `HIGH_SIZES` minus `LOW` is a prime, so that a rounded quotient has no whole slope between the two.
* Memory is the largest of many lines: one for each moment of the step. Those that are largest at some batch size are kept.

Whether a step runs the same operators at any batch size is found by running it with a symbolic one (`same_at_any_batch`). A
batch of one is never covered, because PyTorch's symbols stand for at least 2.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from pipeline.as_on_cuda.emulation import run_as_on_cuda
from pipeline.as_on_cuda.patches import replaced
from pipeline.graph.table import Graph, Memory, dump
from pipeline.workloads import builder

LOW, MIDDLE = 2, 61
"""Lowest batch size of a line, and one that is used as its third point. A batch of one has other strides."""

HIGH_SIZES = tuple(LOW + prime for prime in (65537, 32771, 16411, 8209, 4099, 2053, 1031, 521, 257))
"""Candidates for the highest batch size of a line."""

MAX_INPUT_BYTES = 4 << 30
"""Largest batch that is used as the end of a line: its memory is reserved, though never touched."""

TEXTS = ("input_shapes", "output_shapes", "attributes")
"""Columns of a graph with numbers that depend on the batch size, as JSON."""


class NotOnALineError(Exception):
    """Two graphs differ in more than whole numbers, or in numbers without a whole slope."""


def highest(graph: Graph) -> int | None:
    """The highest batch size of the line of a graph's workload; None if its samples are too large."""
    sample = -(-graph.memory.inputs // graph.batch_size)
    return next((size for size in HIGH_SIZES if size * sample <= MAX_INPUT_BYTES), None)


@dataclass(frozen=True)
class MemoryLine:
    """Memory of a step between two batch sizes."""

    low: int
    high: int
    at_low: Memory
    at_high: Memory
    peaks: tuple[tuple[int, int], ...]
    """Bytes alive at the low and at the high batch size, at each moment that is the peak of some larger batch size."""

    @classmethod
    def between(cls, low: Graph, high: Graph) -> MemoryLine:
        """The line between two graphs that were just captured.

        Raises:
            NotOnALineError: something is freed at other moments.
        """
        before, after = (graph.memory.peaks or (graph.memory.peak,) for graph in (low, high))
        if len(before) != len(after):
            raise NotOnALineError("the graphs have different operators")
        hull: list[tuple[int, int]] = []  # bytes at the low size, and how many more at the high one
        pairs = {(at_low, at_high - at_low) for at_low, at_high in zip(before, after, strict=True)}
        for pair in sorted(pairs, reverse=True):
            if hull and pair[1] <= hull[-1][1]:
                continue
            while len(hull) > 1 and _is_below(hull[-1], hull[-2], pair):
                hull.pop()
            hull.append(pair)
        peaks = tuple((one, one + more) for one, more in hull)
        return cls(low.batch_size, high.batch_size, low.memory, high.memory, peaks)

    def __contains__(self, batch_size: int) -> bool:
        return (
            self.low <= batch_size
        )  # the step does the same at any batch size: the high end is a sample

    def at(self, batch_size: int) -> Memory:
        """Memory at a batch size from the low one on."""
        position = _Position(self.low, self.high, batch_size)
        facts = _on_line(
            {**self.at_low.facts(), "peak": 0}, {**self.at_high.facts(), "peak": 0}, position
        )
        return Memory(
            **facts | {"peak": max((position.number(*pair) for pair in self.peaks), default=0)}
        )


def _is_below(pair: tuple[int, int], left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Whether a pair lies on or below the straight line between two others, so that it is never the largest of the three."""
    return (pair[1] - left[1]) * (right[0] - left[0]) >= (right[1] - left[1]) * (pair[0] - left[0])


class GraphLine:
    """Graphs of a step at two batch sizes; `at` computes those between them.

    The memory along the line must be given, unless both graphs were just captured.

    Raises:
        NotOnALineError: the graphs have different operators.
    """

    def __init__(self, low: Graph, high: Graph, memory: MemoryLine | None = None) -> None:
        self.low = low
        self.high = high
        self.memory = memory or MemoryLine.between(low, high)
        self._moving = {name: _Moving.of(low.table[name], high.table[name]) for name in TEXTS}
        fixed = [name for name in low.table if name not in TEXTS]
        facts = [(each.device, each.model, each.warnings) for each in (low, high)]
        if not _equal(low.table[fixed], high.table[fixed]) or facts[0] != facts[1]:
            raise NotOnALineError("the graphs have different operators")

    def at(self, batch_size: int) -> Graph:
        """The graph at a batch size between the two.

        Raises:
            NotOnALineError: the graphs differ in more than whole numbers with a whole slope.
        """
        place = _Position(self.low.batch_size, self.high.batch_size, batch_size)
        table = self.low.table.assign(
            **{name: part.at(place) for name, part in self._moving.items()}
        )
        return replace(
            self.low, table=table, memory=self.memory.at(batch_size), batch_size=batch_size
        )

    def holds(self, graph: Graph) -> bool:
        """Whether a captured graph is the one that the line gives at its batch size."""
        try:
            computed = self.at(graph.batch_size)
        except NotOnALineError:
            return False
        facts = [
            (each.memory, each.device, each.model, each.warnings) for each in (computed, graph)
        ]
        same = all(computed.table[name].to_list() == graph.table[name].to_list() for name in TEXTS)
        fixed = [name for name in graph.table if name not in TEXTS]
        return same and facts[0] == facts[1] and _equal(computed.table[fixed], graph.table[fixed])


@dataclass(frozen=True)
class _Position:
    """A batch size between two others."""

    low: int
    high: int
    batch: int

    def number(self, low: int, high: int) -> int:
        slope, rest = divmod(high - low, self.high - self.low)
        if rest:
            raise NotOnALineError(f"{low} and {high} do not grow linearly with the batch size")
        return low + slope * (self.batch - self.low)


@dataclass(frozen=True)
class _Moving:
    """A column of texts, of which some depend on the batch size."""

    texts: np.ndarray
    rows: np.ndarray
    """Numbers of the rows that depend on it."""
    which: np.ndarray
    """The pair of each such row."""
    pairs: Sequence[tuple[Any, Any]]
    """Distinct contents at the low and at the high batch size."""

    @classmethod
    def of(cls, low: pd.Series, high: pd.Series) -> _Moving:
        if len(low) != len(high):
            raise NotOnALineError("the graphs have different operators")
        texts, others = (each.to_numpy(dtype=object) for each in (low, high))
        rows = np.flatnonzero(texts != others)
        codes: dict[tuple[str, str], int] = {}
        which = [
            codes.setdefault(pair, len(codes))
            for pair in zip(texts[rows], others[rows], strict=True)
        ]
        pairs = [(json.loads(one), json.loads(other)) for one, other in codes]
        return cls(texts, rows, np.array(which, dtype=int), pairs)

    def at(self, place: _Position) -> np.ndarray:
        if not len(self.rows):
            return self.texts
        distinct = np.array(
            [dump(_on_line(low, high, place)) for low, high in self.pairs], dtype=object
        )
        texts = self.texts.copy()
        texts[self.rows] = distinct[self.which]
        return texts


def _on_line(low: Any, high: Any, place: _Position) -> Any:
    """The content between two contents, which may differ in whole numbers only."""
    if type(low) is not type(high):
        raise NotOnALineError(f"{low} and {high} do not grow linearly with the batch size")
    if isinstance(low, list) and len(low) == len(high):
        return [_on_line(one, other, place) for one, other in zip(low, high, strict=True)]
    if isinstance(low, Mapping) and list(low) == list(high):
        return {key: _on_line(value, high[key], place) for key, value in low.items()}
    if low == high:
        return low
    if type(low) is not int:
        raise NotOnALineError(f"{low} and {high} do not grow linearly with the batch size")
    return place.number(low, high)


def _equal(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two tables have the same values; a stored table may have other dtypes of integers and texts."""
    return all(
        one[name].astype(object).where(one[name].notna(), None).to_list()
        == other[name].astype(object).where(other[name].notna(), None).to_list()
        for name in one
    )


HINT = 1009
"""Batch size that the symbol stands for where a decision needs a number: a prime that is no size of a known model."""

EQUAL_LAYERS = 2
"""Layers that are run: every layer gets tensors of the sizes that the layer before it got."""


def same_at_any_batch(config: Mapping[str, Any]) -> bool:
    """Whether a step is proven to run the same operators at each batch size of 2 or more.

    Args:
        config: content of `config/model/<name>.yaml` after overrides, of a workload that runs on the meta device.

    Returns:
        False also if the step cannot run with a symbol: then nothing is known.
    """
    layers = {"layers": min(int(config["layers"]), EQUAL_LAYERS)} if "layers" in config else {}
    try:
        with warnings.catch_warnings(action="ignore"):
            return not _decisions({**config, **layers})
    except Exception:  # whatever an operator that takes no symbols raises
        return False


def _decisions(config: Mapping[str, Any]) -> list[str]:
    """What a step decides by its batch size, as PyTorch writes it."""
    import torch
    import torch.nn.functional as F
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from pipeline.as_on_cuda.torch_names import constant_pad, fake_tensor_mode, symbolic_size

    def pad(x: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
        if mode != "constant":
            raise NotImplementedError(mode)
        return constant_pad(x, pad, value or 0)

    sizes = ShapeEnv(duck_shape=False, specialize_zero_one=True)
    symbol, batch_size = symbolic_size(sizes, "batch_size", HINT)
    build = builder(str(config["architecture"]))
    with fake_tensor_mode(shape_env=sizes, allow_non_fake_inputs=True), replaced(F, pad=pad):
        step = build(config, batch_size, "meta")
        with run_as_on_cuda():
            step.run(0)
    values = sizes.var_to_range[symbol]
    narrowed = (
        []
        if values.lower == 2 and values.upper > torch.iinfo(torch.int64).max - 1
        else [str(values)]
    )
    return (
        narrowed
        + [str(guard.expr) for guard in sizes.guards]
        + [str(one) for one in sizes.replacements]
    )
