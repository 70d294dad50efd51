"""The clock that a power limit leaves, and what a step then takes: physical rules of the power model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.power import SHARED, Load, PowerCurve, idle_w, pj_per_flop, product_clock
from pipeline.question.question import expand

V100 = load_gpu("V100")


def load(flop_per_us: float, bytes_per_us: float, clocked: float) -> Load:
    """One kernel of 1 ms."""
    us = np.array([1000.0])
    joules = flop_per_us * us * V100.generation.pj_per_flop * 1e-12
    return Load.of(us, joules, bytes_per_us * us, np.array([clocked]))


PRODUCTS, COPIES = load(12e6, 2e5, 1.0), load(0.0, 8e5, SHARED.moving)


@pytest.mark.parametrize("kernels", [PRODUCTS, COPIES], ids=["products", "copies"])
def test_less_power_is_never_faster_and_is_kept(kernels: Load) -> None:
    curve = PowerCurve.of(kernels, V100, 0.0)
    limits = np.arange(60.0, 260.0, 10.0)
    clocks = np.array([curve.clock(limit) for limit in limits])
    times = np.array([curve.at(clock)[0] for clock in clocks])
    assert (np.diff(clocks) >= 0).all() and (np.diff(times) <= 0).all()
    for limit, clock in zip(limits, clocks, strict=True):
        us, joules = curve.at(clock)
        assert clock == clocks.min() or joules / us * 1e6 <= 1.001 * limit


def test_products_slow_with_the_clock_and_copies_hardly() -> None:
    half = [PowerCurve.of(kernels, V100, 0.0).at(0.5)[0] for kernels in (PRODUCTS, COPIES)]
    assert half[0] == pytest.approx(2000.0, rel=0.01) and half[1] < 1100.0


def test_idle_time_leaves_a_higher_clock() -> None:
    busy, waiting = (PowerCurve.of(PRODUCTS, V100, idle_us) for idle_us in (0.0, 4000.0))
    assert waiting.clock(150.0) > busy.clock(150.0)
    assert busy.clock(150.0, most=0.3) == 0.3  # a locked clock below what the limit leaves


def test_large_products_on_tensor_cores_take_the_whole_limit() -> None:
    gpu = load_gpu("H100")
    clock = np.array([product_clock(gpu, "bf16")])
    rate = pj_per_flop(gpu, "bf16") * SHARED.squared_voltage(clock)
    watts = SHARED.board_w(gpu, clock) + rate * 765.0  # TFLOP/s of 8192-wide products at 700 W
    assert watts[0] == pytest.approx(SHARED.held * gpu.tdp_w, rel=0.01)
    assert idle_w(replace(gpu, idle_w=None)) == pytest.approx(134.0)


@pytest.mark.parametrize(
    "option, says",
    [
        ("gpu.power_limit_w=90", "gpu.power_limit_w=90: V100 takes 100 to 250"),
        ("gpu.power_limit_w=300", "V100 takes 100 to 250"),
        ("gpu.clock_mhz=2000", "gpu.clock_mhz=2000: V100 takes 165.6 to 1380"),
    ],
)
def test_what_the_card_does_not_take_is_refused(option: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        expand(["gpu=V100", "model=dlrm_small", option])
