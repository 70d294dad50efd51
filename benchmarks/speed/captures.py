"""CPU time and peak memory of a first question with an empty cache, of the same question again, and of other batch sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from statistics import median

from benchmarks.speed.process_cost import IMPORTS, Cost, cost_table, measured, python, steptime
from pipeline.question.compose import choices
from pipeline.question.options import FREE_OPTIONS

MODEL = "dlrm_default"
"""The workload that is asked again."""

AGAIN, OTHER = f"{MODEL}: asked again", f"{MODEL}: a third batch size"
SIZES = {AGAIN: 2048, f"{MODEL}: a second batch size": 1024, OTHER: 3000}
"""Further questions about this workload, and their batch sizes, in this order; the first is asked with the usual one, 2,048."""


def section(rounds: int) -> str:
    """Costs of each question as medians over the rounds. Every round starts with an empty cache for each workload."""
    found = [_round() for _ in range(rounds)]
    medians = {
        name: Cost(
            median(each[name].cpu_s for each in found), median(each[name].peak_mb for each in found)
        )
        for name in found[0]
    }
    tables = list(medians.values())[1]
    return (
        f"{cost_table(medians)}\n\nAsked again, a question takes"
        f" {medians[AGAIN].cpu_s / tables.cpu_s:.1f} times the CPU time of importing pandas and"
        " pyarrow. With a third batch size, it takes"
        f" {medians[OTHER].cpu_s / tables.cpu_s:.1f} times."
    )


def _round() -> Mapping[str, Cost]:
    found = {name: measured(python(code)) for name, code in IMPORTS.items()}
    for model in (name for name in choices("model") if name not in FREE_OPTIONS):
        with tempfile.TemporaryDirectory() as folder:
            found[f"{model}: first question"] = _asked(model, folder)
            for name, size in SIZES.items() if model == MODEL else ():
                found[name] = _asked(model, folder, f"batch_size={size}")
    return found


def _asked(model: str, cache: str, *overrides: str) -> Cost:
    """Cost of a question with a cache folder."""
    return measured(
        steptime("predict", "--json", "gpu=V100", f"model={model}", *overrides),
        {"STEPTIME_CACHE": cache},
    )
