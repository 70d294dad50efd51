"""Probes: which calls to measure, and how their measurements reach a prediction through the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.hardware.spec import load_gpu
from pipeline.kernels.commands import predict_command
from pipeline.transfer.commands import transfer_command
from pipeline.transfer.kernels import load_models
from pipeline.transfer.probes import FIELDS, _kernel, calibrate, calibrate_all, design, sizes

pytestmark = pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")


def _products(rows: int = 60, seed: int = 1) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = np.exp(random.uniform(np.log(256), np.log(8192), (rows, 3))).round()
    return pd.DataFrame({"op": "linear", "family": "gemm", "B": 1.0, **dict(zip("MNK", size.T, strict=True))})


def _measured(calls: pd.DataFrame, gpu: str, factor: float) -> pd.DataFrame:
    """What a GPU would measure if the model were right but for a factor on everything above the floor."""
    _, latency = load_models()["gemm"].kernel_and_latency(calls, load_gpu(gpu))
    return calls.assign(latency_us=latency * factor)


def _error(predicted: pd.Series, truth: pd.Series) -> float:
    return float(np.median(np.abs(predicted.to_numpy() / truth.to_numpy() - 1.0)))


def test_a_design_spreads_over_sizes_and_needs_no_measurement() -> None:
    calls = _products(300)
    chosen = design("gemm", calls, 10)
    assert len(chosen) == 10 and not chosen.index.duplicated().any()
    at, all_at = sizes("gemm", chosen), sizes("gemm", calls)
    assert (np.ptp(at, axis=0) > 0.6 * np.ptp(all_at, axis=0)).all()
    random = np.random.default_rng(0)
    by_chance = [_left(calls.iloc[random.choice(300, 10, replace=False)], calls) for _ in range(30)]
    assert _left(chosen, calls) < min(by_chance)


def _left(probes: pd.DataFrame, calls: pd.DataFrame) -> float:
    """Variance of the errors that is left after the probes are measured, mean over the calls, under the prior."""
    at, all_at = sizes("gemm", probes), sizes("gemm", calls)
    across = _kernel("gemm", all_at, at)
    known = _kernel("gemm", at, at) + FIELDS["gemm"].noise ** 2 * np.eye(len(at))
    return float(np.mean(FIELDS["gemm"].spread ** 2 - (across * np.linalg.solve(known, across.T).T).sum(axis=1)))


def test_probes_change_the_whole_path_of_kernels_predict(tmp_path: Path) -> None:
    calls = _products()
    slow = _measured(calls, "L4", 1.5)
    source, probes, out = (tmp_path / f"{name}.parquet" for name in ("in", "probes", "out"))
    calls.drop(columns="family").to_parquet(source)
    design("gemm", slow, 10).drop(columns="family").to_parquet(probes)
    predict_command("L4", None, source, out)
    before = _error(pd.read_parquet(out)["predicted_us"], slow["latency_us"])
    predict_command("L4", None, source, out, probes)
    found = pd.read_parquet(out)
    assert before > 0.3 > 0.1 > _error(found["predicted_us"], slow["latency_us"])
    assert (found["evidence"] == "transferred").all()
    assert ((found["p10_us"] <= found["predicted_us"]) & (found["predicted_us"] <= found["p90_us"])).all()


def test_probes_change_the_whole_path_of_transfer(tmp_path: Path) -> None:
    calls = _products()
    slow, origin = _measured(calls, "L4", 1.5), _measured(calls, "T4", 1.0)
    source, probes, out = (tmp_path / f"{name}.parquet" for name in ("in", "probes", "out"))
    origin.drop(columns="family").to_parquet(source)
    design("gemm", slow, 10).drop(columns="family").to_parquet(probes)
    facts = transfer_command("T4", "L4", "auto", source, out, probes)
    assert facts["methods"] == {"utilisation+probes": 1.0}
    assert _error(pd.read_parquet(out)["predicted_us"], slow["latency_us"]) < 0.1


def test_the_smooth_part_of_a_calibration_is_not_lost() -> None:
    calls = _products(120)
    gpu, model = load_gpu("L4"), load_models()["gemm"]
    truth = _measured(calls, "L4", 1.0)
    # wrong by a factor that no change of throughput, bandwidth or floor makes: it depends on the outputs
    skewed = truth.assign(latency_us=truth["latency_us"] * np.where(calls["K"] > 1500, 1.4, 0.9))
    found = calibrate(model, design("gemm", skewed, 10), gpu)
    _, factors_alone = model.kernel_and_latency(skewed, gpu, correction=found.correction)
    both = factors_alone * np.exp(found.log_factor(skewed))
    assert np.mean(np.abs(both / skewed["latency_us"] - 1)) < 0.75 * np.mean(
        np.abs(factors_alone / skewed["latency_us"] - 1)
    )


def test_families_without_probes_stay_as_they_are() -> None:
    measured = _measured(_products(10), "L4", 1.3)
    assert set(calibrate_all(load_models(), measured, load_gpu("L4"))) == {"gemm"}
