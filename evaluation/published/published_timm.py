"""Reader of the steps that timm's own benchmark measured: training on an RTX 3090, inference on an RTX 4090.

The converted tables (`TRAINING`, `INFERENCE`) lie in the datasets folder. Each model is either a tuning row, on which
constants may be set, or a report row, on which errors are reported (`is_tuning`). The split was fixed before any of these
measurements was looked at.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd

from evaluation.published.published_pages import reading

TRAINING = Path("multi_gpu") / "timm_train.parquet"
"""Training steps of half of timm's models on an RTX 3090: AMP, NCHW and NHWC, PyTorch 1.12, CUDA 11.3."""

INFERENCE = Path("multi_gpu") / "compile.parquet"
"""Inference of timm's models on an RTX 4090, eager and compiled: AMP, NCHW, PyTorch 2.4 and 2.9."""

LOOKED_AT = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2",
    "resnext50_32x4d", "vgg11", "vgg16", "vit_base_patch16_224", "mobilenetv3_large_100",
    "mobilenetv3_small_100", "mobilenetv2_100", "efficientnet_b0", "efficientnet_lite0",
    "mnasnet_100", "fbnetc_100", "mixnet_s", "ghostnet_100", "xception41", "convnext_tiny",
    "convnext_base", "resnext101_32x8d", "regnetx_002", "regnetx_008", "regnety_004", "regnety_016",
    "regnety_032", "senet154",
)  # fmt: skip
"""Models whose errors were known before the split: those of earlier versions of docs/accuracy.md. They are tuning rows."""

GPUS = {"training": "RTX3090", "inference": "RTX4090"}
"""Our name of the GPU of each table."""

LAYOUTS = {"nchw": "contiguous", "nhwc": "channels_last"}

VERSIONS = {"pt240": "2.4", "pt291": "2.9"}
"""PyTorch of a measured table, by what its file's name says."""


def is_tuning(model: str) -> bool:
    """Whether constants may be set on the rows of a model, in any layout, mode and on any GPU.

    Decided by the first bit of the SHA-256 of the model's name without its weights (`resnet50.a1_in1k` is `resnet50`).
    """
    name = model.split(".")[0]
    return name in LOOKED_AT or hashlib.sha256(name.encode()).digest()[0] < 128


def read_training(datasets: str | Path) -> pd.DataFrame:
    """Training steps: columns `model, layout, memory_format, batch_size, side, mode, dtype, torch, measured_us, tuning`.

    Raises:
        TableError: the table is missing or has another form.
    """
    with reading(file := Path(datasets) / TRAINING):
        table = pd.read_parquet(file)
        return pd.DataFrame(
            {
                "model": table["model"].astype(str),
                "layout": table["layout"].str.upper(),
                "memory_format": table["layout"].map(LAYOUTS),
                "batch_size": table["train_batch_size"].astype(int),
                "side": table["train_img_size"].astype(int),
                "mode": "train",
                "dtype": "fp16",
                "torch": "1.12",
                "measured_us": 1e3 * table["train_step_time"].astype(float),
                "tuning": table["model"].astype(str).map(is_tuning),
            }
        )


def read_inference(datasets: str | Path) -> pd.DataFrame:
    """Eager inference: columns as `read_training`; `torch` is the version of PyTorch.

    Raises:
        TableError: the table is missing or has another form.
    """
    with reading(file := Path(datasets) / INFERENCE):
        table = pd.read_parquet(file)
        table = table[
            table["source"].str.endswith("pytorch-image-models") & (table["compile"] == "False")
        ]
        table = table.reset_index(drop=True)
        version = table["path"].str.extract(r"-(pt\d+)-", expand=False)
        return pd.DataFrame(
            {
                "model": table["model"].astype(str),
                "layout": "NCHW",
                "memory_format": "contiguous",
                "batch_size": table["batch_per_gpu"].astype(int),
                "side": table["seq_len"].str.removeprefix("img ").astype(int),
                "mode": "inference",
                "dtype": "fp16",
                "torch": version.map(VERSIONS),
                "measured_us": 1e3 * table["value"].astype(float),
                "tuning": table["model"].astype(str).map(is_tuning),
            }
        )
