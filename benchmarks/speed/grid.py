"""CPU time and peak memory of a repeated question, and of a grid as one table and point by point.

The captured steps are in the user's cache before anything is measured.
"""

from __future__ import annotations

from benchmarks.speed.process_cost import IMPORTS, cost_table, measured, median_costs, python, steptime

GRID = (
    "gpu=V100,A100,T4",
    "model=dlrm_default,resnet50,bert_large,gnmt",
    "batch_size=8,16,24,32,40,48,56,64,96,128",
)
"""120 points: GPUs with shipped models, and a workload of each kind."""

POINT = ("gpu=V100", "model=dlrm_default", "batch_size=2048")
"""A single question."""

ASKED, TOGETHER, ALONE = (
    "`steptime predict` of a point that was asked before", "120 points, `predict_grid`", "120 points, `predict` one by one",
)  # fmt: skip
EXPAND = f"from pipeline.config import expand; points = expand({list(GRID)!r}); "
CODE = {
    ALONE: "from pipeline.answers.predict_point import predict_point; "
    "assert all([predict_point(point, None) for point in points])",
    TOGETHER: "from pipeline.answers.predict_grid import predict_points; "
    "assert all(each.prediction for each in predict_points(points, None))",
}


def section(rounds: int) -> str:
    """Costs of each part as medians over the rounds."""
    parts = {ASKED: steptime("predict", "--json", *POINT)} | {
        name: python(EXPAND + code) for name, code in CODE.items()
    }
    for name in (ASKED, TOGETHER):
        measured(parts[name])  # captures what the cache lacks
    found = median_costs({name: python(code) for name, code in IMPORTS.items()} | parts, rounds)
    tables = list(found.values())[1]
    return (
        f"{cost_table(found)}\n\n"
        f"A question that was asked before takes {found[ASKED].cpu_s / tables.cpu_s:.1f} times the CPU time of importing "
        "pandas and pyarrow: it loads neither PyTorch nor Hydra.\n\n"
        f"The grid takes 1/{found[ALONE].cpu_s / found[TOGETHER].cpu_s:.1f} of the CPU time of single predictions in one "
        f"process, and {found[TOGETHER].peak_mb / found[ALONE].peak_mb:.2f} times their peak memory. A point of the grid "
        f"takes {found[TOGETHER].cpu_s / 120 * 1000:.0f} ms of CPU time, imports included."
    )
