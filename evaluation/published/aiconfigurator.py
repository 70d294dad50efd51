"""Reader of public measurements on newer GPUs (package `aiconfigurator-core`, NVIDIA, Apache-2.0).

The package holds three kinds of measurements:
- Matrix products in bf16 are kernel times of `torch.nn.functional.linear` without bias at 36,000 sizes per GPU. Most
  sizes are round numbers, as in serving of language models. Operands stay in L2 where they fit.
- Collectives are times of NCCL over NVLink or PCIe on 2, 4 and 8 GPUs of one machine.
- Fused attention in bf16 is measured with kernels of serving frameworks. They are the closest public kernels to those
  that PyTorch runs.

The tables come with the package: `pip install -e '.[newer]'`. They are read from the installed package and never
copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from pipeline.errors import TableError, UnknownNameError
from pipeline.schemas import read_frame

PACKAGE = "aiconfigurator_core"

RELEASE = "0.12.0"
"""Release of the package from which the shipped models and figures of this project were made."""

SOURCE = f"aiconfigurator-core@{RELEASE}"

TABLES = {
    "A100-SXM4-80GB": "a100_sxm/gemm/sglang/0.5.10",
    "L40S": "l40s/gemm/vllm/0.24.0",
    "H100": "h100_sxm/gemm/vllm/0.24.0",
    "H200": "h200_sxm/gemm/vllm/0.24.0",
    "B200": "b200_sxm/gemm/vllm/0.24.0",
    "B300": "b300_sxm/gemm/vllm/0.24.0",
    "GB200": "gb200/gemm/vllm/0.24.0",
    "GB300": "gb300/gemm/vllm/0.24.0",
    "RTXPRO6000": "rtx_pro_6000_server/gemm/vllm/0.24.0",
}
"""Table of each GPU. Of several software versions, it is one with measurements of PyTorch's own product."""

COLLECTIVES = {
    "A100-SXM4-80GB": "a100_sxm/comm/nccl/2.27.3",
    "H100": "h100_sxm/comm/nccl/2.29.2",
    "H200": "h200_sxm/comm/nccl/2.29.2",
    "B200": "b200_sxm/comm/nccl/2.29.2",
    "B300": "b300_sxm/comm/nccl/2.29.2",
    "GB200": "gb200/comm/nccl/2.29.2",
    "GB300": "gb300/comm/nccl/2.29.2",
    "L40S": "l40s/comm/nccl/2.27.3",
    "RTXPRO6000": "rtx_pro_6000_server/comm/nccl/2.29.2",
}
"""NCCL tables of GPUs: the newest release of each. The last two are joined by PCIe, the others by NVLink behind switches."""

MOST_RANKS = {"L40S": 2}
"""Ranks up to which a table is read. Four and eight L40S reach 5 and 1.4 GB/s, a twentieth of their links: that is the machine,
not the card."""

ATTENTION: Mapping[str, tuple[tuple[str, str, bool], ...]] = {
    "A100-SXM4-80GB": (("a100_sxm/attention/sglang/0.5.10/context", "flash_attention", True),),
    "L40S": (
        ("l40s/attention/vllm/0.24.0/context", "vllm_flash_attn_fa2", True),
        ("l40s/encoder_attention/vllm/0.24.0/encoder", "vllm_vit_flash_attn_fa2", False),
    ),
    "H100": (
        ("h100_sxm/attention/vllm/0.24.0/context", "vllm_flash_attn_fa3", True),
        ("h100_sxm/encoder_attention/vllm/0.24.0/encoder", "vllm_vit_flash_attn_fa3", False),
    ),
    "H200": (
        ("h200_sxm/attention/vllm/0.24.0/context", "vllm_flash_attn_fa3", True),
        ("h200_sxm/encoder_attention/vllm/0.24.0/encoder", "vllm_vit_flash_attn_fa3", False),
    ),
    "B200": (
        ("b200_sxm/attention/vllm/0.24.0/context", "vllm_flashinfer_trtllmprefill", True),
        ("b200_sxm/encoder_attention/vllm/0.24.0/encoder", "vllm_vit_flash_attn_fa4", False),
    ),
}
"""Tables of fused attention per GPU: (file, kernel, causal). Causal rows also write keys and values to the serving cache.

The kernels depend on the GPU (docs/kernels.md):
- A100 and L40S run FlashAttention-2.
- Hopper runs FlashAttention-3, which has the same rate as cuDNN's kernels.
- Blackwell runs kernels that are related to cuDNN's."""

