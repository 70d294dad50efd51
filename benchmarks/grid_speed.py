"""CPU time and peak memory: a repeated question, a grid by `predict_grid`, and the same points one by one.

Each part runs in a process of its own, in turn, with one BLAS thread. The captured steps are in the user's cache before
anything is measured. CPU time is that of the whole process, its imports included. Run:
`OMP_NUM_THREADS=1 python benchmarks/grid_speed.py [--rounds 3] [--page docs/speed.md]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pipeline.schemas import atomic_path

GRID = (
    "gpu=V100,A100,T4",
    "model=dlrm_default,resnet50,bert_large,gnmt",
    "batch_size=8,16,24,32,40,48,56,64,96,128",
)
"""120 points: GPUs with shipped models, and a workload of each kind."""

POINT = ("gpu=V100", "model=dlrm_default", "batch_size=2048")
"""A single question."""

EXPAND = "from pipeline.config import expand; points = expand({overrides!r}); "
TOGETHER = EXPAND + (
    "from pipeline.answers.predict_grid import predict_points; "
    "assert all(each.prediction for each in predict_points(points, None))"
)
ONE_BY_ONE = EXPAND + (
    "from pipeline.answers.predict_point import predict_point; "
    "assert all([predict_point(point, None) for point in points])"
)
COMMAND = (
    "import sys; sys.argv = ['steptime', 'predict', '--json', *{overrides!r}]; sys.stdout = open('/dev/null', 'w'); "
    "from pipeline.cli import main; main()"
)


@dataclass(frozen=True)
class Cost:
    """CPU time of a process in seconds, user and system, and its peak memory in MB."""

    cpu_s: float
    peak_mb: float


def measured(code: str) -> Cost:
    """Cost of a Python process that runs `code`."""
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"OMP_NUM_THREADS": "1"})
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a part of the benchmark failed with exit code {process.returncode}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def costs(rounds: int) -> dict[str, Cost]:
    """Median cost of each part over the rounds."""
    grid, point = list(GRID), list(POINT)
    parts = {
        '`python -c "import torch"`': "import torch",
        '`python -c "import pandas, pyarrow"`': "import pandas, pyarrow",
        "`steptime predict` of a point that was asked before": COMMAND.format(overrides=point),
        "120 points, `predict` one by one": ONE_BY_ONE.format(overrides=grid),
        "120 points, `predict_grid`": TOGETHER.format(overrides=grid),
    }
    for code in (TOGETHER.format(overrides=grid), COMMAND.format(overrides=point)):
        measured(code)  # captures what the cache lacks
    found = [{name: measured(code) for name, code in parts.items()} for _ in range(rounds)]
    return {
        name: Cost(median(each[name].cpu_s for each in found), median(each[name].peak_mb for each in found))
        for name in parts
    }


def table(found: dict[str, Cost]) -> str:
    """The costs as a Markdown table; ratios are to the import of PyTorch."""
    base = next(iter(found.values()))
    lines = ["| what | CPU time (s) | ratio | peak memory (MB) | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {cost.cpu_s:.2f} | {cost.cpu_s / base.cpu_s:.2f} | {cost.peak_mb:.0f} | "
        f"{cost.peak_mb / base.peak_mb:.2f} |"
        for name, cost in found.items()
    ]
    asked, tables = found["`steptime predict` of a point that was asked before"], list(found.values())[1]
    together, alone = found["120 points, `predict_grid`"], found["120 points, `predict` one by one"]
    return "\n".join(lines) + (
        f"\n\nA question that was asked before takes {asked.cpu_s / tables.cpu_s:.1f} times the CPU time of importing pandas "
        "and pyarrow: it loads neither PyTorch nor Hydra.\n\n"
        f"The grid takes 1/{alone.cpu_s / together.cpu_s:.1f} of the CPU time of single predictions in one process, and "
        f"{together.peak_mb / alone.peak_mb:.2f} times their peak memory. A point of the grid takes "
        f"{together.cpu_s / 120 * 1000:.0f} ms of CPU time, imports included."
    )


PAGE = """# Speed

```console
$ steptime compare gpu=V100,A100,T4 model=dlrm_default,resnet50 batch_size=32,64,128
$ steptime compare 'gpu=glob(*)' model=bert_large batch_size=4,8,16 --out grid.parquet
```

```python
from pipeline import predict_grid

table = predict_grid(gpu="V100,A100", model="resnet50", batch_size="32,64", model__dtype="fp32,fp16")
print(table[["gpu", "batch_size", "predicted_us", "p10_us", "p90_us", "unpredicted"]])
```

A grid is predicted as one table. Each workload is captured and mapped once, and the models of a GPU are read once. The
distinct calls of all points of a GPU go through the kernel models together. The critical path runs in compiled code.
Every number equals that of `predict` to 1e-9.

`predict_grid` returns a row per point. A point without a prediction has its reason in `unpredicted`. `--out` writes the rows
to a parquet file while the grid is predicted, in the order in which points are done. Shares and times by kind are JSON
text in this file.

## Measured

The grid has 3 GPUs (V100, A100, T4), 4 workloads (`dlrm_default`, `resnet50`, `bert_large`, `gnmt`) and 10 batch sizes.
Each part is a process of its own with one BLAS thread. The captured steps are in the user's cache. CPU time and memory
are those of the whole process, as medians over the rounds, and ratios are to the import of PyTorch.

{table}

`python benchmarks/grid_speed.py --page docs/speed.md` writes this page.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, help="write the page with this table here")
    given = parser.parse_args()
    text = table(costs(given.rounds))
    print(text)
    if given.page is not None:
        with atomic_path(given.page) as part:
            part.write_text(PAGE.format(table=text), encoding="utf-8")


if __name__ == "__main__":
    main()
