"""Collectives between GPUs: curves of public NCCL times, by operation and number of ranks, else formulas.

A curve is the time over the bytes that a rank sends: its buffer times the factor of the algorithm, which is 2 (n - 1) / n
for an all-reduce of n ranks, (n - 1) / n for most others, 1 for a broadcast. It is straight between a few sizes, because
NCCL changes its protocols and channels in steps: each piece has a start-up time and a bandwidth of its own.

Curves belong to a GPU and a fabric, since topology decides, not the sum of links. Who answers, best first:

1. the curve of the GPU on this fabric (evidence `pack`; over PCIe `transferred`, because it is the host's);
2. on this fabric, the curve of a related operation, or of a GPU of its architecture or the nearest link, scaled by the link
   (`transferred`);
3. formulas (`collective_formulas.py`), which also answer for all collectives over several nodes (`roofline`).

Without a cluster, a GPU with NVLink counts as one behind switches, and a GPU without has no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Texts
from pipeline.families import work_of
from pipeline.families.dims import Dims
from pipeline.hardware.clusters import NVSWITCH, PAIRS, PCIE, Cluster, usual_cluster
from pipeline.hardware.find_gpu import load_gpu, same_chip
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.collective_formulas import OPS, bus_share, hops, kinds, node_us, nodes_us
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.model_files import SHARED, read_by_gpu, shipped_file

FAMILY = "collective"

FILE = "collectives.json"

SPREAD, TRANSFERRED_SPREAD, FORMULA_SPREAD = 1.12, 1.55, 2.0
"""Factors up and down of the p10 to p90 interval: on the GPU of the samples (errors at sizes between the fitted ones), on
another GPU (errors of the other GPUs' curves), and of formulas. Over PCIe a curve is one of a host, not of a card. Rates of six
machines of generation 4 (8.3 to 23.6 GB/s, `config/cluster/pcie4*.yaml`) have a standard deviation of 0.38 in the log, of which a
seventh's 80 % interval reaches a factor of 1.8: there everything has the width of formulas."""

PYTORCH_US = 10.0
"""What an all-reduce of PyTorch takes longer than one of nccl-tests, of which curves and formulas are, µs. Below 1 MB, public times
of six other machines (`nccl_curves.parquet`: A100, H100, H800, RTX PRO 6000) are met best with 15 to 20, the curves with 0. With
10, every machine is closer, by 5 to 50 % of its mean log error. Sends and receives agree to 3 %: their curves are of PyTorch."""

RELATED = {
    "all_gather": ("reduce_scatter", "all_reduce"),
    "reduce_scatter": ("all_gather", "all_reduce"),
    "broadcast": ("all_gather", "all_reduce"),
}
"""Operations whose curves stand for one without: the same rings, with fewer hops."""


@dataclass(frozen=True)
class TimeCurve:
    """Time in µs over bytes: straight between sizes, constant below the first, and beyond the last as before it."""

    bytes: tuple[float, ...]
    us: tuple[float, ...]

    def time_us(self, size: Array) -> Array:
        """Microseconds for `size` bytes."""
        time = np.interp(size, self.bytes, self.us)
        if len(self.bytes) > 1:
            slope = (self.us[-1] - self.us[-2]) / (self.bytes[-1] - self.bytes[-2])
            time = time + slope * np.maximum(size - self.bytes[-1], 0.0)
        return time

    def with_link(self, scale: float) -> TimeCurve:
        """The curve on a link that is slower by `scale`: a size takes as long as `scale` times that size here."""
        return TimeCurve(tuple(size / scale for size in self.bytes), self.us)

    def to_json(self) -> dict[str, str]:
        """Both rows of numbers as text, with four digits: a line of the file each."""
        return {
            key: " ".join(f"{value:.4g}" for value in values)
            for key, values in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, str]) -> TimeCurve:
        """Read the result of `to_json`."""
        size, us = (tuple(map(float, values[key].split())) for key in ("bytes", "us"))
        if not 0 < len(size) == len(us):
            raise ValueError(f"{len(size)} sizes and {len(us)} times")
        return cls(size, us)


Curves = dict[str, dict[int, TimeCurve]]


def link_gb_per_s(gpu: GpuSpec) -> float:
    """GB/s of the GPU's NVLink in one direction."""
    return float(gpu.nvlink_gb_per_s or 0.0)


@dataclass(frozen=True)
class MeasuredCurves:
    """Curves of one GPU on one fabric, by operation and ranks."""

    gpu: GpuSpec
    fabric: str
    curves: Mapping[str, Mapping[int, TimeCurve]]

    def link_gb_per_s(self) -> float:
        """GB/s of the GPU's link to this fabric, in one direction."""
        return (
            usual_cluster(self.gpu).pcie_gb_per_s
            if self.fabric == PCIE
            else link_gb_per_s(self.gpu)
        )


