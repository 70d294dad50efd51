"""CPU time and peak memory of plans over large spaces, and how many of their points fit.

The captured steps are in the user's cache before anything is measured: the first run of each plan is not counted.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.speed.process_cost import (
    IMPORTS,
    cost_table,
    measured,
    median_costs,
    python,
    steptime,
)
from evaluation.pages.markdown import markdown

GPUS = "V100,A100,T4,P100,H100,L4,A10,RTX3090,RTX2080Ti,RTX4090"
MODELS = "dlrm_small,dlrm_default,resnet50"

COLUMNS = ("plan", "points", "do not fit", "predicted")


def space(models: str, batch_sizes: int) -> tuple[str, ...]:
    """10 GPUs, two dtypes, with and without CUDA graphs, and batch sizes in steps of 8."""
    sizes = ",".join(str(8 * place) for place in range(1, batch_sizes + 1))
    return (
        f"gpu={GPUS}",
        f"model={models}",
        f"batch_size={sizes}",
        "model.dtype=fp32,fp16",
        "predict.cuda_graph=false,true",
    )


PLANS = {
    "`samples_per_s`, 50,400 points": ("samples_per_s", *space(MODELS, 420)),
}
"""Objective and space of each plan."""


def section(rounds: int) -> str:
    """Costs of each plan as medians over the rounds, and what happened to its points."""
    torch = '`python -c "import torch"`'
    with tempfile.TemporaryDirectory() as folder:
        outs = {name: Path(folder) / f"{number}.json" for number, name in enumerate(PLANS)}
        plans = {
            name: steptime("plan", "--json", *words, out=str(outs[name]))
            for name, words in PLANS.items()
        }
        for command in plans.values():
            measured(command)  # captures what the cache lacks
        found = median_costs({torch: python(IMPORTS[torch])} | plans, rounds)
        answers = {name: json.loads(path.read_text()) for name, path in outs.items()}
    first = next(iter(PLANS))
    rows = [
        (
            name,
            f"{each['points']:,}",
            f"{each['lost'].get('does not fit', 0):,}",
            f"{each['predicted']:,}",
        )
        for name, each in answers.items()
    ]
    return (
        f"10 GPUs, 3 workloads (`{MODELS.replace(',', '`, `')}`), fp32 and fp16, with and without"
        " CUDA graphs, and 420 batch sizes in steps of 8. The captured steps are in the user's"
        f" cache.\n\n{cost_table(found)}\n\n{markdown(COLUMNS, rows)}\n\nA"
        f" point takes {1000 * found[first].cpu_s / answers[first]['points']:.2f} ms of CPU time."
    )
