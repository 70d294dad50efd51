"""Inputs and provenance of the shipped packs, for the rules that make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluation.published.aiconfigurator import TABLES, data_dir, installed_release, table_path
from evaluation.published.nccl_times import tables
from pipeline.answers.who_answers import PUBLIC_KERNEL_GPUS, Source, kernel_source, overhead_source
from pipeline.flow import Flow, on_this_machine
from pipeline.measured.campaign_files import read_manifest
from pipeline.paths import campaign_gpus, measurements_dir
from pipeline.user_cache import code_digest
from pipeline.yaml_text import load_yaml

SOURCES: dict[str, dict[str, str]] = load_yaml(
    (Path(__file__).parents[1] / "published" / "sources.yaml").read_text(encoding="utf-8")
)
"""Origin of the public measurements, by name."""


def models_of(flow: Flow, gpu: str) -> list[str]:
    """Model folders of a GPU's pack, one per family."""
    return flow.models(gpu, "auto", kernel_source(gpu))


def packed_gpus() -> list[str]:
    """GPUs whose packs can be rebuilt here: from public data, or from this project's campaigns."""
    return [
        *(gpu for gpu in PUBLIC_KERNEL_GPUS if kernel_source(gpu) is Source.PUBLIC),
        *campaign_gpus(),
    ]


def overheads_of(flow: Flow, gpu: str) -> list[str]:
    """Overhead observations that a GPU's pack ships, if public traces of the GPU exist."""
    return [flow.artifacts.overhead_samples(gpu)] if overhead_source(gpu) is Source.PUBLIC else []


def bf16_gpus() -> list[str]:
    """GPUs with available public bf16 matrix products, so that their models can be refitted."""
    return list(TABLES) if data_dir() is not None else []


def bf16_table(wildcards: Any) -> str:
    """Input function: the public bf16 matrix products of a GPU, if their package is installed."""
    return on_this_machine(table_path(wildcards.gpu))


def newer_provenance(wildcards: Any) -> dict[str, Any]:
    """Params function: provenance of the public data of bf16 matrix products and collectives."""
    data = {**SOURCES["aiconfigurator"], "release": installed_release()}
    return {"data": [data], "code": code_digest("fit_kernels")}


def collective_provenance(wildcards: Any) -> dict[str, Any]:
    """Params function: provenance of the public times of collectives."""
    beside = ["vtrain", "vidur", "pipeweave"] if tables() is not None else []
    made = newer_provenance(wildcards)
    return made | {"data": [*made["data"], *(SOURCES[name] for name in beside)]}


def pack_provenance(wildcards: Any) -> dict[str, Any]:
    """Params function: provenance of the measurements of a pack."""
    if kernel_source(wildcards.gpu) is Source.MEASUREMENTS:
        manifest = read_manifest(measurements_dir() / wildcards.gpu)
        device = {
            key: manifest["device"].get(key) for key in ("driver_name", "torch", "cuda", "cudnn")
        }
        data = {
            "source": f"measurements/{wildcards.gpu}",
            "campaign": manifest["campaign_id"],
            **device,
        }
        return {"data": [data], "code": [code_digest("fit_kernels")]}
    names = ["neusight"] + (
        ["param", "hta"] if overhead_source(wildcards.gpu) is Source.PUBLIC else []
    )
    return {
        "data": [SOURCES[name] for name in names],
        "code": [code_digest("fit_kernels"), code_digest("public_overheads")],
    }
