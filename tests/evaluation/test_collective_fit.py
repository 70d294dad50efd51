"""Curves of collectives: what a fit finds, which rows it reads, sizes between the fitted ones, and GPUs left out."""

import numpy as np
import pandas as pd
import pytest

from evaluation.checks.collectives import between, gmae, inside, mape, ratios, samples_of
from evaluation.published import aiconfigurator, nccl_times
from evaluation.training import collective_fit
from evaluation.training.collective_fit import fit_curves, fitted_curves, predicted_over_measured
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import collective_bandwidth as collectives
from pipeline.kernels.collective_bandwidth import MeasuredCurves, collective_model, measured_curves

RANKS = (2, 8)


def of(size):
    """Times with a jump of protocol: 10 us and 50 GB/s up to 1 MiB, 30 us and 200 GB/s above."""
    return np.where(size <= 2**20, 10.0 + size / 50e3, 30.0 + size / 200e3)


def drawn(sizes):
    """Times of a rank's share of the buffer, without noise."""
    rows = [
        {"op": op, "ranks": n, "bytes": size}
        for op in ("all_reduce", "all_gather")
        for n in RANKS
        for size in sizes
    ]
    table = pd.DataFrame(rows)
    factor = np.where(table["op"] == "all_reduce", 2.0, 1.0) * (table["ranks"] - 1) / table["ranks"]
    return table.assign(kernel_us=of((table["bytes"] * factor).to_numpy()))


def test_a_fit_finds_the_curve_behind_the_times_and_never_falls():
    gpu, samples = load_gpu("H200"), drawn([2**i for i in range(10, 31)])
    curves = fit_curves(samples)
    model = collective_model(gpu, None, [MeasuredCurves(gpu, "nvswitch", curves)])
    ratio = predicted_over_measured(model, samples)
    assert np.abs(ratio - 1.0).mean() < 0.05
    for ranks in RANKS:
        curve = curves["all_reduce"][ranks]
        assert np.all(np.diff(curve.us) >= 0)
        assert curve.us[0] == pytest.approx(10.0, rel=0.05)
        slope = (curve.us[-1] - curve.us[-2]) / (curve.bytes[-1] - curve.bytes[-2])
        assert 1e-3 / slope == pytest.approx(200.0, rel=0.05)


def test_a_curve_without_small_sizes_starts_where_the_formula_says():
    curves = fit_curves(drawn([2**i for i in range(22, 31)]), {2: 8.0, 8: 20.0})
    assert curves["all_reduce"][8].bytes[0] == 0.0 and curves["all_reduce"][8].us[0] == 20.0
    assert curves["all_gather"][2].time_us(np.array([0.0])).tolist() == [8.0]


def test_public_times_are_in_bytes_and_microseconds(tmp_path):
    path = aiconfigurator.table_path("H200", tmp_path, collectives=True)
    path.parent.mkdir(parents=True)
    pd.DataFrame(
        {
            "op_name": ["alltoall", "all_reduce"],
            "nccl_dtype": ["half", "int8"],
            "num_gpus": [2, 8],
            "message_size": [256, 512],
            "latency": [0.005, 0.016],
        }
    ).to_parquet(path)
    found = aiconfigurator.read_collectives("H200", tmp_path)
    assert found["op"].tolist() == ["all_to_all", "all_reduce"]
    assert found["bytes"].tolist() == [512, 512]
    assert found["kernel_us"].tolist() == pytest.approx([5.0, 16.0])


GPUS = (*sorted(aiconfigurator.COLLECTIVES), "V100-SXM2-32GB")


@pytest.fixture(scope="module")
def fitted():
    """Curves of all rows, and of every second size."""
    if aiconfigurator.data_dir() is None or nccl_times.tables() is None:
        pytest.skip("aiconfigurator-core or the published times are not at hand")
    return fitted_curves(), fitted_curves(lambda samples: samples[~between(samples)])


@pytest.mark.parametrize("gpu", GPUS)
def test_curves_predict_sizes_between_the_fitted_ones(gpu, fitted):
    samples = samples_of(gpu)
    unseen = samples[between(samples)]
    ratio = ratios(gpu, unseen, fitted[1])
    assert gmae(ratio) < 3.0 and mape(ratio) < 6.0
    assert inside(ratio, collectives.SPREAD) >= 80.0


@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_left_out_is_predicted_from_others(gpu, fitted):
    ratio = ratios(gpu, samples_of(gpu), [entry for entry in fitted[0] if entry.gpu.name != gpu])
    assert mape(ratio) < 25.0


def test_shipped_curves_are_those_of_the_fit(fitted):
    shipped = {
        (entry.gpu.name, entry.fabric, op): by
        for entry in measured_curves()
        for op, by in entry.curves.items()
    }
    made = {
        (entry.gpu.name, entry.fabric, op): by
        for entry in fitted[0]
        for op, by in entry.curves.items()
    }
    assert shipped.keys() == made.keys()
    for key, by_ranks in made.items():
        for ranks, curve in by_ranks.items():
            assert shipped[key][ranks].us == pytest.approx(curve.us, rel=1e-3), (key, ranks)


def test_without_the_tables_beside_the_package_shipped_curves_stay(monkeypatch):
    if aiconfigurator.data_dir() is None:
        pytest.skip("aiconfigurator-core is not installed")
    monkeypatch.setattr(collective_fit, "tables", lambda: None)
    made = {(entry.gpu.name, entry.fabric, op) for entry in fitted_curves() for op in entry.curves}
    assert {
        (entry.gpu.name, entry.fabric, op) for entry in measured_curves() for op in entry.curves
    } == made
