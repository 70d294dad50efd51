"""Clusters: the machines that several GPUs share, and what joins them, one file each under `config/cluster/`.

A cluster is one kind of node, any number of times. Its fabric joins the GPUs of a node; NICs join the nodes. A file
states figures in the units of its keys, each with its source. `cluster=auto` is the cluster that a card usually sits in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import PCIE_EFFICIENCY, PCIE_LANE_GB_PER_S, GpuSpec
from pipeline.paths import config_files, name_of_config
from pipeline.yaml_text import (
    SOURCES,
    TEXT,
    Kind,
    kept_while_unchanged,
    names,
    number,
    read_named,
)

AUTO = "auto"
"""Value of `cluster` that takes the usual cluster of the GPU."""

NVSWITCH, MESH, PAIRS, PCIE = FABRICS = ("nvswitch", "nvlink_mesh", "nvlink_pairs", "pcie")
"""What joins the GPUs of a node: switches (every GPU reaches every other at full rate), links between some of the GPUs
directly (hybrid cube mesh), bridges between two GPUs each, or PCIe alone."""

PCIE_HOSTS = (3, 4, 5)
"""Generations with a PCIe host `pcie<generation>`, the usual cluster of cards that no file names."""

_TEXTS = ("name", "what", "fabric")
_COUNTS = ("gpus_per_node", "nics_per_node")
_RATES = {
    "nvlink_bidirectional_gb_per_s": 0.5, "pcie_gb_per_s": 1.0, "latency_us": 1.0,
    "nic_gbit_per_s": 0.125, "nic_latency_us": 1.0,
}  # fmt: skip
"""Keys of figures, with the factor to the unit of `Cluster`: GB/s in one direction, µs."""
_OPTIONAL = ("nvlink_bidirectional_gb_per_s", "in_switch_reduction", "host", "usual_for", "sources")
_LARGEST = 1e6
"""Figures above it are refused: they are in another unit."""

_KEYS = {
    **dict.fromkeys((*_TEXTS, "host"), TEXT),
    "fabric": Kind(lambda value: value in FABRICS, f"choose one of {', '.join(FABRICS)}"),
    **dict.fromkeys(
        _COUNTS,
        Kind(
            lambda value: type(value) is int and 1 <= value <= 1024,
            "give a whole number from 1 to 1024",
        ),
    ),
    **dict.fromkeys(
        _RATES, number("give a number above 0, in the unit that the key names", _LARGEST)
    ),
    "in_switch_reduction": Kind(lambda value: isinstance(value, bool), "give true or false"),
    "usual_for": names("GPUs"),
    "sources": SOURCES,
}


@dataclass(frozen=True)
class Cluster:
    """Equal nodes with GPUs. Rates are GB/s (1e9 bytes) in one direction."""

    name: str
    what: str
    """What it is, in a few words."""
    gpus_per_node: int
    fabric: str
    """What joins the GPUs of a node, one of `FABRICS`."""
    pcie_gb_per_s: float
    """What each GPU sends while all GPUs of a node exchange over PCIe."""
    latency_us: float
    """Time of one hop between GPUs of a node."""
    nics_per_node: int
    nic_gb_per_s: float
    """Rate of one NIC, as its data sheet states it."""
    nic_latency_us: float
    """Time of one hop between nodes."""
    nvlink_gb_per_s: float | None = None
    """Rate of all NVLinks of a GPU to its fabric; None takes the figure of the GPU."""
    in_switch_reduction: bool = False
    """Whether the switches of the fabric add the parts of an all-reduce (NVLink SHARP)."""
    host: str | None = None
    """The host of its nodes; None is the usual one of the GPU."""
    usual_for: tuple[str, ...] = ()
    """GPUs that usually sit in it."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, hash=False)

    def link_gb_per_s(self, gpu: GpuSpec) -> float:
        """Rate of one GPU's links to the fabric: NVLink where there is one, else PCIe."""
        return (
            self.pcie_gb_per_s
            if self.fabric == PCIE
            else self.nvlink_gb_per_s or gpu.nvlink_gb_per_s or 0.0
        )


