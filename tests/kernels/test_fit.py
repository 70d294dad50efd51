"""Fitting: what can be learned is learned, intervals cover, saved models answer as before, few samples fall back."""

import json
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_commands import fit_command, predict_command
from pipeline.answers.kernel_predictor import predictor_of
from pipeline.errors import PackError, SteptimeError, TableError
from pipeline.families.family import Law
from pipeline.kernels import session_drift as drift
from pipeline.kernels.error_metrics import gmae, gmae_by_size, metrics
from pipeline.kernels.estimate import fit_quantiles
from pipeline.kernels.family_model import FittedModel, find_families
from pipeline.kernels.fit_gpu import fit_family, fit_gpu
from pipeline.kernels.physics import PHYSICS_SPREAD
from pipeline.kernels.samples import with_families
from pipeline.model_files import DIGEST_KEY
from tests.commands import full_disk

pytestmark = pytest.mark.usefixtures("small_networks")


@pytest.fixture(scope="module")
def samples(gemm_samples):
    return with_families(gemm_samples, "t")


@pytest.fixture(scope="module")
def fitted(samples, v100, small_networks):
    """Fits of all samples by variant; each is made once."""
    return lru_cache(lambda variant: fit_family(samples, v100, "gemm", variant, offset_us=14.0))


@pytest.mark.parametrize("variant", ["auto", "trees", "mlp", "mlp_paper", "roofline"])
def test_every_variant_learns_scaled_physics(samples, v100, variant):
    scored = fit_family(samples, v100, "gemm", variant, test_share=0.2, offset_us=14.0)
    assert scored.metrics["rows"] == 48
    if variant == "mlp_paper":
        assert scored.model.inputs == "raw" and 3 <= scored.parameters["layers"] <= 7
        return
    assert scored.metrics["gmae"] < 0.1
    assert (scored.test["kernel_us"] < scored.test["predicted_us"]).all()


def test_variants_are_judged_on_the_same_rows_also_where_a_network_predicts_some_folds(
    samples, v100, monkeypatch
):
    monkeypatch.setattr("pipeline.kernels.fit_family.MAX_GAUSSIAN_PROCESS_SAMPLES", 100)
    variants = ("mlp", "trees", "roofline")
    judged = [
        fit_family(samples, v100, "gemm", variant, offset_us=14.0).test for variant in variants
    ]
    assert len(judged[0]) == pytest.approx(len(samples) * 3 / 5, rel=0.05), "three of five folds"
    assert [rows["latency_us"].tolist() for rows in judged[1:]] == [
        judged[0]["latency_us"].tolist()
    ] * 2


@pytest.mark.parametrize("variant", ["auto", "mlp"])
def test_the_same_seed_gives_the_same_model(samples, v100, variant, fitted):
    again = fit_family(samples, v100, "gemm", variant, offset_us=14.0).model
    np.testing.assert_array_equal(
        again.predict(samples).latency, fitted(variant).model.predict(samples).latency
    )


def test_a_saved_model_answers_as_before_and_leaves_no_file_of_an_earlier_one(
    samples, v100, tmp_path, fitted
):
    fitted("trees").save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["family.json", "trees0.txt"]
    fitted("mlp").save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "family.json",
        "networks.safetensors",
    ]
    before, after = (
        model.predict(samples) for model in (fitted("mlp").model, FittedModel.load(tmp_path, v100))
    )
    np.testing.assert_allclose(before.latency, after.latency, rtol=2e-3)
    np.testing.assert_allclose(before.p90, after.p90, rtol=1e-2)


def test_a_model_that_finds_no_room_is_one_line_and_leaves_no_part(tmp_path, fitted):
    said = r"networks\.safetensors: cannot be written"
    with full_disk(64), pytest.raises(SteptimeError, match=said):
        fitted("mlp").save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["missing", "cut", "version", "kind"])
