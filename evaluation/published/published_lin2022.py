"""Reader of the training steps that Lin et al. (HiPC 2022) measured: 36 of DLRM, and 18 of convolutional networks.

`lin2022` in `sources.yaml` names the paper. The steps of DLRM are read from one of its figures, with an error of at most 0.15
ms. Those of ResNet-50 and Inception v3 are exact. They have the errors of three predictions: the paper's, Habitat's and
MLPredict's.

The user places the two tables under the datasets folder: `paper/lin2022_dlrm_batch_time.csv` and
`paper/lin2022_cnn_batch_time.csv`. They are never copied into this project, and nothing was fitted to them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.published.published_busy import MODELS as DLRM_MODELS
from evaluation.published.published_errors import NETWORK_METHODS
from evaluation.published.published_pages import reading

DLRM_FILE = "paper/lin2022_dlrm_batch_time.csv"
CNN_FILE = "paper/lin2022_cnn_batch_time.csv"

GPUS = ("V100", "Xp", "P100")

CNN_MODELS = {"ResNet50": "resnet50", "Inception-V3": "inception_v3"}
"""Our name of each of their models."""

DLRM_READING_MS = 0.15
"""Largest error, in ms, of a DLRM step that is read from the paper's figure."""

KEYS = ("gpu", "model", "batch_size")


def read_dlrm(datasets: str | Path) -> pd.DataFrame:
    """Measured steps of DLRM: columns `KEYS` and `measured_us`.

    Raises:
        TableError: the table is missing, or has other contents.
    """
    return _read(Path(datasets) / DLRM_FILE, DLRM_MODELS)


def read_cnn(datasets: str | Path) -> pd.DataFrame:
    """Measured steps of convolutional networks: columns `KEYS`, `measured_us`, and an error of each of `NETWORK_METHODS`.

    The errors are absolute and relative to the measured step (0.1 is 10 %).

    Raises:
        TableError: the table is missing, or has other contents.
    """
    return _read(Path(datasets) / CNN_FILE, CNN_MODELS, NETWORK_METHODS)


def _read(file: Path, models: dict[str, str], errors: dict[str, str] | None = None) -> pd.DataFrame:
    errors = errors or {}
    with reading(file):
        table = pd.read_csv(file)
        for column, names in (("gpu", GPUS), ("model", tuple(models))):
            if strange := sorted(set(table[column].astype(str)) - set(names)):
                raise ValueError(f"column {column} has the unknown value {strange[0]!r}; known are {', '.join(names)}")
        for name in ("batch_size", "batch_time_ms", *errors):
            values = pd.to_numeric(table[name]).to_numpy(float)
            if not (np.isfinite(values) & ((values > 0) | ((values == 0) & (name in errors)))).all():
                raise ValueError(f"column {name} holds a value that is not a positive number")
        if table.empty or table.duplicated(list(KEYS)).any() or (table["batch_size"] % 1 != 0).any():
            raise ValueError("no rows, a row twice, or a batch size that is not a whole number")
        return pd.DataFrame(
            {
                "gpu": table["gpu"],
                "model": table["model"].map(models),
                "batch_size": table["batch_size"].astype("int64"),
                "measured_us": 1e3 * table["batch_time_ms"],
                **{title: table[name] / 100 for name, title in errors.items()},
            }
        )
