"""Reader of lookups that others measured and published, on V100 and A100: what the embedding models are held against.

- Liger Kernel's benchmark (`SOURCES["liger"]`), A100-SXM4-80GB: `nn.Embedding` of 16,384 tokens, as PyTorch of 2024
  ran it and as compiled, forward and with its gradient.
- A notebook of ml_perf_model (`SOURCES["ml_perf_model"]`), V100: kernels that came before FBGEMM's, with many tables.
- A pull request to PyTorch (`SOURCES["pytorch-49913"]`), A100: gradients of few tokens by one kernel.

They lie under the datasets folder as they are published: `liger/all_benchmark_data.csv`,
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

from pipeline.errors import TableError
from pipeline.evaluation.published_pages import missing, read_page

LIGER = "liger/all_benchmark_data.csv"
NOTEBOOK = "ml_perf_model/exp_gpu_performance_models.ipynb"
PULL_REQUEST = "pytorch/pr-49913.md"

TOLD = "docs/notes/kernels.md"
"""The document that says where the files come from."""

LIGER_GPUS = {"NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB"}
PROVIDERS = {"huggingface": "gather_2024", "torch_compile": "gather"}
"""What each of Liger's providers ran: PyTorch 2.4 gathered element by element; what the compiler makes moves whole rows, as
PyTorch's own kernel does since."""

KERNELS = {"batched_embedding_forward_kernel_1": "fused", "batched_embedding_backward_sgd_kernel_1": "fused_atomic"}
TABLE = "application/vnd.dataresource+json"
NOTEBOOK_DIMS = {"batch_size": "B", "num_tables": "T", "num_embeddings": "E", "bag_size": "L", "embedding_dim": "D"}

WIDEST = 256
"""Widest row of the pull request that is read: it does not say how many rows its table has, whose zeros cost more in
wider ones."""

VOCABULARY = 30_522
"""Rows that table is taken to have, as BERT has, which it speaks of: zeros of at most 19 us in rows of up to `WIDEST`."""

SET_ON = (4096,)
"""Widths of Liger's rows that were in view when the form of the model was chosen; all others are reported only."""

COLUMNS = ("source", "gpu", "op", "B", "T", "E", "L", "D", "measured_us", "seen")


def read_lookups(datasets: str | Path) -> pd.DataFrame:
    """Every lookup and gradient of the three sources.

    Args:
        datasets: the datasets folder.

    Returns:
        A row per measurement, columns `COLUMNS`. `op`: `gather` and `gather_2024` (forward of `nn.Embedding`), `dense` (its
        gradient by sorting, with what the measurement holds besides), `dense_few`, `fused`, `fused_atomic` (an update that
        adds without sorting). Sizes: B samples, T tables of E rows and width D, L lookups. `seen`: whether the model's form
        was chosen with it in view.

    Raises:
        TableError: a file is missing, or not in its known form.
    """
    found = [_liger(Path(datasets) / LIGER), _notebook(Path(datasets) / NOTEBOOK)]
    found.append(_pull_request(Path(datasets) / PULL_REQUEST))
    rows = pd.concat([pd.DataFrame(part, columns=list(COLUMNS)) for part in found], ignore_index=True)
    if not (np.isfinite(rows["measured_us"]) & (rows["measured_us"] > 0)).all():
        raise TableError(f"{datasets}: a published lookup has no positive time")
    return rows


def _liger(file: Path) -> list[tuple[Any, ...]]:
    """Forward times, and what the gradient adds to them."""
    try:
        table = pd.read_csv(file)
        rows = table[
            (table["kernel_name"] == "embedding") & (table["metric_name"] == "speed") & (table["x_name"] == "V")
        ]
        times = {
            (gpu, provider, mode, int(sizes["B"]) * int(sizes["T"]), int(sizes["D"]), int(vocabulary)): 1e3 * float(ms)
            for gpu, provider, mode, sizes, vocabulary, ms in zip(
                rows["gpu_name"], rows["kernel_provider"], rows["kernel_operation_mode"],
                rows["extra_benchmark_config_str"].map(json.loads), rows["x_value"], rows["y_value_50"], strict=True)
        }  # fmt: skip
    except FileNotFoundError:
        raise missing(file, TOLD) from None
    except (ValueError, KeyError, TypeError):
        raise TableError(f"{file}: not Liger's benchmark data") from None
    found: list[tuple[Any, ...]] = []
    for (gpu, provider, mode, tokens, width, vocabulary), us in times.items():
        if gpu not in LIGER_GPUS or provider not in PROVIDERS:
            continue
        sizes = (tokens, 1, vocabulary, 1, width)
        if mode == "forward":
            found.append(("liger", LIGER_GPUS[gpu], PROVIDERS[provider], *sizes, us, width in SET_ON))
        forward = times.get((gpu, provider, "forward", tokens, width, vocabulary))
        if mode == "full" and provider == "huggingface" and forward is not None:
            found.append(("liger", LIGER_GPUS[gpu], "dense", *sizes, us - forward, width in SET_ON))
    if not found:
        raise TableError(f"{file}: holds no embedding of {', '.join(LIGER_GPUS)}")
    return found


def _notebook(file: Path) -> list[tuple[Any, ...]]:
    """Kernels of the tables that the notebook prints, each with sizes and nvprof's time; equal ones once."""
    try:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        tables = [
            out["data"][TABLE]["data"]
            for cell in cells
            for out in cell.get("outputs", [])
            if TABLE in out.get("data", {})
        ]
        rows = [
            ("ml_perf_model", "V100", KERNELS[row["kernel_name"]], *(int(row[key]) for key in NOTEBOOK_DIMS),
             float(row["kernel_runtime"]), False)
            for table in tables for row in table if row.get("kernel_name") in KERNELS
        ]  # fmt: skip
    except FileNotFoundError:
        raise missing(file, TOLD) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise TableError(f"{file}: not the notebook in its known form") from None
    if not rows:
        raise TableError(f"{file}: prints no embedding kernels")
    return list(dict.fromkeys(rows))


def _pull_request(file: Path) -> list[tuple[Any, ...]]:
    """The comment's table: tokens, width, seconds of the one kernel. Its sorted form, with waits of the host, is no longer run."""
    text = read_page(file, TOLD)
    number = r"\s*([0-9][0-9.E-]*)\s*\|"
    found: list[tuple[Any, ...]] = []
    for tokens, width, seconds in re.findall(rf"^\|{number * 3}", text, flags=re.MULTILINE):
        if int(width) <= WIDEST:
            sizes = (int(tokens), 1, VOCABULARY, 1, int(width))
            found.append(("pytorch-49913", "A100-SXM4-80GB", "dense_few", *sizes, 1e6 * float(seconds), False))
    if not found:
        raise TableError(f"{file}: holds no table of tokens, features and times")
    return found
