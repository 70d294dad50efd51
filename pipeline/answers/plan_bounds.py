"""Lower bounds of step times, which rule out points of a plan without predicting them.

Every kernel needs at least the time of its FLOPs at the peak rate, that of its bytes at the bandwidth of the memory (of the L2
cache, if they fit there), and that of a kernel of negligible size. Kernels of one stream run one after another, so a step
takes at least the sum. It also takes at least the time that the host needs to launch them.

Calls are mapped at a few batch sizes, the knots; between two knots the roofline is taken from the line through both. That,
and models that were fitted to measurements, may leave a prediction below its bound. A search therefore compares bounds with
predictions, and lowers all bounds by the largest excess (`pipeline.answers.plan_search`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.answers.engine import Engine
from pipeline.errors import SteptimeError
from pipeline.graph.step_store import gpu_kind
from pipeline.hardware.rank_layout import COMPUTING_STREAM
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.physics import Physics
from pipeline.question.question import Question
from pipeline.simulate.critical_path import simulate
from pipeline.simulate.program import assemble, step_sequence
from pipeline.simulate.program_changes import as_cuda_graphs

Floats = npt.NDArray[np.float64]

WINOGRAD = 4.0
"""Largest factor by which algorithms of a convolution save FLOPs: cuDNN's F(4x4, 3x3) makes 36 products instead of 144."""

PRODUCTS = ("gemm", "bmm", "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight")
"""Kernel families whose FLOPs limit them. The others move bytes."""

KNOT_RATIO = 4
"""Largest ratio of two neighbouring knots, where batch sizes allow it."""


def knots(batch_sizes: Sequence[int]) -> list[int]:
    """Batch sizes at which calls are mapped: the least and the largest, and others in steps of `KNOT_RATIO`.

    Args:
        batch_sizes: distinct, in ascending order.
    """
    chosen = [batch_sizes[0]]
    for size, following in pairwise(batch_sizes):
        if size > chosen[-1] and following > KNOT_RATIO * chosen[-1]:
            chosen.append(size)
    return list(dict.fromkeys([*chosen, batch_sizes[-1]]))


def roofline_us(calls: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Lower bound of the time in µs of each call, shape (calls,). Copies from the host are bounded by the link.

    Args:
        calls: device calls, `calls` schema.
        gpu: the GPU with its peak rates.
    """
    written, read, flops = (
        calls[name].to_numpy(float, na_value=0.0)
        for name in ("bytes_written", "bytes_read", "flops")
    )
    family, moved = calls["family"].astype(str), read + written
    gb_per_s = np.where(moved <= gpu.l2_bytes, gpu.peak_l2_gb_per_s(), gpu.peak_dram_gb_per_s())
    memory_us = moved / np.maximum(gb_per_s, gpu.peak_dram_gb_per_s()) / 1e3
    over_link = family.str.startswith("memcpy_") & (family != "memcpy_d2d")
    memory_us = np.where(over_link, written / max(gpu.pcie_gb_per_s, 1.0) / 1e3, memory_us)
    rates = {dtype: gpu.peak_gflop_per_s(dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")}
    peak = calls["dtype"].map(rates).fillna(max(rates.values())).to_numpy(float)
    saved = np.where(family.str.startswith("conv2d"), WINOGRAD, 1.0)
    arithmetic_us = np.where(family.isin(PRODUCTS), flops, 0.0) / (peak * saved) / 1e3
    physics = Physics.of(gpu)
    start_us = family.map({name: physics.start_us(name) for name in family.unique()}).to_numpy(
        float
    )
    return np.asarray(np.maximum(np.maximum(memory_us, arithmetic_us), start_us))


class StepBounds:
    """Bounds of one step at several batch sizes.

    Args:
        engine: gives graphs, calls and overheads.
        batch_sizes: of all questions about this step.
    """

    def __init__(self, engine: Engine, batch_sizes: Sequence[int]) -> None:
        self.engine = engine
        self.knots = knots(sorted(batch_sizes))
        self._calls: dict[tuple[str, int], pd.DataFrame] = {}
        self._host_us: dict[object, float] = {}

    def map_calls(self, questions: Sequence[Question], told: Callable[[float], object]) -> None:
        """Map the step at its knots, knot by knot for all GPUs, which is faster than GPU by GPU.

        A knot at which the step cannot be made is left out: its questions say why when they are asked. `told` is called
        with the share that is done.
        """
        kinds = {gpu_kind(question.gpu): question for question in questions}
        for number, size in enumerate(self.knots, 1):
            for kind, question in kinds.items():
                with suppress(SteptimeError):
                    self._calls[kind, size] = self.engine.steps.calls(
                        replace(question, batch_size=size)
                    )
            told(number / len(self.knots))

    def bounds_us(self, question: Question, batch_sizes: Sequence[int]) -> Floats:
        """Lower bounds in µs of a question's step at other batch sizes, shape (batch sizes, 2).

        They are those of a step, and of one that accumulates gradients without an update of the weights.
        """
        kind, sizes, rooflines = gpu_kind(question.gpu), [], []
        for size in self.knots:
            if (calls := self._calls.get((kind, size))) is not None:
                calls = calls[calls["stream"] == COMPUTING_STREAM]  # collectives may be hidden
                call_us = roofline_us(calls, question.gpu)
                update = (calls["phase"] == "optimizer").to_numpy(bool)
                sizes.append(size)
                rooflines.append((call_us.sum(), call_us[~update].sum()))
        if not sizes:
            return np.zeros((len(batch_sizes), 2))
        bounds = np.stack(
            [np.interp(batch_sizes, sizes, column) for column in np.transpose(rooflines)], axis=-1
        )
        bounds[:, 0] = np.maximum(bounds[:, 0], self._host_time_us(question, sizes[0]))
        return bounds

    def _host_time_us(self, question: Question, batch_size: int) -> float:
        """The time that the host needs for the step if no kernel takes time; it hardly depends on the batch size."""
        overheads = self.engine.models.overheads(question)
        key = gpu_kind(question.gpu), id(overheads), question.predict.cuda_graph
        if key not in self._host_us:
            calls = self._calls[key[0], batch_size]
            graph = self.engine.steps.graph(replace(question, batch_size=batch_size))
            program = assemble(step_sequence(graph.table, calls), overheads, len(calls))
            program = as_cuda_graphs(program) if question.predict.cuda_graph else program
            self._host_us[key] = float(simulate(program, np.zeros(len(calls))).host_us[0])
        return self._host_us[key]
