"""Physical formulas: every family gives a time, and the times order as they should."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.families import FAMILIES
from pipeline.families.chip import BandwidthCurve
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.latency_floor import fit_curve, memory_curve
from pipeline.kernels.physics import Physics

DIMS = {
    "B": 256, "M": 256, "N": 256, "K": 256, "H": 256, "in_channels": 64, "out_channels": 64,
    "kernel_size": 3, "input_size": 28, "stride": 1, "padding": 1, "E": 10_000, "T": 4, "L": 10,
    "D": 64, "C": 64, "HW": 784, "F": 27, "I": 256, "layers": 1, "bytes": 1 << 20, "tensors": 2,
    "ranks": 4,
}  # fmt: skip


def call(name, phase="forward", dtype="fp32", **values):
    entry = FAMILIES[name]
    op = entry.ops[0] if entry.ops else "other"
    own = {dim: DIMS[dim] for dim in entry.dims if dim in DIMS}
    return pd.DataFrame(
        [{"family": name, "op": op, "phase": phase, "dtype": dtype, **own, **values}]
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_time(name, v100):
    found = load_predictor(v100).predict(call(name)).iloc[0]
    assert found.modelled
    assert 1.0 <= found.kernel_us < 1e5
    assert found.p10_us <= found.kernel_us <= found.p90_us
    assert found.predicted_us >= found.kernel_us


@pytest.mark.parametrize("name", FAMILIES)
def test_a_gpu_with_twice_of_everything_is_never_slower(name, v100):
    from dataclasses import replace

    double = replace(
        v100,
        sms=160,
        measured_fp32_gflop_per_s=2 * v100.peak_gflop_per_s(),
        l2_bytes=2 * v100.l2_bytes,
        measured_dram_gb_per_s=2 * v100.peak_dram_gb_per_s(),
        measured_l2_gb_per_s=2 * v100.peak_l2_gb_per_s(),
        pcie_gb_per_s=2 * v100.pcie_gb_per_s,
    )
    slow, fast = (Physics.of(gpu).kernel_us(name, call(name))[0] for gpu in (v100, double))
    assert fast <= slow * 1.0001


def test_one_tile_more_than_the_sms_costs_a_whole_wave(v100):
    full = call("bmm", B=80, M=64, N=4096, K=64)
    over = call("bmm", B=81, M=64, N=4096, K=64)
    physics = Physics.of(v100)
    # the full wave is bound by memory, the second wave by compute: less than twice
    assert physics.kernel_us("bmm", over)[0] > 1.6 * physics.kernel_us("bmm", full)[0]


@pytest.mark.parametrize(
    ("gpu", "size", "measured_us"),
    [("V100", 19267584, 1732.5), ("A100-SXM4-40GB", 1228800, 110.0), ("H100", 38535168, 3461.4)],
)
def test_pageable_copies_are_as_fast_on_every_link(gpu, size, measured_us):
    """Batches in public traces (PCIe 3 to 5): the CPU copies them at 11 GB/s."""
    assert copy_us(load_gpu(gpu), "pageable", size) == pytest.approx(measured_us, rel=0.05)


def test_a_pageable_copy_is_never_faster_than_a_pinned_one(v100):
    from dataclasses import replace

    slow = replace(v100, pcie_gb_per_s=2.0)
    assert (
        copy_us(slow, "pageable", 1e9)
        == copy_us(slow, "pinned", 1e9)
        == pytest.approx(5e5, rel=0.01)
    )


def copy_us(gpu, op, size):
    return Physics.of(gpu).kernel_us("memcpy_h2d", call("memcpy_h2d", op=op, bytes=size))[0]


@pytest.mark.parametrize(
    ("gpu", "op", "dtype", "elements", "measured_us"),
    [
        ("A100-SXM4-80GB", "sum_all", "fp32", 4096, 5.16),
        ("A100-SXM4-40GB", "sum_all", "fp32", 262144, 9.44),
        ("A100-SXM4-40GB", "sum_all", "fp32", 32768, 8.94),
        ("H100", "all_all", "bool", 141, 3.65),
    ],
)
def test_a_sum_of_all_elements_waits_for_its_blocks_where_it_needs_several(
    gpu, op, dtype, elements, measured_us
):
    calls = call("reduction", op=op, dtype=dtype, B=1, H=elements)
    assert Physics.of(load_gpu(gpu)).kernel_us("reduction", calls)[0] == pytest.approx(
        measured_us, rel=0.12
    )


def test_a_collective_on_one_rank_stays_on_the_device(v100):
    alone = Physics.of(v100).kernel_us("collective", call("collective", ranks=1))[0]
    four = Physics.of(v100).kernel_us("collective", call("collective", ranks=4))[0]
    assert alone < four


def test_a_call_that_nothing_describes_is_counted_not_zero(v100):
    unknown = pd.DataFrame([{"family": "mystery", "op": "x", "phase": "forward", "dtype": "fp32"}])
    found = load_predictor(v100).predict(unknown).iloc[0]
    assert not found.modelled
    assert found.kernel_us == 2.0, "what a kernel takes to start"


def test_a_curve_is_found_again_in_its_own_points():
    curve = BandwidthCurve(2.0, 800.0, 600.0, 22.0, 1.5)
    size = np.geomspace(1e6, 1e9, 200)
    found = fit_curve(size, 14.0 + curve.time_us(size), 2.0, 700.0, offset=True)
    assert found.curve.peak_gb_per_s == pytest.approx(800.0, rel=0.03)
    assert found.offset_us == pytest.approx(14.0, abs=3.0)


@given(st.floats(1, 1e12), st.floats(1.01, 100))
def test_more_bytes_never_take_less_time(size, factor):
    curve = BandwidthCurve(2.0, 800.0, 520.0, 22.0, 1.5)
    first, second = curve.time_us(np.array([size, size * factor]))
    assert second >= first


def test_every_known_gpu_predicts_a_product():
    from pipeline.hardware.find_gpu import list_gpus

    work = call("gemm").iloc[0]
    gflop = 2 * work["B"] * work["M"] * work["N"] * work["K"] / 1e9
    for gpu in list_gpus():
        reached = gflop / (Physics.of(gpu).kernel_us("gemm", call("gemm"))[0] / 1e6)
        # large caches and little bandwidth (L4, RTX6000Ada) leave 40 % of the peak to these 256 small products
        assert 0.33 < reached / gpu.peak_gflop_per_s() <= 1.0, gpu.name


def test_samples_in_the_cache_do_not_change_the_curve_of_device_memory():
    """Kernels of an H100: they start in 1 us and move 3,000 GB/s, and three times as much from the cache of 50 MB."""
    width = np.geomspace(16, 64e6, 80).round()
    size = 2 * 4 * width
    cached = (size > 1e5) & (size < 50e6)
    kernel_us = 1.0 + size / np.where(cached, 9000.0, 3000.0) / 1e3
    samples = pd.DataFrame(
        {
            "family": "elementwise",
            "op": "relu",
            "dtype": "fp32",
            "B": 1.0,
            "H": width,
            "latency_us": kernel_us + 30.0,
            "kernel_us": kernel_us,
        }
    )
    curve = memory_curve(samples, load_gpu("H100")).curve
    assert curve.start_us == pytest.approx(1.0, rel=0.05) and curve.peak_gb_per_s == pytest.approx(
        3000, rel=0.05
    )
