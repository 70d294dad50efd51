"""Wave scaling of kernels with the same code on both GPUs (Yu et al., Habitat / Surfer, USENIX ATC 2021, section 3).

With B thread blocks, W blocks per wave, D memory bandwidth, C clock, on the origin o and the destination d:

    exact       T_d = ceil(B/W_d) (D_o W_d / (D_d W_o))^g (C_o/C_d)^(1-g) T_o / ceil(B/W_o)
    simplified  T_d = T_o (D_o/D_d)^g (W_o C_o / (W_d C_d))^(1-g), for many waves

The exponent g comes from the roofline on d. With arithmetic intensity x and ridge point R, g = 1 - x/(2R) below R and
R/(2x) above.

The published g depends on the destination, so a destination with more bandwidth can be predicted slower. More bandwidth
lowers the ridge point and g, which gives the clock ratio more weight. At fixed g the simplified form is monotone in D
and C.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.families import work_of
from pipeline.families.dims import Dims
from pipeline.hardware.occupancy import resident_blocks
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import sustained_dram_gb_per_s

UNKNOWN_INTENSITY = 0.25
"""FLOP per byte that are assumed for calls of unknown work.

The value is one operation per fp32 element read or written. Such calls are memory-bound."""


@dataclass(frozen=True)
class Launches:
    """Launch geometry of kernels, each of shape (rows,); NaN where unknown.

    Attributes:
        blocks: thread blocks of the grid.
        threads: threads per block.
        registers: registers per thread.
        shared_bytes: shared memory per block.
    """

    blocks: Array
    threads: Array
    registers: Array
    shared_bytes: Array

    @classmethod
    def of(cls, table: pd.DataFrame) -> Launches:
        """Read `grid_x.. block_x..` columns, or `grid` and `block` texts such as `[8,1,1]`; either may be absent."""
        column = Dims(table)

        def volume(name: str) -> Array:
            axes = np.stack([column(f"{name}_{axis}") for axis in "xyz"])
            size = np.where(np.isnan(axes[0]), np.nan, np.nanprod(axes, axis=0))
            return np.where(
                np.isnan(size), _text_volume(table[name]) if name in table else np.nan, size
            )

        blocks, threads = volume("grid"), volume("block")
        usable = (blocks >= 1) & (threads >= 1)
        blocks, threads = (np.where(usable, values, np.nan) for values in (blocks, threads))
        return cls(blocks, threads, column("registers"), column("shared_memory"))

    def resident(self, gpu: GpuSpec) -> Array:
        """Thread blocks that a GPU holds at once, shape (rows,); of 256 threads each where the geometry is unknown."""
        threads = np.where(np.isnan(self.threads), 256.0, self.threads)
        return gpu.sms * resident_blocks(gpu.sm_limits, threads, self.registers, self.shared_bytes)


def _text_volume(values: pd.Series) -> Array:
    """Product of the numbers in texts such as `[8, 1, 1]`; NaN where there are none."""
    sizes = {
        text: float(np.prod([float(n) for n in re.findall(r"\d+", text)] or [np.nan]))
        for text in set(values.dropna().astype(str))
    }
    return (
        values.astype(object).map(lambda text: sizes.get(str(text), np.nan)).to_numpy(dtype=float)
    )


def gamma(intensity: Array, gpu: GpuSpec) -> Array:
    """Degree to which memory limits a call: 1 for pure traffic, near 0 for pure arithmetic, 0.5 at the ridge."""
    ridge = gpu.peak_gflop_per_s() / sustained_dram_gb_per_s(gpu)
    x = np.asarray(intensity, dtype=float)
    return np.where(x < ridge, 1.0 - x / (2.0 * ridge), ridge / (2.0 * np.maximum(x, 1e-9)))


def intensity_of(calls: pd.DataFrame) -> Array:
    """FLOP per byte by family and dims, shape (rows,); `UNKNOWN_INTENSITY` where neither is known."""
    intensity = np.full(len(calls), UNKNOWN_INTENSITY)
    plain = calls.reset_index(drop=True)
    for family, part in plain.groupby("family", sort=False):
        work = work_of(str(family), part)
        ratio = work.flops / np.maximum(work.bytes, 1.0)
        intensity[part.index.to_numpy()] = np.where(np.isfinite(ratio), ratio, UNKNOWN_INTENSITY)
    return intensity


def scale(
    measured_us: Array,
    launches: Launches,
    origin: GpuSpec,
    destination: GpuSpec,
    g: Array | float,
    exact: Flags | bool = False,
) -> Array:
    """Times on `destination` of kernels measured on `origin`, µs, shape (rows,).

    Args:
        measured_us: kernel times on the origin.
        launches: launch geometry; where it is unknown, blocks of 256 threads are assumed.
        origin: GPU of the measurements.
        destination: GPU to predict.
        g: exponent of bandwidth; `gamma` on the destination is the published one.
        exact: count whole waves (the paper's first form); rows without geometry use the simplified form.
    """
    w_o, w_d = launches.resident(origin), launches.resident(destination)
    bandwidth = sustained_dram_gb_per_s(origin) / sustained_dram_gb_per_s(destination)
    clock = origin.clock_mhz / destination.clock_mhz
    simplified = bandwidth**g * (w_o * clock / w_d) ** (1.0 - g)
    whole = np.ceil(launches.blocks / w_d) / np.ceil(launches.blocks / w_o)
    ratio = whole * (bandwidth * w_d / w_o) ** g * clock ** (1.0 - g)
    return measured_us * np.where(exact & ~np.isnan(launches.blocks), ratio, simplified)
