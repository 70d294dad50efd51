"""Probes: which calls to measure, and how their measurements reach a prediction through the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_commands import predict_command
from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.probes import (
    calibrate,
    calibrate_all,
    choose_probes,
)
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.transfer_command import transfer_command

pytestmark = pytest.mark.skipif(
    not load_models(), reason="no cross-GPU models under packs/transfer"
)


def _products(rows: int = 60) -> pd.DataFrame:
    size = np.exp(np.random.default_rng(1).uniform(np.log(256), np.log(8192), (rows, 3))).round()
    return pd.DataFrame(size, columns=list("MNK")).assign(op="linear", family="gemm", B=1.0)


def _measured(calls: pd.DataFrame, gpu: str, factor: float | np.ndarray) -> pd.DataFrame:
    """What a GPU would measure if the model were right but for a factor on everything above the floor."""
    _, latency = load_models()["gemm"].kernel_and_latency(calls, load_gpu(gpu))
    return calls.assign(latency_us=latency * factor)


def _error(predicted: pd.Series, truth: pd.Series) -> float:
    return float(np.median(np.abs(predicted.to_numpy() / truth.to_numpy() - 1.0)))


def test_probes_change_the_whole_path_of_kernels_predict_and_of_transfer(tmp_path: Path) -> None:
    calls, gpu = _products(), load_gpu("L4")
    slow = _measured(calls, "L4", 1.5)
    source, origin, probes, out = (
        tmp_path / f"{name}.parquet" for name in ("in", "t4", "p", "out")
    )
    chosen = choose_probes(load_models()["gemm"], slow, gpu, 10)
    assert len(chosen) == 10 and not chosen.index.duplicated().any()
    assert list(choose_probes(load_models()["gemm"], calls, gpu, 10).index) == list(chosen.index)
    for table, path in ((calls, source), (_measured(calls, "T4", 1.0), origin), (chosen, probes)):
        table.drop(columns="family").to_parquet(path)

    def found() -> tuple[pd.DataFrame, float]:
        table = pd.read_parquet(out)
        return table, _error(table["predicted_us"], slow["latency_us"])

    predict_command("L4", None, source, out)
    assert found()[1] > 0.3
    predict_command("L4", None, source, out, probes)
    table, error = found()
    assert error < 0.1 and set(table["evidence"]) == {"transferred"}
    assert (np.diff(table[["p10_us", "predicted_us", "p90_us"]].to_numpy()) >= 0).all()
    facts = transfer_command("T4", "L4", "auto", origin, out, probes)
    assert facts["methods"] == {"utilisation+probes": 1.0} and found()[1] < 0.1


def test_the_smooth_part_of_a_calibration_is_not_lost() -> None:
    """Wrong by a factor that no change of throughput, bandwidth or floor makes: it depends on the outputs."""
    calls, gpu, model = _products(120), load_gpu("L4"), load_models()["gemm"]
    skewed = _measured(calls, "L4", np.where(calls["K"] > 1500, 1.4, 0.9))
    found = calibrate(model, choose_probes(model, skewed, gpu, 10), gpu)
    _, factors_alone = model.kernel_and_latency(skewed, gpu, correction=found.correction)
    _, both, _ = found.predict(skewed)
    errors = [np.mean(np.abs(us / skewed["latency_us"] - 1)) for us in (both, factors_alone)]
    assert errors[0] < 0.75 * errors[1]


def test_a_disturbed_probe_weighs_little_and_intervals_narrow_near_probes() -> None:
    calls, gpu, model = _products(120), load_gpu("L4"), load_models()["gemm"]
    probes = choose_probes(model, _measured(calls, "L4", 1.3), gpu, 10)
    disturbed = probes.copy()
    disturbed.iloc[4, disturbed.columns.get_loc("latency_us")] *= 6.0
    clean, found = (calibrate(model, table, gpu) for table in (probes, disturbed))
    assert np.median(np.abs(found.predict(calls)[1] / clean.predict(calls)[1] - 1)) < 0.1
    near, far = clean.predict(probes)[2], clean.predict(probes.assign(M=1.0, N=65536.0))[2]
    assert near.mean() < far.mean()


def test_families_without_probes_stay_as_they_are() -> None:
    measured = _measured(_products(10), "L4", 1.3)
    assert set(calibrate_all(load_models(), measured, load_gpu("L4"))) == {"gemm"}
