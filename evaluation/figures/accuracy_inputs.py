"""Inputs of the figures and tables of errors, which only a checkout has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.answers.who_answers import HAS_MODELS, Source, kernel_source
from pipeline.errors import TableError
from pipeline.flow import Flow, in_campaign
from pipeline.model_files import check_if_shipped, model_folders
from pipeline.schemas import read_frame

PAIR_ERRORS, MODEL_ERRORS = "pair_errors.csv", "model_errors.csv"
"""Files that ship with the cross-GPU models: errors of kernels and of whole models over all ordered pairs of GPUs."""

REMEDIES = ("run the rule that makes it", "delete the file to rebuild it")
"""Remedies in error messages: for a missing artifact, and for a damaged one."""


def error_parts(flow: Flow) -> list[str]:
    """Error parts of the points that this machine or a campaign may have measured; what-ifs have none."""
    return [
        f"{flow.folder(point)}/parts.parquet"
        for point in flow.points
        if point.local or in_campaign(point)
    ]


def fitted_models(flow: Flow) -> list[str]:
    """Model folders that the grid's points use and that this run fits."""
    folders: dict[str, None] = {}
    for point in flow.points:
        source = kernel_source(point.gpu.name)
        if source in HAS_MODELS:
            folders |= dict.fromkeys(flow.models(point.gpu.name, point.kernels_label, source))
    return list(folders)


def shipped_models(flow: Flow) -> list[str]:
    """Model folders of the packs that the grid's points use."""
    gpus = [gpu for gpu in flow.gpus if kernel_source(gpu) is Source.PACK]
    return [str(path) for gpu in gpus for path in model_folders(gpu)]


def with_gpus(folders: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """(GPU, folder) pairs of model folders; the GPU's name is the part of the path before `kernels`."""
    paths = [Path(folder) for folder in folders]
    return tuple((path.parts[path.parts.index("kernels") - 1], path) for path in paths)


def read_any(paths: Sequence[str]) -> pd.DataFrame:
    """Parquet or CSV tables, concatenated; empty if there are none.

    Raises:
        TableError: a table is missing or damaged.
        PackError: a table ships, and a file of its pack is missing or damaged.
    """
    for path in paths:
        check_if_shipped(path)
    parts = [
        _read_csv(path) if path.endswith(".csv") else read_frame(path, *REMEDIES) for path in paths
    ]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _read_csv(path: str) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:  # pandas' errors of CSV files are ValueErrors
        said = str(error).splitlines()[0]
        raise TableError(
            f"{path}: not a readable CSV file ({said}); see docs/transfer.md to rebuild it"
        ) from None