def load_cluster(name: str) -> Cluster:
    """The cluster of a name (`paths.config_files`), or of a file given by path.

    Raises:
        UnknownNameError: there is no such cluster.
        ConfigError: its file is damaged.
    """
    name = name_of_config("cluster", name, _read)
    files = config_files("cluster")
    if name not in files:
        remedy = (
            "; for another cluster give a file with its figures, cluster=FILE.yaml"
            " (docs/many_gpus.md)"
        )
        raise UnknownNameError("cluster", name, [*files, AUTO], remedy=remedy)
    return _read(files[name])


def list_clusters() -> list[Cluster]:
    """All clusters with a file, by name."""
    return [_read(path) for _, path in sorted(config_files("cluster").items())]


def usual_cluster(gpu: GpuSpec) -> Cluster:
    """The cluster that a GPU usually sits in: one that names the GPU, else a PCIe host of the card's generation.

    A user's own file that is `usual_for` a GPU counts before the shipped ones.
    """
    clusters = [_read(path) for path in config_files("cluster").values()]
    named = (cluster for cluster in reversed(clusters) if gpu.name in cluster.usual_for)
    return next(named, None) or load_cluster(f"pcie{_generation(gpu)}")


def _generation(gpu: GpuSpec) -> int:
    """The generation among those of the PCIe hosts at which 16 lanes are nearest to the card's rate."""
    rate = max(gpu.pcie_gb_per_s, 1.0) / (16 * PCIE_EFFICIENCY)
    return min(PCIE_HOSTS, key=lambda generation: abs(log(rate / PCIE_LANE_GB_PER_S[generation])))


def check_fabric(cluster: Cluster, gpu: GpuSpec) -> None:
    """Refuse a GPU without NVLink in a cluster whose fabric is NVLink, and a PCIe card or another generation behind its switches.

    Raises:
        ConfigError: neither the GPU nor the cluster states the rate of the link, or the switches are those of other GPUs.
    """
    own = cluster.usual_for if cluster.fabric == NVSWITCH else ()
    of_slots = "pcie" in gpu.name.lower()  # a card on the bus, whatever NVLink it has
    if own and (of_slots or gpu.architecture not in {load_gpu(name).architecture for name in own}):
        raise ConfigError(
            f"cluster={cluster.name}: its switches join {', '.join(own)}, not {gpu.name}; take"
            f" cluster={usual_cluster(gpu).name}"
        )
    if not cluster.link_gb_per_s(gpu):
        raise ConfigError(
            f"cluster={cluster.name}: its GPUs are joined by NVLink ({cluster.fabric}), which"
            f" {gpu.name} has not; take a PCIe host, such as cluster={usual_cluster(gpu).name}"
        )


@kept_while_unchanged
def _read(path: Path) -> Cluster:
    """The cluster of a file. Its errors are those of `load_cluster`."""
    required = [key for key in _KEYS if key not in _OPTIONAL]
    values = read_named(path, "cluster", "dgx-a100", _KEYS, required)
    figures: dict[str, Any] = {
        key.replace("_bidirectional", "").replace("gbit", "gb"): factor * values[key]
        for key, factor in _RATES.items()
        if key in values
    }
    cluster = Cluster(
        **figures,
        **{key: values[key] for key in (*_TEXTS, *_COUNTS)},
        host=values.get("host"),
        in_switch_reduction=values.get("in_switch_reduction", False),
        usual_for=tuple(map(str, values.get("usual_for", ()))),
        sources={str(key): str(text) for key, text in values.get("sources", {}).items()},
    )
    if cluster.name == AUTO:
        raise ConfigError(
            f"{path}: {AUTO} means the usual cluster of a GPU; call the file and the cluster"
            " otherwise"
        )
    return cluster
