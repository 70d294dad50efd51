"""Probes: which calls to measure, and how their measurements reach a prediction through the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from evaluation.training.prior_fit import learn_prior
from pipeline.answers.kernel_commands import predict_command
from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.probes import (
    CovarianceInputs,
    ProbePrior,
    calibrate,
    calibrate_all,
    choose_probes,
    covariance_inputs,
)
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.transfer_command import transfer_command

pytestmark = pytest.mark.skipif(
    not load_models(), reason="no cross-GPU models under packs/transfer"
)


def _products(rows: int = 60, seed: int = 1) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    size = np.exp(random.uniform(np.log(256), np.log(8192), (rows, 3))).round()
    return pd.DataFrame(
        {"op": "linear", "family": "gemm", "B": 1.0, **dict(zip("MNK", size.T, strict=True))}
    )


def _measured(calls: pd.DataFrame, gpu: str, factor: float) -> pd.DataFrame:
    """What a GPU would measure if the model were right but for a factor on everything above the floor."""
    _, latency = load_models()["gemm"].kernel_and_latency(calls, load_gpu(gpu))
    return calls.assign(latency_us=latency * factor)


def _error(predicted: pd.Series, truth: pd.Series) -> float:
    return float(np.median(np.abs(predicted.to_numpy() / truth.to_numpy() - 1.0)))


def test_a_design_tells_more_than_chance_and_needs_no_measurement() -> None:
    calls = _products(300)
    chosen = choose_probes(load_models()["gemm"], calls, load_gpu("L4"), 10)
    assert len(chosen) == 10 and not chosen.index.duplicated().any() and "latency_us" not in chosen
    random = np.random.default_rng(0)
    by_chance = [_left(calls.iloc[random.choice(300, 10, replace=False)], calls) for _ in range(30)]
    assert _left(chosen, calls) < min(by_chance)


def _left(probes: pd.DataFrame, calls: pd.DataFrame) -> float:
    """Variance of the errors that is left after the probes are measured, mean over the calls, under the covariance."""
    model, gpu = load_models()["gemm"], load_gpu("L4")
    prior = ProbePrior.of(model.probe_prior)
    at, everywhere = covariance_inputs(model, probes, gpu), covariance_inputs(model, calls, gpu)
    across = prior.covariance(everywhere, at)
    among = prior.covariance(at, at) + prior.noise**2 * np.eye(len(probes))
    return float(
        np.mean(
            prior.variance(everywhere) - (across * np.linalg.solve(among, across.T).T).sum(axis=1)
        )
    )


def test_variances_are_the_covariance_of_a_call_with_itself() -> None:
    model = load_models()["gemm"]
    seen, prior = (
        covariance_inputs(model, _products(20), load_gpu("T4")),
        ProbePrior.of(model.probe_prior),
    )
    assert prior.variance(seen) == pytest.approx(np.diag(prior.covariance(seen, seen)))
    assert ProbePrior.of(asdict(prior)) == prior and ProbePrior.of({}) == ProbePrior()


@pytest.mark.nightly
def test_a_prior_learns_how_errors_vary() -> None:
    random = np.random.default_rng(0)

    def gpu(level: float, slope: float) -> tuple[CovarianceInputs, np.ndarray]:
        size = random.uniform(-2, 2, (120, 1))
        seen = CovarianceInputs(
            np.zeros(120),
            np.zeros((120, 5)),
            (size, np.zeros((120, 1)), np.zeros((120, 1))),
            np.zeros(120),
        )
        return seen, level + slope * np.sin(2 * size[:, 0]) + random.normal(0, 0.02, 120)

    smooth = learn_prior({str(i): gpu(0.0, random.choice([-0.3, 0.3])) for i in range(4)})
    level = learn_prior({str(i): gpu(random.normal(0, 0.3), 0.0) for i in range(4)})
    assert smooth.spreads[0] > 2 * level.spreads[0] and smooth.level < level.level
    assert smooth.noise == pytest.approx(0.02, rel=0.6) and level.noise == pytest.approx(
        0.02, rel=0.6
    )


def test_probes_change_the_whole_path_of_kernels_predict(tmp_path: Path) -> None:
    calls = _products()
    slow = _measured(calls, "L4", 1.5)
    source, probes, out = (tmp_path / f"{name}.parquet" for name in ("in", "probes", "out"))
    calls.drop(columns="family").to_parquet(source)
    choose_probes(load_models()["gemm"], slow, load_gpu("L4"), 10).drop(
        columns="family"
    ).to_parquet(probes)
    predict_command("L4", None, source, out)
    before = _error(pd.read_parquet(out)["predicted_us"], slow["latency_us"])
    predict_command("L4", None, source, out, probes)
    found = pd.read_parquet(out)
    assert before > 0.3 > 0.1 > _error(found["predicted_us"], slow["latency_us"])
    assert (found["evidence"] == "transferred").all()
    assert (
        (found["p10_us"] <= found["predicted_us"]) & (found["predicted_us"] <= found["p90_us"])
    ).all()


def test_probes_change_the_whole_path_of_transfer(tmp_path: Path) -> None:
    calls = _products()
    slow, origin = _measured(calls, "L4", 1.5), _measured(calls, "T4", 1.0)
    source, probes, out = (tmp_path / f"{name}.parquet" for name in ("in", "probes", "out"))
    origin.drop(columns="family").to_parquet(source)
    choose_probes(load_models()["gemm"], slow, load_gpu("L4"), 10).drop(
        columns="family"
    ).to_parquet(probes)
    facts = transfer_command("T4", "L4", "auto", source, out, probes)
    assert facts["methods"] == {"utilisation+probes": 1.0}
    assert _error(pd.read_parquet(out)["predicted_us"], slow["latency_us"]) < 0.1


def test_the_smooth_part_of_a_calibration_is_not_lost() -> None:
    calls = _products(120)
    gpu, model = load_gpu("L4"), load_models()["gemm"]
    truth = _measured(calls, "L4", 1.0)
    # wrong by a factor that no change of throughput, bandwidth or floor makes: it depends on the outputs
    skewed = truth.assign(latency_us=truth["latency_us"] * np.where(calls["K"] > 1500, 1.4, 0.9))
    found = calibrate(model, choose_probes(model, skewed, gpu, 10), gpu)
    _, factors_alone = model.kernel_and_latency(skewed, gpu, correction=found.correction)
    _, both, _ = found.predict(skewed)
    assert np.mean(np.abs(both / skewed["latency_us"] - 1)) < 0.75 * np.mean(
        np.abs(factors_alone / skewed["latency_us"] - 1)
    )


def test_a_disturbed_probe_weighs_little_and_intervals_narrow_near_probes() -> None:
    calls = _products(120)
    gpu, model = load_gpu("L4"), load_models()["gemm"]
    probes = choose_probes(model, _measured(calls, "L4", 1.3), gpu, 10)
    disturbed = probes.assign(
        latency_us=probes["latency_us"] * np.where(np.arange(10) == 4, 6.0, 1.0)
    )
    clean, found = (calibrate(model, table, gpu) for table in (probes, disturbed))
    assert _error(pd.Series(found.predict(calls)[1]), pd.Series(clean.predict(calls)[1])) < 0.1
    near, far = clean.predict(probes)[2], clean.predict(probes.assign(M=1.0, N=65536.0))[2]
    assert near.mean() < far.mean()


def test_families_without_probes_stay_as_they_are() -> None:
    measured = _measured(_products(10), "L4", 1.3)
    assert set(calibrate_all(load_models(), measured, load_gpu("L4"))) == {"gemm"}