def test_a_damaged_model_is_refused(v100, tmp_path, damage, fitted):
    fitted("mlp").save(tmp_path)
    weights, description = tmp_path / "networks.safetensors", tmp_path / "family.json"
    if damage == "missing":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:200])
    else:
        older = {"version": {"feature_version": -1}, "kind": {"members": ["chosen kernel"]}}
        values = json.loads(description.read_text()) | older[damage]
        del values[DIGEST_KEY]  # as in a file of an older version
        description.write_text(json.dumps(values))
    with pytest.raises(PackError, match="refit"):
        FittedModel.load(tmp_path, v100)


def test_one_sample_scales_physics(samples, v100):
    fitted = fit_family(samples.head(1), v100, "gemm")
    assert fitted.model.variant == "roofline"
    assert np.isfinite(fitted.model.predict(samples).kernel).all()


@pytest.mark.parametrize("rows", [2, 30])
def test_equal_latencies_are_predicted_back(samples, v100, tmp_path, rows):
    fitted = fit_family(samples.head(rows).assign(latency_us=75.0), v100, "gemm")
    fitted.save(tmp_path)
    for model in (fitted.model, FittedModel.load(tmp_path, v100)):
        np.testing.assert_allclose(model.predict(samples.head(rows)).latency, 75.0, rtol=1e-6)
        assert (model.predict(samples).kernel > 0).all()


def test_few_samples_are_judged_by_models_that_have_not_seen_them(samples, v100):
    table = samples.iloc[[0, 60, 120, 180]].reset_index(drop=True)
    table.loc[3, "latency_us"] *= 3.0  # a sample that no other one foretells
    found = fit_family(table, v100, "gemm")
    others = fit_family(table.head(3), v100, "gemm").model.predict(table.tail(1)).latency[0]
    assert found.test["predicted_us"].iloc[3] == pytest.approx(others)
    assert found.metrics["mape"] == pytest.approx(
        (found.test["predicted_us"] / table["latency_us"] - 1.0).abs().mean()
    )


def test_a_single_sample_judges_nothing(samples, v100, tmp_path):
    samples.head(1).to_parquet(tmp_path / "one.parquet")
    (row,) = fit_command(tmp_path / "one.parquet", "V100", None, tmp_path / "models")
    assert row["gmae"] is None and row["coverage"] is None
    facts = json.loads((tmp_path / "models" / "gemm" / "family.json").read_text())
    assert facts["split"] == "none" and "gmae" not in facts["metrics"]


def test_a_folder_that_cannot_be_made_is_refused_before_the_fit(samples, tmp_path):
    samples.to_parquet(tmp_path / "samples.parquet")
    with pytest.raises(SteptimeError, match="cannot be written"):
        fit_command(tmp_path / "samples.parquet", "V100", None, "/proc/models")


def test_nothing_usable_is_an_error_of_one_line(samples, v100):
    with pytest.raises(TableError, match="no usable sample"):
        fit_family(samples.assign(latency_us=-1.0), v100, "gemm")
    with pytest.raises(TableError, match="column latency_us is missing"):
        fit_family(samples.drop(columns="latency_us"), v100, "gemm")
    with pytest.raises(TableError, match="no usable sample"):
        fit_family(samples.drop(columns="K"), v100, "gemm")


def test_intervals_hold_about_eight_of_ten_new_latencies(samples, v100):
    rng = np.random.default_rng(5)
    noisy = samples.assign(
        latency_us=samples["latency_us"] * np.exp(rng.normal(0, 0.05, len(samples)))
    )
    inside = [
        fit_family(noisy, v100, "gemm", "trees", seed, test_share=0.25).metrics["coverage"]
        for seed in range(4)
    ]
    assert np.mean(inside) == pytest.approx(0.8, abs=0.08)