MIN_TOKENS, MAX_TOKENS, MAX_HEAD_WIDTH = 16, 16384, 256
"""Smallest and largest number of tokens, and largest head width, of the rows that are read.

A single token runs in another kernel, and longer sequences do not occur in training batches."""

NCCL_BYTES = {"half": 2, "int8": 1}
"""Bytes per element of each type, because `message_size` counts elements. Both types have the same sizes in bytes."""

_COLUMNS = ("device", "gemm_dtype", "m", "n", "k", "latency")


def data_dir() -> Path | None:
    """Folder of the measurements within the installed package; None where it is not installed."""
    found = find_spec(PACKAGE)
    folder = (
        Path(str(found.origin)).parent / "systems" / "data"
        if found is not None and found.origin
        else None
    )
    return folder if folder is not None and folder.is_dir() else None


def _root(gpu: str, folder: Path | None) -> Path:
    root = folder or data_dir()
    if root is None:
        raise TableError(
            f"measurements of {gpu} need the package aiconfigurator-core; run pip install "
            f"aiconfigurator-core=={RELEASE}"
        )
    return root


def table_path(gpu: str, folder: Path | None = None, collectives: bool = False) -> Path:
    """File of a GPU's matrix products, or of its collectives.

    Raises:
        UnknownNameError: no measurement of that GPU is read.
        TableError: the package is not installed.
    """
    tables, name = (COLLECTIVES, "nccl_perf") if collectives else (TABLES, "gemm_perf")
    if gpu not in tables:
        raise UnknownNameError("GPU with public measurements of newer GPUs", gpu, list(tables))
    return _root(gpu, folder) / tables[gpu] / f"{name}.parquet"


