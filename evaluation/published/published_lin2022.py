"""Reader of the training steps that Lin et al. (HiPC 2022) measured: 36 of DLRM, and 18 of convolutional networks.

`SOURCES["lin2022"]` names the paper. The steps of DLRM are read from one of its figures, with an error of at most 0.15
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
from evaluation.published.published_pages import missing
from pipeline.errors import TableError
from pipeline.show.figures.published_errors import NETWORK_METHODS

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
    numbers = ["batch_size", "batch_time_ms", *errors]
    try:
        table = pd.read_csv(file, dtype=str, keep_default_na=False)
    except FileNotFoundError:
        raise missing(file) from None
    except (ValueError, OSError):  # pandas' own errors of parsing are ValueErrors
        raise TableError(f"{file}: not a readable CSV file") from None
    if lacking := [name for name in ("gpu", "model", *numbers) if name not in table.columns]:
        raise TableError(f"{file}: column {', '.join(lacking)} is missing")
    if table.empty:
        raise TableError(f"{file}: has no rows")
    for column, known in (("gpu", GPUS), ("model", tuple(models))):
        if strange := sorted(set(table[column]) - set(known)):
            raise TableError(
                f"{file}: column {column} has the unknown value {strange[0]!r}; known are {', '.join(known)}"
            )
    for name in numbers:
        table[name] = pd.to_numeric(table[name], errors="coerce")
        least = 0.0 if name in errors else np.nextafter(0.0, 1.0)
        wrong = ~(np.isfinite(table[name]) & (table[name] >= least))
        if name == "batch_size":
            wrong |= table[name] % 1 != 0
        if wrong.any():
            kind = "0 or a positive number" if name in errors else "a positive number"
            kind = "a positive whole number" if name == "batch_size" else kind
            raise TableError(f"{file}: line {wrong.to_numpy().argmax() + 2}: {name} is not {kind}")
    if (twice := table.duplicated(list(KEYS))).any():
        raise TableError(f"{file}: line {twice.to_numpy().argmax() + 2}: repeats a GPU, model and batch size")
    return pd.DataFrame(
        {
            "gpu": table["gpu"],
            "model": table["model"].map(models),
            "batch_size": table["batch_size"].astype("int64"),
            "measured_us": 1e3 * table["batch_time_ms"],
            **{title: table[name] / 100 for name, title in errors.items()},
        }
    )