def test_kernels_under_the_floor_stay_below_the_latency_and_grow_with_size(samples, fitted):
    model = fitted("trees").model
    small = (
        samples.head(1)
        .loc[[0] * 4]
        .reset_index(drop=True)
        .assign(M=[64, 128, 256, 512], N=64, K=64)
    )
    found = model.predict(small)
    np.testing.assert_allclose(found.latency, 60.0, rtol=0.03)
    assert (found.kernel < 20.0).all() and (found.kernel > 1.0).all()
    assert (np.diff(found.kernel) >= 0).all()
    assert ((found.p10 < found.kernel) & (found.kernel < found.p90)).all()
    long = model.predict(samples[samples["latency_us"] > 200])
    np.testing.assert_allclose(long.latency - long.kernel, 14.0, atol=0.5)


def test_sizes_outside_the_samples_are_flagged_scaled_and_widened_up_to_the_width_of_physics(
    samples, fitted
):
    model = fitted("trees").model
    near = samples.iloc[[0]].assign(M=2000, N=2000, K=2000)
    inside, outside, far = (model.predict(near.assign(M=rows)) for rows in (2000, 128_000, 2.0**34))
    assert inside.inside[0] and not outside.inside[0]
    assert outside.kernel[0] / inside.kernel[0] == pytest.approx(64.0, rel=0.2)
    assert outside.p90[0] / outside.p10[0] > inside.p90[0] / inside.p10[0]
    assert far.p90[0] / far.p10[0] <= PHYSICS_SPREAD[Law.COMPUTE] ** 2 * 1.001
    assert far.p10[0] < far.kernel[0] < far.p90[0]


def test_kernel_times_are_fitted_where_samples_have_them(samples, v100):
    table = samples.assign(kernel_us=samples["latency_us"] - 20.0)
    model = fit_family(table, v100, "gemm", "trees").model
    ratio = model.predict(samples).kernel / table["kernel_us"]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.03)


def test_a_gpu_is_fitted_tracked_and_saved(samples, v100, tmp_path):
    seen = []
    best = fit_gpu(
        samples, v100, tmp_path, variants=("trees", "roofline"), test_share=0.2, on_fit=seen.append
    )
    assert [fitted.model.variant for fitted in seen] == ["trees", "roofline"]
    assert set(best) == {"gemm"}
    description = json.loads((tmp_path / "gemm" / "family.json").read_text())
    assert description["evidence"] == "fitted"
    assert description["metrics"]["rows"] == 48


def test_a_fitted_model_of_copies_stays_beside_the_bandwidth_curve(v100, tmp_path):
    """Copies here are three times as slow as element-wise operations; families without samples follow the latter."""
    size = np.geomspace(1e5, 1e8, 60).round()
    dims = {
        "B": 1.0,
        "H": size,
        "inputs": 4 * size,
        "outputs": 4 * size,
        "bytes": 4 * size,
        "dtype": "fp32",
    }
    moved_us = 3.0 + 8 * size / 8e5
    kinds = (("elementwise", "relu", 1.0), ("copy", "copy", 3.0))
    tables = [
        pd.DataFrame({**dims, "family": name, "op": op, "kernel_us": slow * moved_us})
        for name, op, slow in kinds
    ]
    both = pd.concat(tables, ignore_index=True).assign(gpu="V100", phase="forward")
    table = with_families(both.assign(latency_us=both["kernel_us"] + 5.0), "t")
    calls = table.drop(columns=["kernel_us", "latency_us"]).iloc[75:115]

    def slowness():
        predictor = predictor_of(v100, find_families([tmp_path]))
        assert predictor.physics.evidence == "fitted"
        copies, concat = calls, calls.assign(family="concat", op="cat")
        return [
            np.median(predictor.predict(of).kernel_us / moved_us[15:55]) for of in (copies, concat)
        ]

    fit_gpu(table, v100, tmp_path, variants=("roofline",))
    copies, others = slowness()
    assert copies > 2.3 and 0.7 < others < 1.3
    fit_gpu(table[table["family"] == "elementwise"], v100, tmp_path, variants=("roofline",))
    assert slowness()[0] == copies


