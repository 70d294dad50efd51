"""Wave scaling: the formulas by hand, identity on the same GPU, monotone in bandwidth and clock at fixed gamma."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.transfer import wave_scaling as wave
from pipeline.transfer.scaling_methods import by_bound

NAMES = [spec.name for spec in list_gpus()]


def _launches(blocks: float, threads: float) -> wave.Launches:
    blank = np.array([np.nan])
    return wave.Launches(np.array([blocks]), np.array([threads]), blank, blank)


@given(
    pair=st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)),
    blocks=st.integers(1, 100_000),
    gamma=st.floats(0, 1),
    faster=st.floats(1.0, 4.0),
    what=st.sampled_from(["dram_gb_per_s", "boost_clock_mhz"]),
    exact=st.booleans(),
)
def test_more_bandwidth_or_clock_is_never_slower_at_fixed_gamma(
    pair: tuple[str, str], blocks: int, gamma: float, faster: float, what: str, exact: bool
) -> None:
    origin, destination = (load_gpu(name) for name in pair)
    destination = replace(destination, measured_dram_gb_per_s=None)
    better = replace(destination, **{what: getattr(destination, what) * faster})
    times, launches = np.array([50.0]), _launches(blocks, 256)
    base = wave.scale(times, launches, origin, destination, gamma, exact=exact)
    assert wave.scale(times, launches, origin, better, gamma, exact=exact)[0] <= base[0] * (
        1 + 1e-12
    )


def test_the_exact_form_counts_whole_waves() -> None:
    origin, destination = load_gpu("V100"), load_gpu("T4")
    # 256 threads: V100 holds 80 x 8 = 640 blocks, T4 40 x 4 = 160; 641 blocks are 2 waves there and 5 here
    found = wave.scale(np.array([10.0]), _launches(641, 256), origin, destination, 0.0, exact=True)
    assert found[0] == pytest.approx(10.0 / 2 * 5 * 1380 / 1590)


def test_gamma_falls_from_pure_traffic_evenly_to_half_at_the_ridge_and_then_with_its_inverse() -> (
    None
):
    gpu = load_gpu("V100")
    ridge = gpu.peak_gflop_per_s() / 817
    intensity = np.array([1e-9 / ridge, 0.25, 0.5, 0.999, 1.0, 4.0]) * ridge
    expected = [1.0, 0.875, 0.75, 0.5005, 0.5, 0.125]
    assert wave.gamma(intensity, gpu) == pytest.approx(expected)


def test_geometry_is_read_from_columns_and_from_texts() -> None:
    axes = {f"grid_{axis}": [4] for axis in "xyz"} | {f"block_{axis}": [2] for axis in "xyz"}
    texts = pd.DataFrame({"grid": ["[4, 4, 4]", None], "block": ["[2,2,2]", "[1,1,1]"]})
    read = wave.Launches.of(texts)
    for launches in (wave.Launches.of(pd.DataFrame(axes)), read):
        assert launches.blocks[0] == 64 and launches.threads[0] == 8
    assert np.isnan(read.blocks[1])


@pytest.mark.parametrize(
    ("exact", "gamma", "expected"),
    [
        (
            False,
            0.25,
            16**0.25 * (2 * 2) ** 0.75,
        ),  # traffic at a sixteenth of the bandwidth, arithmetic at a fourth of the rate
        (False, 1.0, 16.0),
        (False, 0.0, 4.0),
        (True, 0.25, 2 * (16 / 2) ** 0.25 * 2**0.75),  # two waves, each of half the blocks
    ],
)
def test_bandwidth_counts_by_the_exponent_and_waves_and_clock_by_its_rest(
    exact: bool, gamma: float, expected: float
) -> None:
    origin = load_gpu("V100")
    slow = replace(origin, sms=40, boost_clock_mhz=690, measured_dram_gb_per_s=817 / 16)
    found = wave.scale(np.array([10.0]), _launches(640, 256), origin, slow, gamma, exact=exact)
    assert found[0] == pytest.approx(10.0 * expected)


def test_a_traced_kernel_moves_by_what_bounds_it_on_both_gpus() -> None:
    def gpu(gflop_per_s: float, gb_per_s: float) -> GpuSpec:
        peaks = {"measured_fp32_gflop_per_s": gflop_per_s, "measured_dram_gb_per_s": gb_per_s}
        return replace(load_gpu("V100"), name=str(gb_per_s), **peaks)

    origin, other = gpu(16e3, 800), gpu(8e3, 1600)  # ridges at 20 and at 5
    calls = pd.DataFrame({"intensity": [100.0, 2.0, 10.0, *[np.nan] * 3], "latency_us": 100.0})
    grids = ["[64,1,1]"] * 3 + ["[4096,1,1]", None, "[1,1,1]"]
    moved = by_bound(calls.assign(grid=grids, block="[256,1,1]"), origin, other)
    # arithmetic takes twice as long, traffic half; 10 FLOP per byte change sides; one block cannot use more bandwidth
    assert list(moved["predicted_us"]) == pytest.approx([200, 50, 100, 50, 50, 100])
    width = (moved["p90_us"] / moved["p10_us"]).round(6)
    assert width[2] > width[0] == width[1] == width[3] == width[5]
    cores = replace(other, fp16_gflop_per_s=4 * origin.fp16_gflop_per_s)
    half = by_bound(calls.assign(dtype="fp16", intensity=1e4), origin, cores)
    assert half["predicted_us"][0] == pytest.approx(25), "by the peak of its dtype"
