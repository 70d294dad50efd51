"""Reader of whole steps that others measured and published; predictions of steps are compared with them.

- Lambda Labs' benchmark (`lambda` in `sources.yaml`): throughput of NVIDIA's training examples on a single GPU, for many GPU
  types. Only workloads with a fixed batch size are read: ResNet-50, and BERT fine-tuned on SQuAD with 384 tokens.
- NVIDIA's own page on ResNet-50 (`nvidia-resnet50` in `sources.yaml`): training on V100 and A100, inference on V100 and T4.

The user places the published files under the datasets folder: `lambda/*.csv`, `nvidia/resnet50v1.5-README.md`, or the table
into which both were converted (`CONVERTED`). They are never copied into this project. Nothing here was fitted to them except
with the rows of `TUNING_GPUS`.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.published.published_pages import (
    full_precision,
    positive,
    read_columns,
    reading,
    sections,
)
from pipeline.errors import TableError

LAMBDA_GPUS = {
    "LambdaCloud 1x V100 16GB": "V100-SXM2-16GB",
    "Quadro RTX 8000": "RTX8000",
    "RTX 3090": "RTX3090",
    "RTX A6000": "RTXA6000",
    "LambdaCloud 1x A10": "A10",
    "LambdaCloud 1x A100 40GB PCIe": "A100-PCIE-40GB",
    "A100 80GB PCIe": "A100-PCIE-80GB",
    "A100 80GB SXM4": "A100-SXM4-80GB",
    "RTX 4090": "RTX4090",
    "RTX 6000 Ada": "RTX6000Ada",
    "LambdaCloud 1x H100 80GB PCIe": "H100-PCIe",
    "LambdaCloud 1x H100 80GB SXM5": "H100",
    "LambdaCloud 1x B200 192GB SXM5": "B200",
}
"""Our name of each GPU type in Lambda's table that was measured as a single GPU."""

CARDS = {
    "LambdaCloud V100 16GB": "V100-SXM2-16GB", "Quadro RTX 8000": "RTX8000", "RTX 3090": "RTX3090",
    "RTX A6000": "RTXA6000", "LambdaCloud A10": "A10",
    "LambdaCloud A100 40GB PCIe": "A100-PCIE-40GB", "A100 80GB PCIe": "A100-PCIE-80GB",
    "A100 80GB SXM4": "A100-SXM4-80GB", "RTX 4090": "RTX4090", "RTX 6000 Ada": "RTX6000Ada",
    "H100_80GB_PCIe": "H100-PCIe", "H100_80GB_SXM5": "H100", "GH200_96GB": "GH200",
    "H200_140GB_SXM": "H200", "B200_192GB": "B200",
}  # fmt: skip
"""Our name of each GPU in the converted table. Other machines with the same GPU are left out, where a later run of Lambda's own
cloud is there."""

CONVERTED = Path("multi_gpu") / "steps.parquet"
"""Lambda's measurements of both versions of its benchmark in one table, with batch sizes."""

NVIDIA_GPUS = {
    "NVIDIA DGX-1 (1x V100 16GB)": "V100-SXM2-16GB",
    "NVIDIA T4": "T4",
    "NVIDIA DGX A100 (8x A100 80GB)": "A100-SXM4-80GB",
    "NVIDIA DGX-1 16GB (8x V100 16GB)": "V100-SXM2-16GB",
    "NVIDIA DGX-1 32GB (8x V100 32GB)": "V100-SXM2-32GB",
}

NVIDIA_BATCHES = {
    "A100-SXM4-80GB": (256, 256),
    "V100-SXM2-16GB": (128, 256),
    "V100-SXM2-32GB": (128, 256),
}
"""Batch sizes, in images per step, in fp32 (TF32) and mixed precision. They come from the launch configurations of
NVIDIA's example, because the page does not state them."""

COUNTED_SHARE = {"bert_base": 100 / 101, "bert_large": 100 / 101}
"""Share of the executed steps that a benchmark's throughput counts: `run_squad.py --max_steps=100` runs 101 steps. The
measured time also includes warm-up steps: one to two seconds of 30 to 270 s (the logs beside the tables)."""

WORKLOADS = {
    "resnet50": "resnet50",
    "bert_base_squad": "bert_base",
    "bert_large_squad": "bert_large",
}
"""Our name of the workload of each column that is read."""

TUNING_GPUS = (
    "V100-SXM2-16GB",
    "V100-SXM2-32GB",
    "A100-PCIE-40GB",
    "A100-PCIE-80GB",
    "A100-SXM4-80GB",
    "RTX3090",
)
"""GPUs with a training row that was known when tensor-core models were tuned: constants of convolutions, or the form of
the models of matrix products. All other GPUs and all inference rows were not used for tuning."""

SHOWN_GPUS = ("A10", "RTX4090", "H100")
"""GPUs of which other measurements led to constants. BERT's row on the A10 led to one of its chip, and timm's inference on the RTX
4090 to one of images. Kernels of H100s led to starts and waits of new cards. Their training rows were used for nothing else."""

LAYOUTS = {"nchw": "contiguous", "nhwc": "channels_last"}

COLUMNS = (
    "source",
    "gpu",
    "model",
    "mode",
    "dtype",
    "memory_format",
    "batch_size",
    "measured_us",
    "seen",
)


