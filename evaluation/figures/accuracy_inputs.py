"""Inputs of the figures and tables of errors, which only a checkout has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.errors import TableError
from pipeline.flow import Flow, in_campaign
from pipeline.model_files import check_if_shipped, file_digest
from pipeline.paths import transfer_dir
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


def available_checks(root: str) -> dict[str, dict[str, str]]:
    """Results of checks against public measurements and of errors between GPUs: computed here, else shipped, else none.

    Rules of figures use them as params, not as inputs, so that drawing does not run the checks again.

    Args:
        root: the results folder.

    Returns:
        Digests by file for each kind: replays, passes, transfer (several or none), models_moved.
    """
    computed, shipped = Path(root) / "transfer", transfer_dir()
    pairs = sorted(computed.glob("*.parquet")) or [shipped / PAIR_ERRORS]
    models = Path(root) / "transfer_models.parquet"
    kinds = {
        "replays": [Path(root) / "checks/replays.parquet"],
        "passes": [Path(root) / "checks/passes.parquet"],
        "transfer": pairs,
        "models_moved": [models if models.is_file() else shipped / MODEL_ERRORS],
    }
    return {
        kind: {str(path): file_digest(path)[:16] for path in paths if path.is_file()}
        for kind, paths in kinds.items()
    }


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
