"""CPU time and peak memory of a repeated question, of a grid of 1,000 points, and of some of its points one by one.

The captured steps are in the user's cache before anything is measured. The first run captures about 120 steps, which takes
some minutes.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed.process_cost import (
    IMPORTS,
    cost_table,
    measured,
    median_costs,
    python,
    steptime,
)

GPUS = "V100,A100,T4,P100,H100,L4,A10,RTX3090,RTX2080Ti,RTX4090"
MODELS = "dlrm_default,resnet50,bert_large,gnmt"
GRID = (
    f"gpu={GPUS}",
    f"model={MODELS}",
    "batch_size=" + ",".join(str(8 * place) for place in range(1, 26)),
)
"""1,000 points: GPUs with and without shipped models, a workload of each kind, 25 batch sizes."""

SOME = ("gpu=V100,L4", f"model={MODELS}", "batch_size=8,64,200")
"""Points of the grid that are also predicted one by one."""

POINT = ("gpu=V100", "model=dlrm_default", "batch_size=2048")
"""A single question."""

RELATIVE = 1e-9
"""Largest relative difference between a number of the grid and that of a single prediction."""

ASKED, TOGETHER, ALONE = (
    "`steptime predict` of a point that was asked before",
    "`steptime compare --json` of 1,000 points",
    "24 of these points, `predict` one by one",
)

ONE_BY_ONE = """
import json, sys
from pipeline.answers.engine import engine
from pipeline.question.question import expand
found = [engine().predict_one(point).whole().as_dict() for point in expand({overrides!r})]
json.dump(found, open({out!r}, "w"), default=str)
"""


def section(rounds: int) -> str:
    """Costs of each part as medians over the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        together, alone = Path(folder) / "together.json", Path(folder) / "alone.json"
        parts = {
            ASKED: steptime("predict", "--json", *POINT),
            TOGETHER: steptime("compare", "--json", *GRID, out=str(together)),
            ALONE: python(ONE_BY_ONE.format(overrides=list(SOME), out=str(alone))),
        }
        for name in (ASKED, TOGETHER):
            measured(parts[name])  # captures what the cache lacks
        found = median_costs({name: python(code) for name, code in IMPORTS.items()} | parts, rounds)
        largest = largest_difference(
            json.loads(together.read_text()), json.loads(alone.read_text())
        )
    if largest > RELATIVE:
        raise SystemExit(
            f"a number of the grid differs from that of a single prediction by {largest:.1g}"
        )
    torch, tables = list(found.values())[:2]
    per_point, single = found[TOGETHER].cpu_s, found[ALONE].cpu_s / 24 * 1000
    return (
        "10 GPUs with and without shipped models, 4 workloads (`dlrm_default`, `resnet50`,"
        " `bert_large`, `gnmt`) and 25 batch sizes: 1,000 points. The captured steps are in the"
        f" user's cache.\n\n{cost_table(found)}\n\nA question that was asked before takes"
        f" {found[ASKED].cpu_s / tables.cpu_s:.1f} times the CPU time of importing pandas and"
        " pyarrow: it loads no PyTorch.\n\nThe grid takes"
        f" {found[TOGETHER].cpu_s / torch.cpu_s:.1f} times the CPU time of importing PyTorch,"
        f" {per_point:.0f} ms per point, imports and intervals included. One by one, a point takes"
        f" {single:.0f} ms. The numbers of the 24 points are equal to {RELATIVE:.0e}."
    )


def largest_difference(together: dict[str, Any], alone: list[dict[str, Any]]) -> float:
    """Largest relative difference of a number between the grid and single predictions."""
    grid = {
        (each["gpu"], each["model"], each["batch_size"]): each for each in together["predictions"]
    }
    pairs = ((each, grid[each["gpu"], each["model"], each["batch_size"]]) for each in alone)
    return max(
        difference(one, {key: row.get(key) for key in one}) for one, row in pairs
    )  # rows have prices besides


def difference(one: Any, other: Any) -> float:
    """Largest relative difference of two numbers, or of the numbers of two dicts; infinite for other values that differ."""
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == set(other):
        return max((difference(one[key], other[key]) for key in one), default=0.0)
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(abs(one), 1e-12)
    return 0.0 if one == other else math.inf
