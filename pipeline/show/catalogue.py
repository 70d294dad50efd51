"""Lists of the known GPUs, with the evidence available for each, and of the known workloads."""

from __future__ import annotations

from typing import Any

from pipeline.answers.who_answers import Source, kernel_source, observations_file, overhead_source
from pipeline.errors import InputError, UnknownNameError
from pipeline.hardware.clusters import list_clusters
from pipeline.hardware.find_gpu import list_gpus
from pipeline.hardware.hosts import list_hosts, usual_host
from pipeline.model_files import HALF, list_packs
from pipeline.paths import config_dir
from pipeline.question.compose import choices
from pipeline.question.options import option_of, words_of, workload_values
from pipeline.question.question import LOCAL_GPU
from pipeline.question.settings import written
from pipeline.yaml_text import load_yaml

_KERNELS = {
    Source.MEASUREMENTS: "measured",
    Source.PUBLIC: "fitted, public samples",
    Source.PACK: "pack",
    Source.TRANSFER: "transferred",
    Source.LOCAL: "measured here",
}
_ABOUT = ("name", "architecture", "description")
"""Keys of a workload's file that say what it is; they are no options."""


def gpu_rows() -> list[dict[str, Any]]:
    """One row per GPU: its properties, and the current sources of its kernel times, and its usual host."""
    half = dict.fromkeys(list_packs(HALF), "; bf16 products: pack")
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
            "host": usual_host(spec).name,
            "aliases": ", ".join(spec.aliases),
        }
        for spec in list_gpus()
    ]
    local = dict.fromkeys(rows[0], "") | {"gpu": LOCAL_GPU, "architecture": "this machine"}
    return [*rows, local | {"kernels": _KERNELS[Source.LOCAL], "host": LOCAL_GPU}]


def host_rows() -> list[dict[str, Any]]:
    """One row per host: what it is, whose overheads it has, its factor on them, and the GPUs that usually sit in it."""
    return [
        {
            "host": host.name,
            "what": host.what + _readiness(host.observations),
            "overheads of": host.observations,
            "times": f"{host.scale:g}",
            "log sd": f"{host.log_sd:g}",
            "usual for": ", ".join(host.usual_for),
        }
        for host in list_hosts()
    ]


def _readiness(gpu: str) -> str:
    """Whether a run has read the campaign's traces that a host's overheads come from; empty for traces of others."""
    if overhead_source(gpu) is not Source.MEASUREMENTS:
        return ""
    try:
        observations_file(gpu, "results")
    except InputError:
        return " (needs a run first)"
    return " (ready)"


def cluster_rows() -> list[dict[str, Any]]:
    """One row per cluster: what joins its GPUs and its nodes, and which GPUs usually sit in it."""
    return [
        {
            "cluster": cluster.name,
            "what": cluster.what,
            "GPUs": cluster.gpus_per_node,
            "fabric": cluster.fabric,
            "NICs": cluster.nics_per_node,
            "Gb/s a NIC": f"{8 * cluster.nic_gb_per_s:g}",
            "host": cluster.host or "usual",
            "usual for": ", ".join(cluster.usual_for),
        }
        for cluster in list_clusters()
    ]


def model_rows() -> list[dict[str, Any]]:
    """One row per workload: its description and default batch size."""
    rows = []
    for name in choices("model"):
        text = (config_dir() / "model" / f"{name}.yaml").read_text(encoding="utf-8")
        loaded = load_yaml(text) or {}
        first = text.splitlines()[0].removeprefix("#").strip() if text.startswith("#") else ""
        what = loaded.get("description") or first
        rows.append({"model": name, "batch_size": loaded.get("batch_size", ""), "what": what})
    return rows


def option_rows(model: str) -> list[dict[str, Any]]:
    """One row per option of a workload: its default, its values, and what it means.

    Raises:
        UnknownNameError: there is no such workload.
    """
    if model not in choices("model"):
        raise UnknownNameError("model", model, choices("model"))
    rows = []
    for name, default in workload_values(model).items():
        if name in _ABOUT:
            continue
        key = name if name == "batch_size" else f"model.{name}"
        option, words = option_of(key), words_of(key, isinstance(default, bool))
        stated = {"option": key, "default": _shown(default)}
        kinds = {"values": " | ".join(words) or _kind(default), "what": option.what}
        rows.append(stated | kinds)
    return rows


def _shown(value: Any) -> str:
    """A default as a user types it; empty for an option that must be given."""
    text = "" if value == "???" else written(value)
    return text.lower() if isinstance(value, bool) else text


def _kind(value: Any) -> str:
    """The kind of values that an option takes, from its default."""
    kinds: dict[type, str] = {list: "numbers", dict: "options", str: "a name"}
    return kinds.get(type(value), "a number")
