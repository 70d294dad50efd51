"""Readers of published times of collectives: nccl-tests and training frameworks, on A100, H100, H800, H200, B200 and V100.

They lie in `multi_gpu/` of the public data (`$STEPTIME_DATASETS`), with repository, commit and file of each row. Curves are
fitted to all-reduce on V100 (VIA-Research/vTrain) and to send-recv on A100, H100 and H800; the others are outside checks.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.errors import TableError
from pipeline.paths import datasets_dir
from pipeline.schemas import read_frame

REMEDY = (
    "set $STEPTIME_DATASETS to a folder with multi_gpu/collectives.parquet and"
    " multi_gpu/nccl_curves.parquet"
)

SEND_RECV = {
    "A100-SXM4-80GB": ("pipeweave", "A100"),
    "H100": ("vidur", "h100_dgx"),
    "H800": ("pipeweave", "H800"),
}
"""Source and folder of a GPU's send-recv over NVLink behind switches."""


def tables() -> Path | None:
    """The folder of the tables; None where it is not at hand."""
    folder = datasets_dir()
    return folder / "multi_gpu" if folder is not None and (folder / "multi_gpu").is_dir() else None


def _read(name: str, columns: tuple[str, ...]) -> pd.DataFrame:
    folder = tables()
    if folder is None:
        raise TableError(f"published times of collectives are not at hand: {REMEDY}")
    return read_frame(folder / name, REMEDY, REMEDY, columns)


def read_nccl_tests() -> pd.DataFrame:
    """Rows of nccl-tests: source, gpu, op, ranks, nodes, bytes, kernel_us, library."""
    columns = ("source", "gpu", "op", "gpus", "nodes", "bytes", "time_us", "library")
    table = _read("collectives.parquet", columns)
    return table.rename(columns={"gpus": "ranks", "time_us": "kernel_us"})[
        ["source", "gpu", "op", "ranks", "nodes", "bytes", "kernel_us", "library"]
    ]


def read_framework_times() -> pd.DataFrame:
    """Rows of vidur and pipeweave: source, folder, op, ranks, nodes, bytes, kernel_us (median of the slowest rank).

    Send-recv of two ranks with one GPU a node crosses nodes.
    """
    columns = (
        "source",
        "folder",
        "collective",
        "num_workers",
        "devices_per_node",
        "size",
        "max_rank_median_ms",
    )
    table = _read("nccl_curves.parquet", columns)
    return pd.DataFrame(
        {
            "source": table["source"],
            "folder": table["folder"],
            "op": table["collective"],
            "ranks": table["num_workers"],
            "nodes": table["num_workers"] // table["devices_per_node"],
            "bytes": table["size"],
            "kernel_us": 1e3 * table["max_rank_median_ms"],
        }
    )


def read_v100() -> pd.DataFrame:
    """All-reduce on 2 to 8 V100, 1 MiB to 1 GiB (VIA-Research/vTrain).

    The machine is not stated. The rates are 1, 2, 4, 1.6, 2, 4 and 6 times those of one NVLink on 2 to 8 GPUs, as the
    links of the hybrid cube mesh allow; behind switches they would not depend on the number of GPUs.
    """
    table = read_nccl_tests()
    return table[(table["gpu"] == "V100") & (table["source"] == "VIA-Research/vTrain")].reset_index(
        drop=True
    )


def read_send_recv(gpu: str) -> pd.DataFrame:
    """Send-recv between two GPUs of a node, of a GPU in `SEND_RECV`."""
    table, (source, folder) = read_framework_times(), SEND_RECV[gpu]
    mine = (table["source"] == source) & (table["folder"] == folder) & (table["op"] == "send_recv")
    return table[mine & (table["nodes"] == 1)].reset_index(drop=True)