@dataclass(frozen=True)
class Source:
    """The curves that answer for one operation, by ranks: those of `op`, scaled to the link that is asked for."""

    op: str
    curves: Mapping[int, TimeCurve]
    evidence: str


@dataclass(frozen=True)
class CollectiveModel(KernelModel):
    """Curves of measured GPUs on a fabric, scaled to the link of `gpu`; with a cluster, formulas for all else."""

    gpu: GpuSpec
    sources: Mapping[str, Source]
    cluster: Cluster | None = None

    @property
    def evidence(self) -> str:
        """`pack` on a GPU that was measured, else `transferred` or `roofline`."""
        kinds_of_evidence = [source.evidence for source in self.sources.values()] or ["roofline"]
        return next(
            (kind for kind in ("pack", "transferred") if kind in kinds_of_evidence), "roofline"
        )

    def evidence_of(self, calls: pd.DataFrame) -> Texts:
        """`pack`, `transferred` or `roofline`, shape (rows,). Over PCIe, the curves of a card are those of another host."""
        d = Dims(calls)
        known = {op: source.evidence for op, source in self.sources.items()}
        evidence = np.array([known.get(op, "roofline") for op in kinds(d.op)], dtype=object)
        return np.where(self._nodes(d) > 1.0, "roofline", evidence)

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Calls with several ranks: all operations with a cluster, else those with curves."""
        d = Dims(calls)
        ops = kinds(d.op)
        known = (ops != "") if self.cluster is not None else np.isin(ops, list(self.sources))
        return known & (d("ranks", 1.0) > 1.0)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of calls; of a number of ranks that was not measured, by the curve of the nearest number (in log)."""
        d, work = Dims(calls), work_of(FAMILY, calls)
        ranks, nodes = np.maximum(d("ranks", 1.0), 1.0), self._nodes(d)
        size = np.maximum(work.read, work.written)
        ops, time = kinds(d.op), np.full(len(calls), np.nan)
        for op in set(ops) - {""}:
            rows = np.flatnonzero((ops == op) & (nodes <= 1.0))
            time[rows] = self.inside_us(op, ranks[rows], size[rows])
            rows = np.flatnonzero((ops == op) & (nodes > 1.0))
            if self.cluster is not None and len(rows):
                at = ranks[rows], nodes[rows], size[rows]
                time[rows] = nodes_us(
                    op, *at, self.cluster, self.inside_us, d("node_groups", 1.0)[rows]
                )
        spreads = {"pack": SPREAD, "transferred": TRANSFERRED_SPREAD, "roofline": FORMULA_SPREAD}
        spread = np.array([spreads[kind] for kind in self.evidence_of(calls)])
        if self.cluster is not None and self.cluster.fabric == PCIE:
            spread = np.maximum(spread, FORMULA_SPREAD)
        longer = np.where(ops == "all_reduce", PYTORCH_US, 0.0)
        found = Estimate.around(time + longer, time + longer, spread, np.zeros(len(calls)))
        return found.widen(1.0 + 2.0 * longer / (time + longer))

    def inside_us(self, op: str, ranks: Array, size: Array) -> Array:
        """Times inside one node, µs; a single rank takes none."""
        source, time = self.sources.get(op), np.full(len(size), np.nan)
        if source is None:
            if self.cluster is not None:
                time = node_us(op, ranks, size, self.gpu, self.cluster)
            return np.where(ranks > 1.0, time, 0.0)
        measured = np.array(sorted(source.curves))
        nearest = measured[np.abs(np.log(ranks[:, None] / measured)).argmin(axis=1)]
        moved = size * bus_share(op, ranks)
        for count in measured:
            rows = nearest == count
            time[rows] = source.curves[int(count)].time_us(moved[rows])
        if self.cluster is not None:
            longer = hops(op, ranks) - hops(source.op, nearest.astype(float))
            time = np.maximum(time + longer * self.cluster.latency_us, self.cluster.latency_us)
        return np.where(ranks > 1.0, time, 0.0)

    def _nodes(self, d: Dims) -> Array:
        """Nodes of each call; where they are not stated, as many as its ranks need."""
        ranks = np.maximum(d("ranks", 1.0), 1.0)
        if self.cluster is None:
            return np.ones_like(ranks)
        return np.minimum(d("nodes", np.ceil(ranks / self.cluster.gpus_per_node)), ranks)


