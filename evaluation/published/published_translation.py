"""Reader of published training of translation models: GNMT's logs at Lambda Labs, NVIDIA's page on the Transformer.

GNMT (`lambda-gnmt` in `sources.yaml`): step times are read from the logs. The benchmark's tables give tokens per second, which
cannot be converted to a step time. This rate is the mean of each batch's ratio, and batches differ in length: sentences
are put into five buckets of lengths up to 50 tokens. Every tenth step, the logs print the step's time and, in brackets,
the mean of all steps so far without the first. The last such line has the mean over an epoch.

The user places the logs under the datasets folder, with the paths that they have under the repository's `pytorch/`:
`lambda/{results,results_v2}/<system>/PyTorch_gnmt_*/*.txt`.

Transformer (`nvidia-transformer` in `sources.yaml`, `nvidia/transformer-README.md`): the page gives target tokens per second
without padding. It gives a batch as the largest number of tokens per side, with padding. It does not state how full a
batch is (see `FILL_RATIO`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from evaluation.published.published_pages import full_precision, positive, reading, sections
from evaluation.published.published_steps import COLUMNS
from pipeline.errors import TableError

SYSTEMS = {
    "LambdaCloud_V100_16GB_v1": "V100-SXM2-16GB",
    "QuadroRTX8000_v1": "RTX8000",
    "3090_v1": "RTX3090",
    "A6000_v1": "RTXA6000",
    "LambdaCloud_A10_v1": "A10",
    "LambdaCloud_A100_40GB_PCIe_v1": "A100-PCIE-40GB",
    "A100_80GB_PCIe_v1": "A100-PCIE-80GB",
    "A100_80GB_SXM4_v1": "A100-SXM4-80GB",
    "4090_v1": "RTX4090",
    "AdaA6000_v1": "RTX6000Ada",
    "LambdaCloud_H100_80GB_PCIe5_v1": "H100-PCIe",
    "H100_80GB_SXM5_v1": "H100",
    "LambdaOD_test_1xB200_192GB_*_v2": "B200",
}
"""Our name of the GPU of each folder of results, by patterns of the folders' names."""

TUNING_GPUS = ("V100-SXM2-16GB", "A100-PCIE-40GB")
"""GPUs whose logs were known while recurrent layers were modelled; others were read after the model was finished."""

LENGTH_BUCKETS = ((9, 0.034), (19, 0.208), (29, 0.371), (39, 0.270), (50, 0.118))
"""Longest sentence of each bucket, in tokens, and the bucket's share of the batches. The shares were counted over the
178 batches that the logs of `TUNING_GPUS` print, by their tokens per sentence. A batch of 128 or more sentences contains
some of its bucket's full length."""

FILL_RATIO = 0.88
"""Fill ratio of a batch: target tokens over its token limit. The value comes from the same loader on the same
sentences: 3514 of 4000, in batches of 123 sentences (fairseq, issue 70). Another report has 30,000 of 32,768
(Transformer-Clinic, issue 6)."""

SENTENCE_TOKENS = 32
"""Tokens of a sentence with its padding: the limit of 4000 tokens over the 123 sentences of a batch (see `FILL_RATIO`)."""

NVIDIA_GPUS = {
    "NVIDIA DGX A100 (8x A100 40GB)": "A100-SXM4-40GB",
    "NVIDIA DGX-1 (8x V100 16GB)": "V100-SXM2-16GB",
    "NVIDIA DGX-2 (16x V100 32GB)": "V100-SXM2-32GB",
}
"""Our name of the GPU in each machine of NVIDIA's page."""

LOG_LINE = re.compile(r"TRAIN \[\d+\]\[(\d+)/(\d+)\]\s+Time [\d.]+ \(([\d.]+)\)")
"""Pattern of a log line: number of the step, steps of the epoch, mean step time so far in seconds."""


def read_translation(datasets: str | Path) -> pd.DataFrame:
    """Mean time of training steps of GNMT on one GPU, a row per log; columns `COLUMNS`.

    Raises:
        TableError: there are no logs, or one lacks its arguments or steps.
    """
    folder = Path(datasets) / "lambda"
    files = [
        (gpu, file)
        for system, gpu in SYSTEMS.items()
        for file in sorted(folder.glob(f"results*/{system}/PyTorch_gnmt_*/*.txt"))
    ]
    if not files:
        raise TableError(
            f"{folder}: has no logs of GNMT; docs/accuracy.md says where they come from"
        )
    found = []
    for gpu, file in files:
        dtype, batch, seconds = _log(file)
        dtype = full_precision(gpu) if dtype == "fp32" else dtype
        found.append(
            (
                "lambda",
                gpu,
                "gnmt",
                "train",
                dtype,
                "contiguous",
                batch,
                1e6 * seconds,
                gpu in TUNING_GPUS,
            )
        )
    return pd.DataFrame(found, columns=list(COLUMNS))


def read_transformer(datasets: str | Path) -> pd.DataFrame:
    """Training of the big Transformer on one GPU: `gpu`, `dtype`, `tokens` (limit of a batch), `measured_us` of a step.

    `measured_us` assumes that each batch is filled to the share `FILL_RATIO`.

    Raises:
        TableError: the page is missing, or holds no such tables.
    """
    file = Path(datasets) / "nvidia" / "transformer-README.md"
    rows = []
    with reading(file):
        for gpu, part in sections(file.read_text(encoding="utf-8"), "Training", NVIDIA_GPUS):
            line = re.search(
                r"^\|\s*1\s*\|\s*(\d+)(?:/(\d+))?\s*\|\s*(\d+)\s*\|\s*(\d+)",
                part,
                flags=re.MULTILINE,
            )
            if line is None:
                continue
            most, least, full, half = line.groups()  # mixed precision has the larger batch
            for kind, tokens, rate in (
                (full_precision(gpu), least or most, full),
                ("fp16", most, half),
            ):
                rows.append(
                    (gpu, kind, int(tokens), 1e6 * FILL_RATIO * positive(tokens) / positive(rate))
                )
    if not rows:
        raise TableError(f"{file}: has no training results of a single GPU")
    return pd.DataFrame(rows, columns=["gpu", "dtype", "tokens", "measured_us"])


def _log(file: Path) -> tuple[str, int, float]:
    """(dtype, batch, mean seconds of a step) of one log."""
    with reading(file):
        text = file.read_text(encoding="utf-8")
        math, size = (
            re.findall(rf"\b{key}='?(\w+)", text)[0] for key in ("math", "train_batch_size")
        )
        number, count, seconds = LOG_LINE.findall(text)[-1]
        if int(number) < int(count) // 2:
            raise ValueError(f"ends at step {number} of {count}; use the whole log")
        return math, int(positive(size)), positive(seconds)
