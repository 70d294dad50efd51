"""CPU time and peak memory of 10,000 draws of one step, and the speed of the compiled walk along the critical path."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import process_time

import numpy as np

from benchmarks.speed.process_cost import (
    IMPORTS,
    cost_table,
    measured,
    median_costs,
    python,
    steptime,
)
from pipeline.answers.engine import STEPS
from pipeline.answers.model_sources import AvailableModels
from pipeline.answers.step_prediction import StepParts
from pipeline.question.question import expand
from pipeline.simulate.assembly import assemble
from pipeline.simulate.compiled_walk import walk
from pipeline.simulate.critical_path import simulate

POINT = ("gpu=V100", "model=dlrm_default", "batch_size=2048")
LONG = ("gpu=V100", "model=bert_large", "batch_size=8")
"""A step with many layers of one shape."""

WALKED = 256
"""Draws with which the two walks are compared."""

DRAWS = {count: f"a DLRM step with {count:,} draws" for count in (16, 1_024, 10_000)}


def section(rounds: int) -> str:
    """Costs as medians over the rounds; the difference of two counts is the time of the draws."""
    parts = {
        name: steptime("predict", "--json", *POINT, f"predict.draws={count}", "predict.seed=1")
        for count, name in DRAWS.items()
    }
    for command in parts.values():
        measured(command)  # captures what the cache lacks
    found = median_costs({name: python(code) for name, code in IMPORTS.items()} | parts, rounds)
    torch, fewest, most = (found[name] for name in (next(iter(IMPORTS)), DRAWS[16], DRAWS[10_000]))
    draws = most.cpu_s - fewest.cpu_s
    return (
        f"{cost_table(found)}\n\n10,000 draws of this step take {draws:.2f} s of CPU time,"
        f" {draws / torch.cpu_s:.2f} times that of importing PyTorch, and"
        f" {most.peak_mb - fewest.peak_mb:.0f} MB.\n\n{walks(rounds)}"
    )


def walks(rounds: int) -> str:
    """Times of the compiled and of the plain walk over the same draws of a long step."""
    question, models = expand(list(LONG))[0], AvailableModels(None)
    parts = StepParts.of(STEPS.graph(question), STEPS.calls(question))
    program = assemble(
        parts.sequence, models.overheads(question), len(parts.which), workload=question.step_name
    )
    kernel_us = models.kernels(question).predict(parts.calls)["kernel_us"]
    which, scale = parts.which, np.ones(WALKED)
    times = np.repeat(kernel_us.to_numpy(float)[:, None], WALKED, axis=1) * np.linspace(
        0.9, 1.1, WALKED
    )
    walk(program, times, which, scale)  # loads the compiled code
    compiled = seconds(lambda: walk(program, times, which, scale), rounds)
    plain = seconds(lambda: simulate(program, times[which].T, host_scale=scale), rounds)
    return (
        f"The compiled walk takes {1e9 * compiled / WALKED / len(program):.1f} ns per row of a"
        f" program and draw, 1/{plain / compiled:.0f} of the plain one:"
        f" {1e3 * compiled / WALKED * 1024:.0f} ms for the 1,024 simulations of a BERT-Large step"
        f" of {len(program):,} rows. Its 24 equal layers are therefore walked row by row."
    )


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Median CPU time of a call."""
    found = []
    for _ in range(rounds):
        begin = process_time()
        work()
        found.append(process_time() - begin)
    return median(found)
