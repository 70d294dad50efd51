"""Curves of collectives: what a fit finds, which rows it reads, sizes between the fitted ones, and GPUs left out."""

import numpy as np
import pandas as pd
import pytest

from evaluation.checks.collectives import between, gmae, inside, mape, ratios, samples_of
from evaluation.published import aiconfigurator, nccl_times
from evaluation.training.collective_fit import fit_curves, fitted_curves, predicted_over_measured
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import collective_bandwidth as collectives
from pipeline.kernels.collective_bandwidth import MeasuredCurves, collective_model, measured_curves


def of(size):
    """Times with a jump of protocol: 10 us and 50 GB/s up to 1 MiB, 30 us and 200 GB/s above."""
    return np.where(size <= 2**20, 10.0 + size / 50e3, 30.0 + size / 200e3)


def drawn(sizes):
    """Times of a rank's share of the buffer, without noise."""
    axes = {"op": ["all_reduce", "all_gather"], "ranks": (2, 8), "bytes": sizes}
    table = pd.MultiIndex.from_product(axes.values(), names=list(axes)).to_frame(index=False)
    factor = np.where(table["op"] == "all_reduce", 2.0, 1.0) * (table["ranks"] - 1) / table["ranks"]
    return table.assign(kernel_us=of((table["bytes"] * factor).to_numpy()))


def test_a_fit_finds_the_curve_behind_the_times_and_never_falls():
    gpu, samples = load_gpu("H200"), drawn([2**i for i in range(10, 31)])
    curves = fit_curves(samples)
    model = collective_model(gpu, None, [MeasuredCurves(gpu, "nvswitch", curves)])
    assert np.abs(predicted_over_measured(model, samples) - 1.0).mean() < 0.05
    for curve in curves["all_reduce"].values():
        us = np.diff(curve.us)
        assert np.all(us >= 0) and curve.us[0] == pytest.approx(10.0, rel=0.05)
        assert np.diff(curve.bytes)[-1] / us[-1] == pytest.approx(200e3, rel=0.05)


def test_public_times_are_in_bytes_and_microseconds(tmp_path):
    path = aiconfigurator.table_path("H200", tmp_path, collectives=True)
    path.parent.mkdir(parents=True)
    rows = [("alltoall", "half", 2, 256, 0.005), ("all_reduce", "int8", 8, 512, 0.016)]
    columns = ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"]
    pd.DataFrame(rows, columns=columns).to_parquet(path)
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
    shipped, made = (
        {
            (entry.gpu.name, entry.fabric, op, ranks): list(curve.us)
            for entry in entries
            for op, by_ranks in entry.curves.items()
            for ranks, curve in by_ranks.items()
        }
        for entries in (measured_curves(), fitted[0])
    )
    assert shipped.keys() == made.keys()
    for key, times in made.items():
        assert shipped[key] == pytest.approx(times, rel=1e-3), key