def _read(file: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    remedy = f"install aiconfigurator-core {RELEASE}"
    return read_frame(file, remedy, remedy, columns)


def read_products(gpu: str, folder: Path | None = None) -> pd.DataFrame:
    """bf16 products of one GPU as a samples table with one row per size; `latency_us` and `kernel_us` are kernel times.

    Args:
        gpu: canonical name, one of `TABLES`.
        folder: the package's `systems/data`; that of the installed package if None.

    Raises:
        UnknownNameError: no measurement of that GPU is read.
        TableError: the package is missing, or its table is missing, unreadable, or lacks columns.
    """
    table = _read(table_path(gpu, folder), _COLUMNS)
    rows = (
        table[table["gemm_dtype"].astype(str) == "bfloat16"]
        .drop_duplicates(["m", "n", "k"])
        .reset_index(drop=True)
    )
    micro = 1e3 * rows["latency"].astype("float64")  # the table is in milliseconds
    return pd.DataFrame(
        {
            "gpu": gpu,
            "family": "gemm",
            "op": "linear",
            "phase": "forward",
            "dtype": "bf16",
            "latency_us": micro,
            "kernel_us": micro,
            "source": SOURCE,
            "campaign_id": SOURCE,
            # the project's convention: (M, N) x (N, K), where N is the reduction
            "B": 1,
            "M": rows["m"].astype("int64"),
            "N": rows["k"].astype("int64"),
            "K": rows["n"].astype("int64"),
            "cold": False,
        }
    )


def read_collectives(gpu: str, folder: Path | None = None) -> pd.DataFrame:
    """Times of collectives between several GPUs of one kind.

    Args:
        gpu: canonical name, one of `COLLECTIVES`.
        folder: the package's `systems/data`; that of the installed package if None.

    Returns:
        Columns `op` (all_reduce, all_gather, reduce_scatter, all_to_all), `ranks`, `bytes` and `kernel_us`. `bytes` is
        the size of the buffer on one rank; for all_gather and reduce_scatter it is the whole gathered buffer.

    Raises:
        UnknownNameError, TableError: as `read_products`.
    """
    columns = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
    table = _read(table_path(gpu, folder, collectives=True), columns)
    width = table["nccl_dtype"].astype(str).map(NCCL_BYTES)
    return pd.DataFrame(
        {
            "op": table["op_name"].astype(str).replace({"alltoall": "all_to_all"}),
            "ranks": table["num_gpus"].astype("int64"),
            "bytes": table["message_size"].astype("int64") * width,
            "kernel_us": 1e3 * table["latency"].astype("float64"),
        }
    )[width.notna() & (table["num_gpus"] <= MOST_RANKS.get(gpu, 8))].reset_index(drop=True)


def read_attention(gpu: str, folder: Path | None = None) -> pd.DataFrame:
    """Fused attention of one GPU as a samples table with one row per size; `kernel_us` is the kernel time.

    The rows are plain multi-head attention in bf16 over whole sequences. B is the number of heads of all samples, M and
    N are numbers of tokens, and K is the head width. `heads` is the number of heads of one sample. `attributes` holds
    `causal`, and `cached` where the time includes the write to the serving cache.

    Args:
        gpu: canonical name, one of `ATTENTION`.
        folder: the package's `systems/data`; that of the installed package if None.

    Raises:
        UnknownNameError, TableError: as `read_products`.
    """
    if gpu not in ATTENTION:
        raise UnknownNameError(
            "GPU with public measurements of fused attention", gpu, list(ATTENTION)
        )
    root = _root(gpu, folder)
    parts = [
        _attention(root / f"{name}_attention_perf.parquet", kernel, cut)
        for name, kernel, cut in ATTENTION[gpu]
    ]
    rows = pd.concat(parts, ignore_index=True)
    keys = ["causal", "B", "heads", "M", "K"]
    found = rows.groupby(keys, as_index=False, sort=True)[
        "kernel_us"
    ].median()  # a few sizes were measured twice
    notes = found["causal"].map({True: '{"causal":true,"cached":true}', False: '{"causal":false}'})
    return pd.DataFrame(found.drop(columns="causal")).assign(
        gpu=gpu,
        family="attention",
        op="flash",
        phase="forward",
        dtype="bf16",
        N=found["M"],
        attributes=notes,
        latency_us=found["kernel_us"],
        source=SOURCE,
        campaign_id=SOURCE,
        cold=False,
    )


def _attention(file: Path, kernel: str, causal: bool) -> pd.DataFrame:
    """Rows of one table: B, heads, M, K, causal, kernel_us."""
    columns = (
        "kernel_source",
        "batch_size",
        "isl",
        "num_heads",
        "head_dim",
        "attn_dtype",
        "latency",
    )
    only_causal = ("num_key_value_heads", "kv_cache_dtype", "step")
    table = _read(file, (*columns, *only_causal) if causal else columns)
    keep = (table["kernel_source"].astype(str) == kernel) & (
        table["attn_dtype"].astype(str) == "bfloat16"
    )
    keep &= table["isl"].between(MIN_TOKENS, MAX_TOKENS) & (table["head_dim"] <= MAX_HEAD_WIDTH)
    if causal:
        keep &= (table["kv_cache_dtype"].astype(str) == "bfloat16") & (table["step"] == 0)
        keep &= table["num_heads"] == table["num_key_value_heads"]
        keep &= table["window_size"] == 0 if "window_size" in table.columns else True
    rows = table[keep]
    size = {
        name: rows[column].astype("int64")
        for name, column in (
            ("samples", "batch_size"),
            ("heads", "num_heads"),
            ("M", "isl"),
            ("K", "head_dim"),
        )
    }
    return pd.DataFrame(
        {
            "causal": causal,
            "B": size["samples"] * size["heads"],
            "heads": size["heads"],
            "M": size["M"],
            "K": size["K"],
            "kernel_us": 1e3 * rows["latency"].astype("float64"),
        }
    )


def installed_release() -> str | None:
    """Version of the installed package; None where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError:
        return None
