"""Fitting: what can be learned is learned, intervals cover, saved models answer as before, few samples fall back."""

import json
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_commands import fit_command, predict_command
from pipeline.errors import PackError, SteptimeError, TableError
from pipeline.families.family import Law
from pipeline.kernels import session_drift as drift
from pipeline.kernels.error_metrics import gmae, metrics
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fit_family import with_predictions
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.physics import PHYSICS_SPREAD
from pipeline.kernels.samples import assign_folds, with_families
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
    unseen = assign_folds(samples, 5, 0) == 0
    learned = fit_family(samples[~unseen], v100, "gemm", variant, offset_us=14.0)
    scored = with_predictions(learned.model, samples[unseen])
    assert len(scored) == 48
    if variant == "mlp_paper":
        assert learned.model.inputs == "raw" and 3 <= learned.parameters["layers"] <= 7
        return
    assert metrics(scored)["gmae"] < 0.1
    assert (scored["kernel_us"] < scored["predicted_us"]).all()


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


def test_equal_latencies_are_predicted_back(samples, v100):
    model = fit_family(samples.head(30).assign(latency_us=75.0), v100, "gemm").model
    np.testing.assert_allclose(model.predict(samples.head(30)).latency, 75.0, rtol=1e-6)
    assert (model.predict(samples).kernel > 0).all()


def test_a_single_sample_scales_physics_and_judges_nothing(samples, v100, tmp_path):
    samples.head(1).to_parquet(tmp_path / "one.parquet")
    (row,) = fit_command(tmp_path / "one.parquet", "V100", None, tmp_path / "models")
    assert row["gmae"] is None and row["coverage"] is None
    model = FittedModel.load(tmp_path / "models" / "gemm", v100)
    assert model.variant == "roofline" and model.description["split"] == "none"
    assert np.isfinite(model.predict(samples).kernel).all()


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
    noise = np.exp(np.random.default_rng(5).normal(0, 0.05, len(samples)))
    noisy = samples.assign(latency_us=samples["latency_us"] * noise)
    inside = []
    for seed in range(4):
        unseen = assign_folds(noisy, 4, seed) == 0
        learned = fit_family(noisy[~unseen], v100, "gemm", "trees", seed).model
        inside.append(metrics(with_predictions(learned, noisy[unseen]))["coverage"])
    assert np.mean(inside) == pytest.approx(0.8, abs=0.08)


def test_kernels_under_the_floor_stay_below_the_latency_and_grow_with_size(samples, fitted):
    model = fitted("trees").model
    small = samples.iloc[[0] * 4].assign(M=[64, 128, 256, 512], N=64, K=64)
    found = model.predict(small)
    np.testing.assert_allclose(found.latency, 60.0, rtol=0.03)
    assert found.kernel[0] > 1.0 and found.kernel[-1] < 20.0 and (np.diff(found.kernel) >= 0).all()
    assert ((found.p10 < found.kernel) & (found.kernel < found.p90)).all()
    long = model.predict(samples[samples["latency_us"] > 200])
    np.testing.assert_allclose(long.latency - long.kernel, 14.0, atol=0.5)


def test_sizes_outside_the_samples_are_flagged_scaled_and_widened_up_to_the_width_of_physics(
    samples, fitted
):
    calls = samples.iloc[[0] * 3].assign(M=[2000, 128_000, 2.0**34], N=2000, K=2000)
    found = fitted("trees").model.predict(calls)
    inside, outside, far = found.p90 / found.p10
    assert found.inside.tolist() == [True, False, False]
    assert found.kernel[1] / found.kernel[0] == pytest.approx(64.0, rel=0.2)
    assert inside < outside and far <= PHYSICS_SPREAD[Law.COMPUTE] ** 2 * 1.001
    assert found.p10[2] < found.kernel[2] < found.p90[2]


def test_kernel_times_are_fitted_where_samples_have_them(samples, v100):
    table = samples.assign(kernel_us=samples["latency_us"] - 20.0)
    model = fit_family(table, v100, "gemm", "trees").model
    ratio = model.predict(samples).kernel / table["kernel_us"]
    assert np.median(ratio) == pytest.approx(1.0, abs=0.03)


def test_the_commands_keep_rows_order_and_columns(gemm_samples, tmp_path):
    gemm_samples = gemm_samples.head(80)
    gemm_samples.assign(gpu="V100").to_parquet(tmp_path / "s.parquet")
    rows = fit_command(tmp_path / "s.parquet", "V100", None, tmp_path / "m")
    assert rows[0]["family"] == "gemm"
    calls = gemm_samples.drop(columns="latency_us").sample(frac=1.0, random_state=0)
    calls.assign(gpu="P4", note="kept").to_parquet(tmp_path / "c.parquet")
    facts = predict_command("V100", tmp_path / "m", tmp_path / "c.parquet", tmp_path / "p.parquet")
    found = pd.read_parquet(tmp_path / "p.parquet")
    assert facts["evidence"] == {"fitted": 1.0}
    assert found["M"].tolist() == calls["M"].tolist()
    assert set(found["note"]) == {"kept"} and set(found["gpu"]) == {"P4"}
    ends = found[["p10_us", "predicted_us", "p90_us"]].to_numpy()
    assert (np.diff(ends) >= 0).all() and (found["kernel_us"] < found["predicted_us"]).all()


@pytest.mark.parametrize("longest", [300, 0])
def test_a_growing_disturbance_is_found_and_an_absent_one_is_not(longest):
    rng, rows = np.random.default_rng(0), 1500
    size, growth = rng.uniform(5, 8, rows), np.linspace(0, longest, rows)
    seen = np.exp(size + rng.normal(0, 0.02, rows)) + growth
    found = drift.estimate_drift(size[:, None], np.full(rows, 6.0), seen, np.arange(rows) % 3)
    assert found.detected == bool(longest)
    if longest:
        assert np.corrcoef(found.extra_us, growth)[0, 1] > 0.99
        assert found.extra_us.max() == pytest.approx(longest, rel=0.15)


def test_errors_are_geometric_and_clipped():
    assert gmae(np.array([101.0, 104.0]), np.full(2, 100.0)) == pytest.approx(0.02)
    assert gmae(np.ones(2), np.ones(2)) == pytest.approx(1e-6)
    names = ["latency_us", "predicted_us", "p10_us", "p90_us", "floor_us"]
    rows = [(50.0, 55.0, 40.0, 60.0, 40.0), (200.0, 210.0, 205.0, 220.0, 40.0)]
    found = metrics(pd.DataFrame(rows, columns=names))
    assert found["coverage"] == 0.5 and found["above_floor_rows"] == 1
    assert found["above_floor_gmae"] == pytest.approx(0.05)
