"""Reader of the public NeuSight kernel latencies (github.com/sitar-lab/NeuSight, MIT; Lee et al., ASPLOS 2025).

The table holds latencies of forward ops in fp32 on five GPUs, measured with CUDA events. In `linear` and `bmm` the
column N is the reduction dimension.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.errors import TableError
from pipeline.families import NEUSIGHT_OPS
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.samples import with_launches
from pipeline.schemas import read_frame

COMMIT = "6945927d"
"""Commit of the data from which the figures of this project were made."""

SOURCE = f"github.com/sitar-lab/NeuSight@{COMMIT}"

CAMPAIGN = f"neusight-{COMMIT}"

KERNELS_FILE = Path("neusight") / "kernels.parquet"
"""Path of the table below the datasets folder."""

SIBLINGS = {"A100-PCIE-40GB": "A100-PCIE-80GB"}
"""GPU whose samples replace ops that a GPU lacks: A100 convolutions were measured only on the GPU with 80 GB."""

DIMS = (
    "B",
    "M",
    "N",
    "K",
    "H",
    "in_channels",
    "out_channels",
    "kernel_size",
    "input_size",
    "stride",
    "padding",
)
"""Columns that hold dimensions of ops; in each row, columns of other ops are empty."""


def kernels_path(path: str | Path) -> Path:
    """The table's file, given the file itself, its folder, or the datasets folder."""
    path = Path(path)
    candidates = (path, path / "kernels.parquet", path / KERNELS_FILE)
    return next((candidate for candidate in candidates if candidate.is_file()), path)


def read_samples(path: str | Path, gpu: str | None = None) -> pd.DataFrame:
    """The latencies as a samples table.

    Args:
        path: the parquet file, its folder, or the datasets folder.
        gpu: keep only rows of this GPU (name or alias); None keeps all rows. Ops that the GPU lacks (A100 convolutions)
            come from its sibling in `SIBLINGS`, and their `gpu` column names that sibling.

    Raises:
        TableError: the file is missing, unreadable, or lacks columns.
        UnknownNameError: no such GPU.
    """
    file = kernels_path(path)
    remedy = "give the path of NeuSight's kernels.parquet, or download it"
    table = read_frame(file, remedy, remedy, ("op", "latency_us"))
    if gpu is not None and "gpu" in table.columns:
        table = select_gpu(table, load_gpu(gpu).name)
    return to_samples(table, default_gpu=gpu or "unknown")


def select_gpu(table: pd.DataFrame, gpu: str) -> pd.DataFrame:
    """Rows of one GPU, and of its sibling for the ops that the GPU itself lacks."""
    names = table["gpu"].astype(str)
    rows = table[names == gpu]
    if gpu in SIBLINGS and "op" in table.columns:
        of_sibling = table[(names == SIBLINGS[gpu]) & ~table["op"].isin(rows["op"].unique())]
        rows = pd.concat([rows, of_sibling])
    return rows.reset_index(drop=True)


def to_samples(table: pd.DataFrame, default_gpu: str) -> pd.DataFrame:
    """Convert NeuSight's columns to the samples schema; rows, order and index are kept.

    Raises:
        TableError: an op is unknown.
    """
    op = table["op"].astype(str)
    family = op.map(NEUSIGHT_OPS)
    if family.isna().any():
        unknown = sorted(set(op[family.isna()]))[:3]
        raise TableError(
            f"unknown op {', '.join(map(repr, unknown))}: choose one of {', '.join(NEUSIGHT_OPS)}"
        )
    samples = pd.DataFrame(
        {
            "gpu": table["gpu"].astype(str) if "gpu" in table.columns else default_gpu,
            "family": family,
            "op": op,
            "phase": "forward",
            "dtype": "fp32",
            "latency_us": table["latency_us"].astype("float64"),
            "source": SOURCE,
            "campaign_id": CAMPAIGN,
        },
        index=table.index,
    )
    for name in DIMS:
        if name in table.columns:
            samples[name] = table[name]
    samples["cold"] = False
    launches = with_launches(table)
    for name in ("kernel_name", "grid", "block"):
        if name in launches.columns:
            samples[name] = launches[name]
    return samples
