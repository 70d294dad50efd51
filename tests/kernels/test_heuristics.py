"""Physical formulas: every family gives a time, and the times order as they should."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.families import FAMILIES
from pipeline.families.chip import BandwidthCurve
from pipeline.hardware.find_gpu import list_gpus, load_gpu
from pipeline.kernels.latency_floor import fit_curve
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
    full, over = (
        Physics.of(v100).kernel_us("bmm", call("bmm", B=batch, M=64, N=4096, K=64))[0]
        for batch in (80, 81)
    )
    assert over > 1.6 * full, "the first is bound by memory, the second by compute: less than twice"


@pytest.mark.parametrize(
    ("gpu", "size", "measured_us"),
    [("V100", 19267584, 1732.5), ("A100-SXM4-40GB", 1228800, 110.0), ("H100", 38535168, 3461.4)],
)
def test_pageable_copies_are_as_fast_on_every_link(gpu, size, measured_us):
    """Batches in public traces (PCIe 3 to 5): the CPU copies them at 11 GB/s."""
    assert copy_us(load_gpu(gpu), "pageable", size) == pytest.approx(measured_us, rel=0.05)


def test_a_pageable_copy_is_never_faster_than_a_pinned_one(v100):
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


def test_a_call_that_nothing_describes_is_counted_not_zero(v100):
    unknown = pd.DataFrame([{"family": "mystery", "op": "x", "phase": "forward", "dtype": "fp32"}])
    found = load_predictor(v100).predict(unknown).iloc[0]
    assert not found.modelled
    assert found.kernel_us == 2.0, "what a kernel takes to start"


def test_a_curve_is_found_again_in_its_own_points():
    curve = BandwidthCurve(2.0, 800.0, 600.0, 22.0, 1.5)
    size = np.geomspace(1e6, 1e9, 200)
    assert (np.diff(curve.time_us(np.geomspace(1, 1e12, 1000))) >= 0).all()
    found = fit_curve(size, 14.0 + curve.time_us(size), 2.0, 700.0, offset=True)
    assert found.curve.peak_gb_per_s == pytest.approx(800.0, rel=0.03)
    assert found.offset_us == pytest.approx(14.0, abs=3.0)


def test_every_known_gpu_predicts_a_product():
    work = call("gemm").iloc[0]
    gflop = 2 * work["B"] * work["M"] * work["N"] * work["K"] / 1e9
    for gpu in list_gpus():
        reached = gflop / (Physics.of(gpu).kernel_us("gemm", call("gemm"))[0] / 1e6)
        # large caches and little bandwidth (L4, RTX6000Ada) leave 40 % of the peak to these 256 small products
        assert 0.33 < reached / gpu.peak_gflop_per_s() <= 1.0, gpu.name