def test_the_commands_keep_rows_order_and_columns(gemm_samples, tmp_path):
    gemm_samples.assign(gpu="V100").to_parquet(tmp_path / "s.parquet")
    rows = fit_command(tmp_path / "s.parquet", "V100", None, tmp_path / "m")
    assert rows[0]["family"] == "gemm"
    calls = (
        gemm_samples.sample(frac=1.0, random_state=0)
        .assign(gpu="P4", note="kept")
        .drop(columns="latency_us")
    )
    calls.to_parquet(tmp_path / "c.parquet")
    facts = predict_command("V100", tmp_path / "m", tmp_path / "c.parquet", tmp_path / "p.parquet")
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert facts["evidence"] == {"fitted": 1.0}
    assert found["M"].tolist() == calls["M"].tolist()
    assert (found["note"] == "kept").all() and (found["gpu"] == "P4").all()
    assert (found["p10_us"] <= found["predicted_us"]).all() and (
        found["predicted_us"] <= found["p90_us"]
    ).all()
    assert (found["kernel_us"] < found["predicted_us"]).all()


def test_a_growing_disturbance_is_found_and_an_absent_one_is_not():
    rng = np.random.default_rng(0)
    rows = 1500
    size = rng.uniform(5, 8, rows)
    features, quiet = size[:, None], np.exp(size) * np.exp(rng.normal(0, 0.02, rows))
    folds = np.arange(rows) % 3
    baseline = np.full(rows, 6.0)
    growth = np.linspace(0, 300, rows)
    grown = drift.estimate_drift(features, baseline, quiet + growth, folds)
    assert grown.detected
    assert np.corrcoef(grown.extra_us, growth)[0, 1] > 0.99
    assert grown.extra_us.max() == pytest.approx(300, rel=0.15)
    assert not drift.estimate_drift(features, baseline, quiet, folds).detected


def test_quantiles_cover_eight_of_ten_new_residuals():
    rng = np.random.default_rng(0)
    time, residual = rng.uniform(3, 9, 4000), rng.normal(0, 1, 4000)
    scale = np.where(time < 6, 0.01, 0.1)
    quantiles = fit_quantiles(time[:2000], (scale * residual)[:2000])
    low, high = quantiles.at(time[2000:])
    inside = (low <= (scale * residual)[2000:]) & ((scale * residual)[2000:] <= high)
    for half in (time[2000:] < 5.5, time[2000:] > 6.5):
        assert inside[half].mean() == pytest.approx(0.8, abs=0.05)


def test_errors_are_geometric_and_clipped():
    measured = np.array([100.0, 100.0])
    assert gmae(np.array([101.0, 104.0]), measured) == pytest.approx(0.02)
    assert gmae(measured, measured) == pytest.approx(1e-6)
    table = pd.DataFrame(
        {
            "latency_us": [50.0, 200.0],
            "predicted_us": [55.0, 210.0],
            "p10_us": [40.0, 205.0],
            "p90_us": [60.0, 220.0],
            "floor_us": [40.0, 40.0],
        }
    )
    found = metrics(table)
    assert found["coverage"] == 0.5
    assert found["above_floor_rows"] == 1
    assert found["above_floor_gmae"] == pytest.approx(0.05)


def test_errors_are_told_by_tenths_of_the_size():
    size = np.random.default_rng(0).permutation(200).astype(float)
    table = pd.DataFrame(
        {"latency_us": 100.0, "predicted_us": 100.0 + np.where(size < 20, 10.0, size // 100 + 1.0)},
        index=range(200),
    )
    found = gmae_by_size(table, size)
    assert list(found) == [f"gmae_size_{tenth}0" for tenth in range(1, 11)]
    assert found["gmae_size_10"] == pytest.approx(0.10)
    assert [found[f"gmae_size_{tenth}0"] for tenth in (2, 5, 6, 10)] == pytest.approx(
        [0.01, 0.01, 0.02, 0.02]
    )
    assert gmae_by_size(table.head(99), size[:99]) == {}
