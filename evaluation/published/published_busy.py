"""Reader of the busy share of GPUs in the DLRM steps of Lin et al.: 3 GPUs, 3 models, 4 batch sizes.

The notebook that draws the paper's end-to-end figure (`ml_perf_model` in `sources.yaml`) states three errors per step, in %:

1. of the predicted active time against the measured active time,
2. of the predicted step against the measured step,
3. of the predicted active time against the measured step.

The notebook gives no times. Errors 1 and 3 have the same prediction, so their quotient gives a measured ratio: active
time over step.

The user places the published notebook under the datasets folder: `ml_perf_model/e2e_plot.ipynb`. It is never copied
into this project, and nothing here was fitted to it.
"""

from __future__ import annotations

import ast
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.published.published_pages import positive, reading

FILE = "ml_perf_model/e2e_plot.ipynb"

GPUS = {"V100": "V100", "Titan XP": "Xp", "P100": "P100"}
MODELS = {"DLRM_default": "dlrm_default", "DLRM_MLPerf": "dlrm_mlperf", "DLRM_DDP": "dlrm_ddp"}
"""Our name of each of their models."""

COLUMNS = ("gpu", "model", "batch_size", "busy", "published_busy", "published_error")


def read_busy(datasets: str | Path) -> pd.DataFrame:
    """Busy shares of the steps of Lin et al.

    Args:
        datasets: the datasets folder.

    Returns:
        A row per step, columns `COLUMNS`. `busy` is measured active time over measured step; `published_busy` is the
        same ratio of the paper's predictions. Both are fractions. `published_error` is the paper's predicted step over
        the measured step, minus 1.

    Raises:
        TableError: the file is missing, or does not hold the errors in the known form.
    """
    file = Path(datasets) / FILE
    with reading(file):
        batches, errors = _stated(json.loads(file.read_text(encoding="utf-8"))["cells"])
        rows = [
            (GPUS[gpu], MODELS[model], int(positive(batch)), (1 + kernels / 100) / (1 + active / 100),
             (1 + kernels / 100) / (1 + step / 100), step / 100)
            for gpu, models in errors.items()
            for model, steps in models.items()
            for batch, (active, step, kernels) in zip(batches, steps, strict=True)
        ]  # fmt: skip
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        if not (table["busy"].between(0, 1).all() and (table["published_busy"] > 0).all()):
            raise ValueError("with the errors in the file, a GPU is busy for longer than its step")
        return table


def _stated(cells: list[dict[str, Any]]) -> tuple[list[int], dict[str, dict[str, list[list[float]]]]]:
    """Batch sizes, and errors by GPU, model and batch; they are literals in a cell whose lines are commented out."""
    for cell in cells:
        values = _assigned_literals(re.sub(r"^# ?", "", "".join(cell["source"]), flags=re.MULTILINE))
        if values.get("batch_sizes") and values.get("errors"):
            return values["batch_sizes"], values["errors"]
    raise ValueError("no cell assigns batch_sizes and errors")


def _assigned_literals(code: str) -> dict[str, Any]:
    """The literals that a cell assigns to names. The cell is parsed and never executed."""
    with suppress(SyntaxError, ValueError):
        assignments = [node for node in ast.parse(code).body if isinstance(node, ast.Assign)]
        values: dict[str, Any] = {}
        for node in assignments:
            with suppress(ValueError, TypeError):
                value = ast.literal_eval(node.value)
                values |= {target.id: value for target in node.targets if isinstance(target, ast.Name)}
        return values
    return {}
