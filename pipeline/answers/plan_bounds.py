"""Lower bounds of step times, in two stages, which rule out points of a plan without predicting them.

1. Roofline, for all points. Every kernel needs at least the time of its FLOPs at the peak rate, and that of its bytes at
   the bandwidth of the memory (of the L2 cache, if they fit there). Kernels of one stream run one after another, so a
   step takes at least the sum.
2. Kernel models, for points that the first stage leaves: the step is simulated with predicted times of the calls that it
   shares with its neighbouring knots (`pipeline.answers.call_lines`). All batch sizes between two knots are one table of
   kernels and one simulation. On 4 workloads and 2 GPUs, these calls had 97 to 100 % of the device time.

A model that was fitted to measurements may predict less than a roofline. A plan therefore compares each bound with what the
later stages find, and lowers all bounds of a stage by the largest excess (`pipeline.answers.plan_search`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.call_lines import CallLine, knots
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.made_once import MadeOnce
from pipeline.answers.predict_point import graph_of
from pipeline.errors import SteptimeError
from pipeline.graph.graph_cache import calls_of
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.networks import ROWS_IN_DOUBLE
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.settings import EditSettings, FrozenDict, PredictSettings
from pipeline.simulate.critical_path import Form
from pipeline.simulate.cuda_graph import as_cuda_graphs
from pipeline.simulate.program import assemble, step_sequence
from pipeline.simulate.step_draws import step_times
from pipeline.simulate.step_program import Program, StepSequence

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WINOGRAD = 4.0
"""Largest factor by which algorithms of a convolution save FLOPs: cuDNN's F(4x4, 3x3) makes 36 products instead of 144."""

PRODUCTS = ("gemm", "bmm", "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight")
"""Kernel families whose FLOPs limit them. The others move bytes."""

ROWS_AT_ONCE = ROWS_IN_DOUBLE
"""Calls that kernel models predict as one table."""


