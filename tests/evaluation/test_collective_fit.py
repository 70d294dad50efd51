"""Bandwidth curves of collectives: what a fit finds, which rows it reads, and sizes between the fitted ones."""

import numpy as np
import pandas as pd
import pytest

from evaluation.published import aiconfigurator
from evaluation.training.collective_fit import fit_curves, predicted_over_measured
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import collective_bandwidth as collectives
from pipeline.kernels.bandwidth import BandwidthCurve
from pipeline.kernels.collective_bandwidth import MeasuredCurves, collective_model


def drawn(curve, ops=("all_reduce", "all_gather"), ranks=(2, 8)):
    """Times that follow one curve exactly, at sizes from 1 KiB to 1 GiB."""
    rows = [{"op": op, "ranks": n, "bytes": 2**i} for op in ops for n in ranks for i in range(10, 31)]
    table = pd.DataFrame(rows)
    factor = np.where(table["op"] == "all_reduce", 2.0, 1.0) * (table["ranks"] - 1) / table["ranks"]
    return table.assign(kernel_us=curve.time_us((table["bytes"] * factor).to_numpy()))


def test_a_fit_finds_the_curve_behind_the_times():
    curve = BandwidthCurve(9.0, 330.0, 100.0, 20.0, 1.5)
    gpu = load_gpu("H200")
    samples = drawn(curve)
    model = collective_model(gpu, None, [MeasuredCurves(gpu, "nvswitch", fit_curves(samples, gpu))])
    assert np.abs(predicted_over_measured(model, samples) - 1.0).max() < 0.03
    found = model.sources["all_reduce"].curves[8]
    assert found.peak_gb_per_s == pytest.approx(330.0, rel=0.05)
    assert found.start_us == pytest.approx(9.0, rel=0.05)


def test_public_times_are_in_bytes_and_microseconds(tmp_path):
    path = aiconfigurator.table_path("H200", tmp_path, collectives=True)
    path.parent.mkdir(parents=True)
    pd.DataFrame(
        {"op_name": ["alltoall", "all_reduce"], "nccl_dtype": ["half", "int8"], "num_gpus": [2, 8],
         "message_size": [256, 512], "latency": [0.005, 0.016]}
    ).to_parquet(path)  # fmt: skip
    found = aiconfigurator.read_collectives("H200", tmp_path)
    assert found["op"].tolist() == ["all_to_all", "all_reduce"]
    assert found["bytes"].tolist() == [512, 512]
    assert found["kernel_us"].tolist() == pytest.approx([5.0, 16.0])


@pytest.mark.parametrize("gpu", sorted(aiconfigurator.COLLECTIVES))
def test_shipped_curves_predict_sizes_between_the_fitted_ones(gpu):
    if aiconfigurator.data_dir() is None:
        pytest.skip("aiconfigurator-core is not installed")
    samples, spec = aiconfigurator.read_collectives(gpu), load_gpu(gpu)
    between = samples["bytes"].isin(np.sort(samples["bytes"].unique())[1::2])
    fitted = fit_curves(samples[~between].reset_index(drop=True), spec)
    model = collective_model(spec, None, [MeasuredCurves(spec, "nvswitch", fitted)])
    unseen = samples[between].reset_index(drop=True)
    assert np.abs(predicted_over_measured(model, unseen) - 1.0).mean() < 0.12
    inside = np.abs(np.log(predicted_over_measured(model, unseen))) <= np.log(collectives.SPREAD)
    assert 0.75 <= inside.mean() <= 0.90
    shipped = np.abs(predicted_over_measured(collective_model(spec), samples) - 1.0).mean()
    assert shipped < 0.12