@lru_cache(maxsize=4)
def read_curves(path: Path) -> dict[str, dict[str, Curves]]:
    """Curves by GPU and fabric.

    Raises:
        PackError: the file is damaged or of another format.
    """
    return read_by_gpu(
        path,
        lambda by_fabric: {
            fabric: {
                op: {int(n): TimeCurve.from_json(curve) for n, curve in by.items()}
                for op, by in by_op.items()
            }
            for fabric, by_op in by_fabric.items()
        },
    )


def measured_curves() -> list[MeasuredCurves]:
    """All measured curves that ship; empty where none do.

    Raises:
        PackError: the file is damaged.
    """
    path = shipped_file(SHARED, FILE)
    if path is None:
        return []
    return [
        MeasuredCurves(load_gpu(name), fabric, curves)
        for name, by_fabric in read_curves(path).items()
        for fabric, curves in by_fabric.items()
    ]


def collective_model(
    gpu: GpuSpec, cluster: Cluster | None = None, measured: Sequence[MeasuredCurves] | None = None
) -> CollectiveModel | None:
    """The model of a GPU's collectives in a cluster; None for a GPU without NVLink and without a cluster.

    Args:
        gpu: the GPU of all ranks.
        cluster: what joins the ranks; None is NVLink behind switches, on one node.
        measured: the curves to use; those that ship if None.

    Raises:
        PackError: the shipped file is damaged.
    """
    if cluster is None and not gpu.nvlink_gb_per_s:
        return None
    known = measured_curves() if measured is None else measured
    if cluster is not None:
        return CollectiveModel(gpu, _in_cluster(gpu, cluster, known), cluster)
    candidates = _by_distance(gpu, NVSWITCH, link_gb_per_s(gpu), known)
    sources = {
        op: _source(op, gpu, link_gb_per_s(gpu), candidates)
        for op in OPS
        if op not in ("broadcast", "send_recv")
    }
    return (
        CollectiveModel(gpu, {op: source for op, source in sources.items() if source})
        if any(sources.values())
        else None
    )


def _in_cluster(
    gpu: GpuSpec, cluster: Cluster, known: Sequence[MeasuredCurves]
) -> dict[str, Source]:
    """The curves of each operation that has any on the cluster's fabric.

    Bridges between two GPUs each are NVLink for two ranks, and PCIe for more.
    """
    sources: dict[str, Source] = {}
    link = cluster.link_gb_per_s(gpu)
    fabric = NVSWITCH if cluster.fabric == PAIRS else cluster.fabric
    candidates = _by_distance(gpu, fabric, link, known, cluster.in_switch_reduction)
    over_pcie = (
        _by_distance(gpu, PCIE, cluster.pcie_gb_per_s, known) if cluster.fabric == PAIRS else []
    )
    for op in OPS:
        source = _source(op, gpu, link, candidates)
        more = _source(op, gpu, cluster.pcie_gb_per_s, over_pcie)
        if source and cluster.fabric == PAIRS:
            wider = {n: curve for n, curve in (more.curves if more else {}).items() if n > 2}
            source = Source(op, {2: source.curves[2]} | wider, "transferred") if wider else None
        if source and cluster.fabric == PCIE:
            source = replace(source, evidence="transferred")
        if source:
            sources[op] = source
    return sources


def _by_distance(
    gpu: GpuSpec,
    fabric: str,
    link: float,
    known: Sequence[MeasuredCurves],
    in_switch: bool | None = None,
) -> list[MeasuredCurves]:
    """Curves on a fabric: of the GPU itself, then of its architecture, of switches that add as well, the nearest link."""

    def distance(curves: MeasuredCurves) -> tuple[bool, bool, bool, float]:
        other = curves.gpu.architecture != gpu.architecture
        differs = (
            in_switch is not None and usual_cluster(curves.gpu).in_switch_reduction != in_switch
        )
        return (
            curves.gpu.name != gpu.name,
            other,
            differs,
            abs(float(np.log(curves.link_gb_per_s() / link))),
        )

    return sorted((curves for curves in known if curves.fabric == fabric), key=distance)


def _source(
    op: str, gpu: GpuSpec, link: float, candidates: Sequence[MeasuredCurves]
) -> Source | None:
    """The curves that answer for an operation: of the first candidate with it, or with a related operation."""
    for measured in candidates:
        scale = measured.link_gb_per_s() / link
        for named in (name for name in (op, *RELATED.get(op, ())) if name in measured.curves):
            own = named == op and (
                measured.gpu.name == gpu.name or (same_chip(measured.gpu, gpu) and scale == 1.0)
            )
            curves = {
                ranks: curve.with_link(scale) for ranks, curve in measured.curves[named].items()
            }
            return Source(named, curves, "pack" if own else "transferred")
    return None