def roofline_us(line: CallLine, batch_sizes: Ints, gpu: GpuSpec) -> Floats:
    """Lower bound of the time in µs of each distinct call, shape (batch sizes, rows).

    Args:
        line: calls of a step. Copies from the host are bounded by the link.
        batch_sizes: on the line.
        gpu: the GPU with its peak rates.
    """
    written = line.number("bytes_written", batch_sizes)
    moved, family = line.number("bytes_read", batch_sizes) + written, line.texts["family"]
    per_s = np.where(moved <= gpu.l2_bytes, gpu.peak_l2_gb_per_s(), gpu.peak_dram_gb_per_s())
    memory = moved / np.maximum(per_s, gpu.peak_dram_gb_per_s()) / 1e3
    link = np.array([name.startswith("memcpy_") and name != "memcpy_d2d" for name in family], dtype=bool)
    memory = np.where(link, written / max(gpu.pcie_gb_per_s, 1.0) / 1e3, memory)
    rates = {dtype: gpu.peak_gflop_per_s(dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")}
    peak = np.array([rates.get(dtype, max(rates.values())) for dtype in line.texts["dtype"]], dtype=float)
    saved = np.array([WINOGRAD if name.startswith("conv2d") else 1.0 for name in family])
    flops = np.where(np.isin(family, PRODUCTS), line.number("flops", batch_sizes), 0.0)
    return np.asarray(np.maximum(memory, flops / (peak * saved) / 1e3))


def step_bounds_us(line: CallLine, batch_sizes: Ints, gpu: GpuSpec) -> Floats:
    """First stage: lower bounds in µs, shape (batch sizes, 2).

    They are those of a step, and of one that accumulates gradients without an update of the weights.
    """
    times = roofline_us(line, batch_sizes, gpu) * line.count
    return np.stack([times.sum(axis=-1), times[:, ~line.update].sum(axis=-1)], axis=-1)


@dataclass(frozen=True)
class SharedCalls:
    """Batch sizes of one step on one GPU whose calls lie on one line, with the step's program at both ends."""

    line: CallLine
    batch_sizes: Ints
    places: Ints
    """Where the batch sizes are among those that were asked for, shape (batch sizes,)."""
    ends: tuple[tuple[StepSequence, Ints], ...]
    """Items and actions at each end, with the row of the line for each device call."""

    def programs(self, overheads: OverheadModel) -> list[Program]:
        """The step's program at each end, with the host times of a host."""
        return [assemble(sequence, overheads, len(rows)) for sequence, rows in self.ends]

    def bounds_us(self, kernel_us: Floats, programs: Sequence[Program], settings: PredictSettings) -> Floats:
        """Second stage: lower bounds in µs, shape (batch sizes, 2), as `step_bounds_us`.

        Args:
            kernel_us: times of the rows of `CallLine.table`.
            programs: from `programs`.
            settings: whether kernels are launched as CUDA graphs, and the form of the critical path.
        """
        times = kernel_us.reshape(len(self.batch_sizes), -1)
        with_none = np.append(times.T, np.zeros((1, len(times))), axis=0)  # row -1: a call that is left out
        form: Form = "published" if settings.critical_path == "published" else "full"
        chosen = map(as_cuda_graphs, programs) if settings.cuda_graph else programs
        whole = [
            step_times(program, with_none, rows % len(with_none), np.ones(len(times)), form)
            for program, (_, rows) in zip(chosen, self.ends, strict=True)
        ]
        part = (times * self.line.count)[:, ~self.line.update].sum(axis=-1)
        return np.stack([np.min(whole, axis=0), part], axis=-1)


def modelled_us(kernels: KernelPredictor, shared: Sequence[SharedCalls]) -> Iterator[Floats]:
    """Kernel times in µs of the rows of each line's table, predicted as few large tables."""
    waiting: list[pd.DataFrame] = []
    for place, each in enumerate(shared):
        waiting.append(each.line.table(each.batch_sizes))
        if place == len(shared) - 1 or sum(map(len, waiting)) >= ROWS_AT_ONCE:
            table = pd.concat(waiting, ignore_index=True)
            blocks = [table.iloc[at : at + ROWS_AT_ONCE] for at in range(0, len(table), ROWS_AT_ONCE)]
            found = np.concatenate([kernels.predict(block)["kernel_us"].to_numpy(float) for block in blocks])
            yield from np.split(found, np.cumsum([len(part) for part in waiting])[:-1])
            waiting = []


class StepBounds:
    """Bounds of one step at several batch sizes. Graphs and calls of its knots are made once; a failure is raised again.

    Args:
        model: section `model` of the points.
        edit: edits of the operators.
        batch_sizes: of all points of this step.
    """

    def __init__(self, model: FrozenDict, edit: EditSettings, batch_sizes: Sequence[int]) -> None:
        self.model, self.edit = model, edit
        self.knots = knots(sorted(batch_sizes))
        self._once = MadeOnce()
        self._tables = MadeOnce()
        self._known: list[tuple[pd.DataFrame, pd.DataFrame, CallLine]] = []

    def map_calls(self, gpus: Iterable[GpuSpec], told: Callable[[float], object]) -> None:
        """Map the step at its knots, graph by graph for all GPUs, which is faster than GPU by GPU.

        `told` is called with the share that is done.
        """
        kinds = {_kind(gpu): gpu for gpu in gpus}
        for done, size in enumerate(self.knots, 1):
            for gpu in kinds.values():
                with suppress(SteptimeError):  # raised again by the points of this batch size
                    self._calls(gpu, size)
            told(done / len(self.knots))

    def forget_tables(self) -> None:
        """Free the tables of calls. Lines stay; tables that are needed again are read again."""
        self._tables = MadeOnce()
        self._known.clear()

    def roofline(self, gpu: GpuSpec, batch_sizes: Sequence[int]) -> tuple[Floats, Mapping[int, SteptimeError]]:
        """`step_bounds_us` at each batch size, and the error of each batch size at which the step cannot be made."""
        found, failed = np.zeros((len(batch_sizes), 2)), {}
        for line, sizes, places, error in self._lines(gpu, batch_sizes):
            if line is None:
                failed.update({int(size): error for size in sizes})
            else:
                found[places] = step_bounds_us(line, sizes, gpu)
        return found, failed

    def shared_calls(self, gpu: GpuSpec, batch_sizes: Sequence[int]) -> list[SharedCalls]:
        """What the second stage needs, line by line. All batch sizes are ones without an error."""
        return [
            SharedCalls(line, sizes, places, tuple(self._ends(gpu, line)))
            for line, sizes, places, _ in self._lines(gpu, batch_sizes)
            if line is not None
        ]

    def _lines(self, gpu: GpuSpec, batch_sizes: Sequence[int]) -> Iterator[tuple[CallLine | None, Ints, Ints, Any]]:
        """Lines with their batch sizes and the places of these; None with an error where the step cannot be made."""
        by_knots: dict[tuple[int, int], list[int]] = {}
        for place, size in enumerate(batch_sizes):
            by_knots.setdefault(self._around(size), []).append(place)
        sizes = np.array(batch_sizes, dtype=np.int64)
        for ends, at in by_knots.items():
            places = np.array(at, dtype=np.int64)
            try:
                yield self._line(gpu, ends), sizes[places], places, None
            except SteptimeError:  # of a knot: each batch size has its own calls then, or its own error
                for place in at:
                    one = sizes[[place]], places[places == place]
                    try:
                        yield self._line(gpu, (int(sizes[place]),) * 2), *one, None
                    except SteptimeError as error:
                        yield None, *one, error

    def _around(self, size: int) -> tuple[int, int]:
        """The knots on both sides of a batch size; twice the batch size where it is a knot."""
        place = bisect_left(self.knots, size)
        return (size, size) if self.knots[place] == size else (self.knots[place - 1], self.knots[place])

    def _line(self, gpu: GpuSpec, ends: tuple[int, int]) -> CallLine:
        def make() -> CallLine:
            low, high = (self._calls(gpu, size) for size in ends)
            for first, second, line in self._known:  # kinds of GPUs mostly launch the same kernels
                if (line.low, line.high) == ends and _same(first, low) and _same(second, high):
                    return line
            line = CallLine.between(low, high, ends)
            self._known.append((low, high, line))
            return line

        return self._once((_kind(gpu), ends), make)

    def _calls(self, gpu: GpuSpec, batch_size: int) -> pd.DataFrame:
        def make() -> pd.DataFrame:
            graph = graph_of(self.model, batch_size, self.edit)
            return calls_of(graph, self.model.plain(), batch_size, gpu, self.edit)

        return self._tables((_kind(gpu), batch_size), make)

    def _ends(self, gpu: GpuSpec, line: CallLine) -> Iterator[tuple[StepSequence, Ints]]:
        yield self._sequence(gpu, line.low), line.at_low
        if line.high != line.low:
            yield self._sequence(gpu, line.high), line.at_high

    def _sequence(self, gpu: GpuSpec, batch_size: int) -> StepSequence:
        def make() -> StepSequence:
            graph = graph_of(self.model, batch_size, self.edit)
            return step_sequence(graph.table, self._calls(gpu, batch_size))

        return self._once(("sequence", _kind(gpu), batch_size), make)


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    return one is other or one.equals(other)


def _kind(gpu: GpuSpec) -> tuple[str, float]:
    """GPUs of a kind have nearly the same calls: these hardly depend on the number of multiprocessors."""
    return gpu.architecture, gpu.compute_capability
