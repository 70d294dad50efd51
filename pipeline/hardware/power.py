"""Power of a GPU by what its kernels do and at which clock, and the clock that a power limit leaves.

At a share x of the boost clock, a kernel that takes t at the full clock, computes F FLOPs and moves B bytes has

    v(x) = max(least_voltage, 1 - voltage_slope (1 - x))                           voltage over the full one
    t(x) = t ||m, c / x|| / ||m, c||                                               norm of order `sharpness`
    P(x) = idle (1 - falls (1 - x v^2)) + busy W x v^2 + v^2 e_F F / t(x) + e_B B / t(x)

m is the share of the memory bandwidth that it uses. c says how much it depends on the clock: 1 for arithmetic, `moving` for what
only moves data, 0 for copies over PCIe and collectives. W is the design power, e_F and e_B are energies of the GPU's generation.

The board keeps the mean power of a step, of order `mean`, at `held` of its limit, with one clock for all kernels: it takes tens of
milliseconds to change. docs/energy.md says where the constants come from, and how far off answers are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.arrays import Array
from pipeline.hardware.spec import LEAST_CLOCK, GpuSpec
from pipeline.hardware.sustained import (
    peak_gflop_per_s,
    sustained_dram_gb_per_s,
    sustained_gflop_per_s,
)


@dataclass(frozen=True)
class PowerConstants:
    """What all GPUs share (docs/energy.md)."""

    busy: float = 0.21
    """Power of a busy chip at its full clock besides arithmetic and traffic, over the design power of the board."""
    voltage_slope: float = 1.08
    least_voltage: float = 0.78
    moving: float = 0.35
    """Share of the full clock down to which kernels that only move data keep their time."""
    falls: float = 0.35
    """Share of the idle power that falls with clock and voltage: listings show a third to a half gone when the clocks rest."""
    held: float = 0.95
    mean: float = 4.0
    sharpness: float = 8.0
    pj_per_flop: float | None = None
    pj_per_byte: float | None = None
    """Energies of fp32 arithmetic and of traffic in place of those of the GPU's generation, for fits."""

    def squared_voltage(self, clock: Array) -> Array:
        """The square of the voltage over the full one at shares of the boost clock."""
        return np.maximum(self.least_voltage, 1.0 - self.voltage_slope * (1.0 - clock)) ** 2

    def board_w(self, gpu: GpuSpec, clock: Array) -> Array:
        """Power of a busy board besides arithmetic and traffic, W, at shares of the boost clock."""
        rest = clock * self.squared_voltage(clock)
        return idle_w(gpu) * (1.0 - self.falls * (1.0 - rest)) + self.busy * gpu.tdp_w * rest

    def fp32_pj(self, gpu: GpuSpec) -> float:
        """Energy of an fp32 operation at the full voltage, pJ."""
        return self.pj_per_flop or gpu.generation.pj_per_flop

    def slowed(self, moving: Array, clocked: Array, clock: Array | float) -> Array:
        """Times at a share of the boost clock over those at the full one, by broadcasting."""
        n = self.sharpness
        full = moving**n + clocked**n
        return ((moving**n + (clocked / clock) ** n) / full) ** (1 / n)


SHARED = PowerConstants()

CLOCKS = np.linspace(1.0, LEAST_CLOCK, 89)
"""Shares of the boost clock that are tried, descending, shape (clocks,)."""

IDLE_W, IDLE_SHARE = 15.0, 0.17
"""Idle power of a board whose file does not state it: W, and a share of its design power. Ten boards lie within 40 % of that."""


NODE_SHARE = 0.5
"""Power of CPUs, memory, NICs and fans for each GPU of a machine, over the GPU's design power. With all GPUs near full use a node
of 8 H100 took 8.4 kW at most (Latif et al., IEEE Access 13, 2025): 2.8 kW beside the 5.6 kW of the GPUs."""


def idle_w(gpu: GpuSpec) -> float:
    """Board power with the clocks up and next to no work, W."""
    return gpu.idle_w or IDLE_W + IDLE_SHARE * gpu.tdp_w


