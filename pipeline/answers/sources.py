"""The sources of a prediction, best first, and which of them are available for a GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pipeline.hardware.find_gpu import LOCAL
from pipeline.paths import CAMPAIGN, datasets_dir, measurements_dir, packs_dir


class Source(StrEnum):
    """Where the samples or traces of a GPU come from. It decides which rule makes its kernel models and overheads."""

    LOCAL = "local"  # measured on this machine, now.
    MEASUREMENTS = "measurements"  # a campaign of this project, committed under measurements/.
    PUBLIC = "public"  # public data, present on this machine.
    PACK = "pack"  # models fitted on public data, shipped.
    TRANSFER = "transfer"  # no data of this GPU: predicted from other GPUs and its spec file.


PUBLIC_KERNEL_GPUS = ("V100", "P100", "P4", "T4", "A100-PCIE-40GB")
"""GPUs with public kernel latencies."""

PUBLIC_OVERHEAD_GPUS = ("V100", "A100-PCIE-40GB")
"""GPUs with a pack whose host appears in public training traces (`pipeline/overheads/trace_overheads.py`)."""


OVERHEAD_DONOR = "V100"
"""The GPU whose host overheads are used where a GPU has none of its own."""


HAS_MODELS = (Source.LOCAL, Source.MEASUREMENTS, Source.PUBLIC)
"""Sources whose samples are fitted in this run."""


def kernel_source(gpu: str) -> Source:
    """Where the kernel models of a GPU come from, by the files that exist now."""
    if gpu == LOCAL:
        return Source.LOCAL
    if (measurements_dir() / gpu / CAMPAIGN).is_file():
        return Source.MEASUREMENTS
    data = datasets_dir()
    if gpu in PUBLIC_KERNEL_GPUS and data is not None and (data / "neusight" / "kernels.parquet").is_file():
        return Source.PUBLIC
    return Source.PACK if (packs_dir() / gpu / "kernels").is_dir() else Source.TRANSFER


def overhead_source(gpu: str) -> Source:
    """Where the host overheads of a GPU come from, by the files that exist now."""
    if gpu == LOCAL:
        return Source.LOCAL
    if (measurements_dir() / gpu / CAMPAIGN).is_file():
        return Source.MEASUREMENTS
    data = datasets_dir()
    if gpu in PUBLIC_OVERHEAD_GPUS and data is not None and (data / "traces" / "v100_ddp").is_dir():
        return Source.PUBLIC
    return Source.PACK if _pack_overheads(gpu).is_file() else Source.TRANSFER


def shipped_overheads(gpu: str) -> Path:
    """The shipped overhead observations for a GPU: of its own host, else those of another GPU's host."""
    own = _pack_overheads(gpu)
    return own if own.is_file() else _pack_overheads(OVERHEAD_DONOR)


def _pack_overheads(gpu: str) -> Path:
    return packs_dir() / gpu / "overhead_samples.parquet"