def read_training(datasets: str | Path) -> pd.DataFrame:
    """Training steps of Lambda's benchmark on one GPU.

    Args:
        datasets: the datasets folder. Without Lambda's own files, the converted table is read (`CONVERTED`).

    Returns:
        A row per GPU, workload and precision, columns `COLUMNS`.
        `measured_us` is batch size over throughput, corrected to all executed steps (`COUNTED_SHARE`).
        `seen` is True if constants were chosen when this row was known.

    Raises:
        TableError: a file is missing, or lacks columns or rows that the others have.
    """
    folder = Path(datasets) / "lambda"
    if not folder.is_dir() and (Path(datasets) / CONVERTED).is_file():
        return _converted_training(Path(datasets) / CONVERTED)
    rows = []
    for precision in ("fp32", "fp16"):
        tables = []
        for what in ("throughput", "bs"):
            with reading(file := folder / f"pytorch-train-{what}-{precision}.csv"):
                tables.append(read_columns(file, "name_gpu", tuple(WORKLOADS)))
        rates, batches = tables
        measured = [
            (name, gpu) for name, gpu in LAMBDA_GPUS.items() if name in rates and name in batches
        ]
        for (name, gpu), (column, model) in product(measured, WORKLOADS.items()):
            rate, size = rates[name][column], int(batches[name][column])
            if rate > 0 and size < 1:
                raise TableError(
                    f"{file}: the batch size of {name}, {column} is missing, although its"
                    " throughput is there"
                )
            if rate > 0:
                dtype = full_precision(gpu) if precision == "fp32" else precision
                measured_us = 1e6 * size / rate * COUNTED_SHARE.get(model, 1.0)
                rows.append(
                    (
                        "lambda",
                        gpu,
                        model,
                        "train",
                        dtype,
                        "contiguous",
                        size,
                        measured_us,
                        gpu in TUNING_GPUS,
                    )
                )
    if not rows:
        raise TableError(
            f"{folder}/pytorch-train-*.csv: has no known GPU; use the tables as published"
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _converted_training(file: Path) -> pd.DataFrame:
    """As `read_training`; where many machines have the same GPU, the median of their throughputs at the usual batch size."""
    with reading(file):
        table = pd.read_parquet(file)
        table = table[
            (table["table"] == "lambda") & (table["gpus"] == 1) & table["model"].isin(WORKLOADS)
        ]
        table = table.assign(
            card=table["gpu"].map(CARDS), half=table["precision"].str.contains("fp16")
        )
        rows = []
        for (half, card, column), runs in table.dropna(subset="card").groupby(
            ["half", "card", "model"], sort=False
        ):
            size = int(runs["global_batch"].mode().iloc[0])
            card = str(card)
            rate = float(runs.loc[runs["global_batch"] == size, "value"].median())
            model, dtype = WORKLOADS[str(column)], "fp16" if half else full_precision(card)
            measured_us = 1e6 * size / positive(rate) * COUNTED_SHARE.get(model, 1.0)
            rows.append(
                (
                    "lambda",
                    card,
                    model,
                    "train",
                    dtype,
                    "contiguous",
                    size,
                    measured_us,
                    card in TUNING_GPUS,
                )
            )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def read_resnet50(datasets: str | Path) -> pd.DataFrame:
    """Steps of ResNet-50 on NVIDIA's page: training on one GPU, then inference by batch size; columns as in
    `read_training`. The converted table (`CONVERTED`) holds training only.

    Raises:
        TableError: the page is missing, or holds no such tables.
    """
    file = Path(datasets) / "nvidia" / "resnet50v1.5-README.md"
    if not file.is_file() and (converted := Path(datasets) / CONVERTED).is_file():
        return _converted_resnet50(converted)
    with reading(file):
        text = file.read_text(encoding="utf-8")
        rows = _training_steps(text) + _inference_steps(text)
    if not rows:
        raise TableError(f"{file}: has no tables of training or inference performance")
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _converted_resnet50(file: Path) -> pd.DataFrame:
    with reading(file):
        table = pd.read_parquet(file)
        table = table[
            (table["table"] == "nvidia_examples")
            & (table["gpus"] == 1)
            & (table["model"] == "resnet50v1.5")
        ]
        rows = []
        for section, precision, rate in zip(
            table["notes"], table["precision"], table["value"], strict=True
        ):
            gpu = next((gpu for name, gpu in NVIDIA_GPUS.items() if name in section), None)
            if gpu in NVIDIA_BATCHES and "Training performance:" in section:
                rows.append(_training_row(gpu, "fp16" in precision, rate))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _training_row(gpu: str, half: int, rate: Any) -> tuple[Any, ...]:
    kind = (
        ("fp16", "channels_last") if half else (full_precision(gpu), "contiguous")
    )  # mixed precision uses NHWC
    size = NVIDIA_BATCHES[gpu][half]
    us = 1e6 * size / positive(rate)
    return ("nvidia", gpu, "resnet50", "train", *kind, size, us, gpu in TUNING_GPUS)


def _training_steps(text: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for gpu, part in sections(text, "Training", NVIDIA_GPUS):
        rates = re.search(
            r"^\|\s*1\s*\|\s*(\d+) img/s\s*\|\s*(\d+) img/s", part, flags=re.MULTILINE
        )
        found += [
            _training_row(gpu, half, rate)
            for half, rate in enumerate(rates.groups() if rates else ())
        ]
    return found


def _inference_steps(text: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for gpu, part in sections(text, "Inference", NVIDIA_GPUS):
        for table in re.split(r"^###### ", part, flags=re.MULTILINE)[1:]:
            kind = ("fp32", "contiguous") if table.startswith("FP32") else ("fp16", "channels_last")
            for size, milli in re.findall(
                r"^\|\s*(\d+)\s*\|[^|]*\|\s*([\d.]+) ms", table, flags=re.MULTILINE
            ):
                us = 1e3 * positive(milli)
                found.append(
                    ("nvidia", gpu, "resnet50", "inference", *kind, int(positive(size)), us, False)
                )
    return found
