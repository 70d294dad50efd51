"""Collectives over NVLink: bandwidth curves of public NCCL times, by operation and number of ranks.

The time is a start-up time that grows with the ranks, plus bytes on a rank's bus over a bandwidth. The bytes are the
buffer times the factor of the algorithm: 2 (n - 1) / n for an all-reduce of n ranks, (n - 1) / n for the other
operations below. The bandwidth rises with size along a sigmoid, as for memory (Lin et al.).

Steptime ships curves of A100, H100, H200 and B200. Another GPU with NVLink uses the curves of the GPU with the nearest
link bandwidth, scaled by the ratio of the two. GPUs without NVLink use the formula, because the bandwidth of their
collectives depends on the machine's PCIe switches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.estimate import Estimate, KernelModel
from pipeline.kernels.families import work_of
from pipeline.kernels.physics import bus_factor
from pipeline.kernels.work import Dims
from pipeline.model_files import read_by_gpu
from pipeline.packs import SHARED, shipped_file

FAMILY = "collective"

FILE = "collectives.json"

OPS = {
    "all_reduce": "all_?reduce",
    "all_gather": "all_?gather",
    "reduce_scatter": "reduce_?scatter",
    "all_to_all": "all_?to_?all",
}
"""Operations with curves, and a pattern that the names of their calls contain."""

SPREAD, TRANSFERRED_SPREAD = 1.12, 1.55
"""Factors up and down of the p10 to p90 interval: on the GPU of the samples (errors at sizes between the fitted ones), and on
another GPU (errors of the other GPUs' curves)."""

Curves = dict[str, dict[int, BandwidthCurve]]


def link_gb_per_s(gpu: GpuSpec) -> float:
    """GB/s of the GPU's NVLink in one direction."""
    return float(gpu.nvlink_gb_per_s or 0.0)


@dataclass(frozen=True)
class CollectiveModel(KernelModel):
    """Curves of a measured GPU, scaled to the link bandwidth of `gpu`."""

    gpu: GpuSpec
    measured: GpuSpec
    curves: Mapping[str, Mapping[int, BandwidthCurve]]

    @property
    def evidence(self) -> str:
        """`pack` on the GPU that was measured, else `transferred`."""
        return "pack" if self.gpu.name == self.measured.name else "transferred"

    def covers(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Calls with several ranks whose operation has curves."""
        d = Dims(calls)
        return np.asarray((self._kinds(d) != "") & (d("ranks", 1.0) > 1.0))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of calls. A number of ranks that was not measured uses the curve of the nearest number (in log)."""
        d = Dims(calls)
        work = work_of(FAMILY, calls)
        ranks, factor = bus_factor(d)
        size = np.maximum(work.read, work.written) * factor * link_gb_per_s(self.measured) / link_gb_per_s(self.gpu)
        kinds, time = self._kinds(d), np.full(len(calls), np.nan)
        for op, by_ranks in self.curves.items():
            measured_ranks = np.array(sorted(by_ranks))
            nearest = measured_ranks[np.abs(np.log(ranks[:, None] / measured_ranks)).argmin(axis=1)]
            for count in measured_ranks:
                rows = (kinds == op) & (nearest == count)
                time[rows] = by_ranks[int(count)].time_us(size[rows])
        spread = SPREAD if self.gpu.name == self.measured.name else TRANSFERRED_SPREAD
        return Estimate.around(time, time, spread, np.zeros(len(calls)))

    def _kinds(self, d: Dims) -> npt.NDArray[np.object_]:
        """Operation with curves per row; "" where there is none."""
        names = pd.Series(d.text("op"), dtype=object).str.lower()
        kinds = np.full(len(names), "", dtype=object)
        for op in self.curves:
            kinds[names.str.contains(OPS[op]).to_numpy(dtype=bool)] = op
        return kinds


@lru_cache(maxsize=4)
def read_curves(path: Path) -> dict[str, Curves]:
    """Curves by GPU.

    Raises:
        PackError: the file is damaged or of another format.
    """
    return read_by_gpu(
        path,
        lambda by_op: {
            op: {int(n): BandwidthCurve.from_json(curve) for n, curve in by.items()} for op, by in by_op.items()
        },
    )


def collective_model(gpu: GpuSpec) -> CollectiveModel | None:
    """The shipped curves for a GPU with NVLink: its own, else those of the nearest link; None without NVLink or curves.

    Raises:
        PackError: the shipped file is damaged.
    """
    if not gpu.nvlink_gb_per_s or (path := shipped_file(SHARED, FILE)) is None:
        return None
    curves = read_curves(path)
    if gpu.name in curves:
        return CollectiveModel(gpu, load_gpu(gpu.name), curves[gpu.name])
    measured = min(
        map(load_gpu, curves),
        key=lambda spec: abs(np.log(link_gb_per_s(spec) / link_gb_per_s(gpu))),
    )
    return CollectiveModel(gpu, measured, curves[measured.name])
