"""Reader of whole training steps that others measured: of the rows that `docs/accuracy/published_steps.md` predicts.

- Lambda Labs' benchmark (`lambda` in `sources.yaml`): throughput of NVIDIA's training examples on a single GPU, for many GPU
  types. Only workloads with a fixed batch size are read: ResNet-50, and BERT fine-tuned on SQuAD with 384 tokens.
- NVIDIA's own page on ResNet-50 (`nvidia-resnet50` in `sources.yaml`): training on V100 and A100.

Both are in one table under the datasets folder (`CONVERTED`). Nothing here was fitted to them except with the rows of
`TUNING_GPUS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from evaluation.published.published_pages import full_precision, positive, reading

CARDS = {
    "LambdaCloud V100 16GB": "V100-SXM2-16GB", "Quadro RTX 8000": "RTX8000", "RTX 3090": "RTX3090",
    "RTX A6000": "RTXA6000", "LambdaCloud A10": "A10",
    "LambdaCloud A100 40GB PCIe": "A100-PCIE-40GB", "A100 80GB PCIe": "A100-PCIE-80GB",
    "A100 80GB SXM4": "A100-SXM4-80GB", "RTX 4090": "RTX4090", "RTX 6000 Ada": "RTX6000Ada",
    "H100_80GB_PCIe": "H100-PCIe", "H100_80GB_SXM5": "H100", "GH200_96GB": "GH200",
    "H200_140GB_SXM": "H200", "B200_192GB": "B200",
}  # fmt: skip
"""Our name of each of Lambda's GPUs. Other machines with the same GPU are left out, where a later run of Lambda's own
cloud is there."""

CONVERTED = Path("multi_gpu") / "steps.parquet"
"""Lambda's measurements of both versions of its benchmark, and those of NVIDIA's pages, in one table."""

NVIDIA_GPUS = {
    "NVIDIA DGX-1 (1x V100 16GB)": "V100-SXM2-16GB",
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
    """Training steps on one GPU, Lambda's, then NVIDIA's.

    Where many machines have the same GPU, the median of their throughputs at the usual batch size counts.

    Returns:
        A row per GPU, workload and precision, columns `COLUMNS`.
        `measured_us` is batch size over throughput, corrected to all executed steps (`COUNTED_SHARE`).
        `seen` is True if constants were chosen when this row was known.

    Raises:
        TableError: the table is missing, or has another form.
    """
    file = Path(datasets) / CONVERTED
    with reading(file):
        table = pd.read_parquet(file)
        table = table[table["gpus"] == 1]
        rows = [*_lambda_rows(table), *_nvidia_rows(table)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _lambda_rows(table: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    table = table[(table["table"] == "lambda") & table["model"].isin(WORKLOADS)]
    table = table.assign(card=table["gpu"].map(CARDS), half=table["precision"].str.contains("fp16"))
    for (half, card, column), runs in table.dropna(subset="card").groupby(
        ["half", "card", "model"], sort=False
    ):
        size = int(runs["global_batch"].mode().iloc[0])
        rate = float(runs.loc[runs["global_batch"] == size, "value"].median())
        model, dtype = WORKLOADS[str(column)], "fp16" if half else full_precision(str(card))
        us = 1e6 * size / positive(rate) * COUNTED_SHARE.get(model, 1.0)
        yield "lambda", card, model, "train", dtype, "contiguous", size, us, card in TUNING_GPUS


def _nvidia_rows(table: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    table = table[(table["table"] == "nvidia_examples") & (table["model"] == "resnet50v1.5")]
    for section, precision, rate in zip(
        table["notes"], table["precision"], table["value"], strict=True
    ):
        gpu = next((gpu for name, gpu in NVIDIA_GPUS.items() if name in section), None)
        if gpu not in NVIDIA_BATCHES or "Training performance:" not in section:
            continue
        half = "fp16" in precision
        # mixed precision uses NHWC
        kind = ("fp16", "channels_last") if half else (full_precision(gpu), "contiguous")
        size = NVIDIA_BATCHES[gpu][half]
        us = 1e6 * size / positive(rate)
        yield "nvidia", gpu, "resnet50", "train", *kind, size, us, gpu in TUNING_GPUS
