"""Lists of the known GPUs, with the evidence available for each, and of the known workloads."""

from __future__ import annotations

from typing import Any

from pipeline.answers.sources import Source, kernel_source, overhead_source
from pipeline.answers.tensor_core_gemm import measured_gpus
from pipeline.compose import choices
from pipeline.config import LOCAL_GPU
from pipeline.hardware.spec import list_gpus
from pipeline.paths import config_dir
from pipeline.yaml_text import load_yaml

_KERNELS = {
    Source.MEASUREMENTS: "measured",
    Source.PUBLIC: "fitted, public samples",
    Source.PACK: "pack",
    Source.TRANSFER: "transferred",
    Source.LOCAL: "measured here",
}
_OVERHEADS = {**_KERNELS, Source.PUBLIC: "public traces", Source.TRANSFER: "of another host"}


def gpu_rows() -> list[dict[str, Any]]:
    """One row per GPU: its properties, and the current sources of its kernel times and overheads."""
    half = dict.fromkeys(measured_gpus(), "; bf16 products: pack")
    rows = [
        {
            "gpu": spec.name,
            "architecture": spec.architecture,
            "SMs": spec.sms,
            "GiB": round(spec.memory_bytes / 2**30),
            "GB/s": round(spec.peak_dram_gb_per_s()),
            "fp32 TFLOP/s": round(spec.peak_gflop_per_s("fp32") / 1000, 1),
            "peaks": "measured" if spec.measured_dram_gb_per_s else "datasheet",
            "kernels": _KERNELS[kernel_source(spec.name)] + half.get(spec.name, ""),
            "overheads": _OVERHEADS[overhead_source(spec.name)],
            "aliases": ", ".join(spec.aliases),
        }
        for spec in list_gpus()
    ]
    local = dict.fromkeys(rows[0], "") | {"gpu": LOCAL_GPU, "architecture": "this machine"}
    return [*rows, local | {"kernels": _KERNELS[Source.LOCAL], "overheads": _OVERHEADS[Source.LOCAL]}]


def model_rows() -> list[dict[str, Any]]:
    """One row per workload: its description and default batch size."""
    rows = []
    for name in choices("model"):
        path = config_dir() / "model" / f"{name}.yaml"
        text = path.read_text(encoding="utf-8")
        loaded = load_yaml(text) or {}
        first = text.splitlines()[0].removeprefix("#").strip() if text.startswith("#") else ""
        rows.append(
            {"model": name, "batch_size": loaded.get("batch_size", ""), "what": loaded.get("description") or first}
        )
    return rows
