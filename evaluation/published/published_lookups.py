"""Reader of published embedding lookups on V100 and A100; the embedding models are compared with them.

- Liger Kernel's benchmark (`liger` in `sources.yaml`), A100-SXM4-80GB: `nn.Embedding` of 16,384 tokens, eager in PyTorch of
  2024 and compiled, forward only and with the gradient.
- A notebook of ml_perf_model (`ml_perf_model` in `sources.yaml`), V100: predecessors of FBGEMM's kernels, with many tables.
- A pull request to PyTorch (`pytorch-49913` in `sources.yaml`), A100: gradients of few tokens, computed by one kernel.

The user places the published files under the datasets folder: `liger/all_benchmark_data.csv`,
`ml_perf_model/exp_gpu_performance_models.ipynb` and `pytorch/pr-49913.md` (the comment's table). They are never copied
into this project.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.published.published_pages import positive, reading
from pipeline.errors import TableError
from pipeline.readable import distinct

LIGER = "liger/all_benchmark_data.csv"
NOTEBOOK = "ml_perf_model/exp_gpu_performance_models.ipynb"
PULL_REQUEST = "pytorch/pr-49913.md"

SOURCE_PAGE = "docs/notes/kernels.md"
"""The document that says where the files come from."""

LIGER_GPUS = {"NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB"}
PROVIDERS = {"huggingface": "gather_2024", "torch_compile": "gather"}
"""Operation that each of Liger's providers ran. PyTorch 2.4 (`gather_2024`) copied element by element. The compiler's
kernel (`gather`) copies whole rows; later versions of PyTorch do the same."""

KERNELS = {
    "batched_embedding_forward_kernel_1": "fused",
    "batched_embedding_backward_sgd_kernel_1": "fused_atomic",
}
TABLE = "application/vnd.dataresource+json"
NOTEBOOK_DIMS = {
    "batch_size": "B",
    "num_tables": "T",
    "num_embeddings": "E",
    "bag_size": "L",
    "embedding_dim": "D",
}

MAX_WIDTH = 256
"""Largest row width, in elements, that is read from the pull request. It does not state the number of rows of its
table, and the time to zero the gradient of the table grows with the width."""

VOCABULARY = 30_522
"""Assumed number of rows of that table: the vocabulary of BERT, which the pull request mentions. Zeroing its gradient
takes at most 19 µs for widths up to `MAX_WIDTH`."""

TUNING_WIDTHS = (4096,)
"""Row widths of Liger's benchmark that were known when the form of the model was chosen; others are only reported."""

COLUMNS = ("source", "gpu", "op", "B", "T", "E", "L", "D", "measured_us", "seen")


def read_lookups(datasets: str | Path) -> pd.DataFrame:
    """Every lookup and gradient of the three sources.

    Args:
        datasets: the datasets folder.

    Returns:
        A row per measurement, columns `COLUMNS`.
        `op` is `gather` or `gather_2024` (forward of `nn.Embedding`), `dense_few`, `fused`, or one of two others.
        `dense` is the gradient of `nn.Embedding` by sorting, with all other work that was measured.
        `fused_atomic` is an update that adds without sorting.
        Sizes are B samples, T tables of E rows and width D, L lookups.
        `seen` is True if the measurement was known when the model's form was chosen.

    Raises:
        TableError: a file is missing, or not in its known form.
    """
    found = [_liger(Path(datasets) / LIGER), _notebook(Path(datasets) / NOTEBOOK)]
    found.append(_pull_request(Path(datasets) / PULL_REQUEST))
    rows = pd.concat(
        [pd.DataFrame(part, columns=list(COLUMNS)) for part in found], ignore_index=True
    )
    if not (np.isfinite(rows["measured_us"]) & (rows["measured_us"] > 0)).all():
        raise TableError(f"{datasets}: the time of a published lookup is not positive")
    return rows


def _liger(file: Path) -> list[tuple[Any, ...]]:
    """Forward times, and the extra time of the gradient."""
    with reading(file, SOURCE_PAGE):
        table = pd.read_csv(file)
        table = table[
            (table["kernel_name"] == "embedding")
            & (table["metric_name"] == "speed")
            & (table["x_name"] == "V")
        ]
        times = {
            (
                gpu,
                provider,
                mode,
                int(sizes["B"]) * int(sizes["T"]),
                int(sizes["D"]),
                int(vocabulary),
            ): 1e3 * float(ms)
            for gpu, provider, mode, sizes, vocabulary, ms in zip(
                table["gpu_name"],
                table["kernel_provider"],
                table["kernel_operation_mode"],
                table["extra_benchmark_config_str"].map(json.loads),
                table["x_value"],
                table["y_value_50"],
                strict=True,
            )
        }
    found: list[tuple[Any, ...]] = []
    for (gpu, provider, mode, tokens, width, vocabulary), us in times.items():
        if gpu not in LIGER_GPUS or provider not in PROVIDERS:
            continue
        sizes = (tokens, 1, vocabulary, 1, width)
        if mode == "forward":
            found.append(
                ("liger", LIGER_GPUS[gpu], PROVIDERS[provider], *sizes, us, width in TUNING_WIDTHS)
            )
        forward = times.get((gpu, provider, "forward", tokens, width, vocabulary))
        if mode == "full" and provider == "huggingface" and forward is not None:
            found.append(
                ("liger", LIGER_GPUS[gpu], "dense", *sizes, us - forward, width in TUNING_WIDTHS)
            )
    if not found:
        raise TableError(f"{file}: has no embedding on {', '.join(LIGER_GPUS)}")
    return found


def _notebook(file: Path) -> list[tuple[Any, ...]]:
    """Kernels of the tables that the notebook prints, with sizes and nvprof's time, without duplicates."""
    with reading(file, SOURCE_PAGE):
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        outputs = [
            out["data"]
            for cell in cells
            for out in cell.get("outputs", [])
            if TABLE in out.get("data", {})
        ]
        rows = [
            (
                "ml_perf_model",
                "V100",
                KERNELS[row["kernel_name"]],
                *(int(row[key]) for key in NOTEBOOK_DIMS),
                float(row["kernel_runtime"]),
                False,
            )
            for output in outputs
            for row in output[TABLE]["data"]
            if row.get("kernel_name") in KERNELS
        ]
    if not rows:
        raise TableError(f"{file}: has no printed table of embedding kernels")
    return distinct(rows)


def _pull_request(file: Path) -> list[tuple[Any, ...]]:
    """The comment's table: tokens, width, and seconds of the single kernel.

    Its times of the sorted form are not read: they include waits of the host, and PyTorch no longer runs that form.
    """
    number = r"\s*([0-9][0-9.E-]*)\s*\|"
    found: list[tuple[Any, ...]] = []
    with reading(file, SOURCE_PAGE):
        text = file.read_text(encoding="utf-8")
        for tokens, width, seconds in re.findall(rf"^\|{number * 3}", text, flags=re.MULTILINE):
            if int(width) <= MAX_WIDTH:
                sizes = (int(tokens), 1, VOCABULARY, 1, int(width))
                found.append(
                    (
                        "pytorch-49913",
                        "A100-SXM4-80GB",
                        "dense_few",
                        *sizes,
                        1e6 * positive(seconds),
                        False,
                    )
                )
    if not found:
        raise TableError(f"{file}: has no table of tokens, features and times")
    return found
