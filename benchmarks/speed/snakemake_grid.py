"""A grid of 20 points by Snakemake: building its graph of jobs, and what the jobs cost beyond `predict_grid`.

The captured steps are in the user's cache before anything is measured. Each run starts in an empty folder.
"""

from __future__ import annotations

import shlex
import sys
import tempfile

from benchmarks.speed.process_cost import IMPORTS, Cost, cost_table, measured, python
from pipeline.paths import project_dir

GRID = {
    "gpu": "V100,A100,T4,P100,H100",
    "model": "dlrm_default,dlrm_ddp",
    "batch_size": "512,2048",
}
POINTS = 20
NO_DATA = {"STEPTIME_DATASETS": "none"}
"""The shipped models predict, so that no run fits models to public data."""

IMPORT, PLAN, RUN, TABLE = (
    '`python -c "import torch"`',
    "graph of jobs (`snakemake -n`)",
    "the run",
    "the same points by `predict_grid`",
)


def section(rounds: int) -> str:
    """Costs of each part as those of the round with the least CPU time."""
    overrides = [f"{key}={value}" for key, value in GRID.items()]
    table = python(
        f"from pipeline.question.question import expand; points = expand({overrides!r}); "
        "from pipeline.answers.engine import engine; "
        "assert all(each.prediction for each in engine(None).predict(points))"
    )
    measured(table, NO_DATA)  # captures what the cache lacks
    found: list[dict[str, Cost]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(
                {
                    IMPORT: measured(python(IMPORTS[IMPORT])),
                    PLAN: measured(_snakemake(folder, ["-n", *overrides]), NO_DATA),
                    RUN: measured(_snakemake(folder, overrides), NO_DATA),
                    TABLE: measured(table, NO_DATA),
                }
            )
    best = {
        name: min((each[name] for each in found), key=lambda cost: cost.cpu_s) for name in found[0]
    }
    overhead = (best[RUN].cpu_s - best[TABLE].cpu_s) / POINTS
    return (
        f"{cost_table(best)}\n\nThe run takes {overhead:.3f} s of CPU time per point more than"
        " `predict_grid`. It writes the graph, the device calls, the prediction by operator and"
        " the timeline of each point."
    )


def _snakemake(folder: str, words: list[str]) -> list[str]:
    """The command of a run in a folder, without output."""
    flags = [word for word in words if word.startswith("-")]
    overrides = [word for word in words if not word.startswith("-")]
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(project_dir() / "Snakefile"),
        "--directory",
        folder,
        "--cores",
        "1",
        *flags,
        "--config",
        *overrides,
    ]
    return ["/bin/sh", "-c", f"exec {shlex.join(command)} >/dev/null 2>&1"]