def product_clock(gpu: GpuSpec, dtype: str) -> float:
    """The share of the boost clock that predicted times of large tensor-core products mean: that of the default power limit."""
    peak = peak_gflop_per_s(gpu, dtype)
    if peak is None:
        return 1.0
    return float(sustained_gflop_per_s(gpu, dtype) / (gpu.generation.tensor_share * peak))


def pj_per_flop(gpu: GpuSpec, dtype: str, constants: PowerConstants = SHARED) -> float:
    """Energy of an operation on tensor cores at the full voltage, pJ: what large products leave of the default power limit.

    Where products of a board do not reach its limit, this is more than the truth.
    """
    clock = np.array(product_clock(gpu, dtype))
    left_w = constants.held * gpu.tdp_w - constants.board_w(gpu, clock)
    rate = sustained_gflop_per_s(gpu, dtype) * constants.squared_voltage(clock)
    return float(1e3 * left_w / rate)


@dataclass(frozen=True)
class Load:
    """Kernels of a step, in groups of like intensity, each of shape (groups,). Times are µs at the full clock."""

    us: Array
    joules: Array
    """Of the arithmetic, at the full voltage."""
    bytes: Array
    clocked: Array
    """How much a group depends on the clock (c)."""

    @classmethod
    def of(cls, us: Array, joules: Array, moved: Array, clocked: Array) -> Load:
        """From kernels: those whose arithmetic and traffic per time lie in one half octave become a group, with all sums kept."""
        rates = np.stack([joules / us * 1e6, moved / us * 1e6], axis=1)
        octaves = np.where(
            rates > (1.0, 1e9), np.round(2 * np.log2(np.maximum(rates, 1e-9))), -99.0
        )
        kinds, group = np.unique(np.column_stack([octaves, clocked]), axis=0, return_inverse=True)

        def total(values: Array) -> Array:
            return np.bincount(group.ravel(), values, len(kinds)).astype(float)

        return cls(total(us), total(joules), total(moved), kinds[:, 2])


def moving_share(gpu: GpuSpec, us: Array, moved: Array) -> Array:
    """Share of the memory bandwidth that kernels use: bytes over time, at least 0.02."""
    return np.clip(moved / (1e3 * sustained_dram_gb_per_s(gpu)) / us, 0.02, 1.0)


@dataclass(frozen=True)
class PowerCurve:
    """A step at every clock of `CLOCKS`: time of its kernels in µs, their joules, and the mean power that the board keeps.

    Each is of shape (clocks,).
    """

    us: Array
    joules: Array
    kept_w: Array
    held: float

    @classmethod
    def of(
        cls, load: Load, gpu: GpuSpec, idle_us: float, constants: PowerConstants = SHARED
    ) -> PowerCurve:
        """From the kernels of a step and the time in which none runs."""
        moving = moving_share(gpu, load.us, load.bytes)[:, None]
        us = load.us[:, None] * constants.slowed(moving, load.clocked[:, None], CLOCKS)
        gb_per_s = np.minimum(load.bytes[:, None] / us / 1e3, sustained_dram_gb_per_s(gpu))
        watts = (
            constants.board_w(gpu, CLOCKS)
            + constants.squared_voltage(CLOCKS) * load.joules[:, None] / us * 1e6
            + 1e-3 * (constants.pj_per_byte or gpu.generation.pj_per_byte) * gb_per_s
        )
        total, order = us.sum(axis=0), constants.mean
        powers = (us * watts**order).sum(axis=0) + idle_us * idle_w(gpu) ** order
        kept = (powers / (total + idle_us)) ** (1 / order)
        return cls(total, 1e-6 * (us * watts).sum(axis=0), kept, constants.held)

    def clock(self, limit_w: float, most: float = 1.0) -> float:
        """The largest share of the boost clock, up to `most`, at which the board stays under a power limit."""
        kept_w = self.held * limit_w
        if self.kept_w[0] <= kept_w:
            return most
        return min(most, float(np.interp(-kept_w, -self.kept_w, CLOCKS)))

    def at(self, clock: float) -> tuple[float, float]:
        """Kernel time in µs and joules at a share of the boost clock."""
        us, joules = (float(np.interp(-clock, -CLOCKS, of)) for of in (self.us, self.joules))
        return us, joules
