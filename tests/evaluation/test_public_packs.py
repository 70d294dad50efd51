"""The shipped kernel models against the public data they come from, and against kernels of public traces."""

import json

import pytest

from evaluation.checks.traced_kernel_times import compare
from pipeline.answers.who_answers import PUBLIC_KERNEL_GPUS
from pipeline.datasets.neusight import read_samples
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import metrics
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fit_family import with_predictions
from pipeline.kernels.fit_gpu import calibrate_physics
from pipeline.kernels.samples import split_by_shape
from pipeline.model_files import check_pack
from pipeline.paths import packs_dir


@pytest.fixture
def public(datasets):
    if not (datasets / "neusight" / "kernels.parquet").is_file():
        pytest.skip("NeuSight latencies not at hand")
    return datasets


@pytest.mark.parametrize("gpu", PUBLIC_KERNEL_GPUS)
def test_a_pack_is_small_and_says_how_good_it_is(gpu):
    files = check_pack(gpu)["files"]
    assert sum(entry["bytes"] for entry in files.values()) < 5_000_000
    for name in PUBLIC_FAMILIES:
        found = json.loads((packs_dir() / gpu / "kernels" / name / "family.json").read_text())
        # P100's convolutions hold a disturbance of their session that no model of shapes can know (docs/kernels.md)
        assert found["metrics"]["gmae"] < (
            0.105 if (gpu, name) == ("P100", "conv2d_forward") else 0.10
        )
        assert 0.75 <= found["metrics"]["coverage"] <= 0.85
        assert found["source"] and found["measured_on"]


@pytest.mark.parametrize("gpu", PUBLIC_KERNEL_GPUS)
def test_a_pack_predicts_the_samples_it_was_fitted_on(public, gpu):
    spec = load_gpu(gpu)
    samples = read_samples(public, gpu).groupby("family", observed=True).sample(400, random_state=0)
    for name in PUBLIC_FAMILIES:
        model = FittedModel.load(packs_dir() / gpu / "kernels" / name, spec)
        promised = model.description["metrics"]["gmae"]
        # it has seen these: at most a little worse than on unseen ones, and not by heart
        assert (
            0.3 * promised
            < metrics(with_predictions(model, samples[samples["family"] == name]))["gmae"]
            < 1.2 * promised
        )


def test_public_samples_give_a_curve_below_the_datasheet(public, v100):
    samples = read_samples(public, "V100")
    assert samples["family"].value_counts()["gemm"] == 6460
    curve, offset_us, error = calibrate_physics(samples, v100)
    assert 0.85 * 900 < curve.peak_gb_per_s < 900
    assert 8 <= offset_us <= 20
    assert error < 0.02
    assert split_by_shape(samples, 0.2, 0).mean() == pytest.approx(0.2, abs=0.02)
    shipped = json.loads((packs_dir() / "V100" / "kernels" / "copy" / "family.json").read_text())
    assert shipped["physics"]["memory"] == pytest.approx(curve.to_json(), rel=1e-5)


def test_short_kernels_of_a_public_trace_are_predicted_without_the_floor(datasets):
    folder = datasets / "traces" / "v100x8_dlrm"
    if not folder.is_dir():
        pytest.skip("trace v100x8_dlrm not at hand")
    found = compare(folder, "V100")
    products = found[found["family"].isin(["gemm", "bmm"])]
    assert len(products) == 5 * 22
    assert (
        products["predicted_us"] > 2 * products["kernel_us"]
    ).all()  # these lie under the latency floor
    assert 0.6 < products["kernel_us"].sum() / products["measured_us"].sum() < 1.6
    lookups = found[found["family"] == "embedding_forward"]
    assert len(lookups) >= 5
    assert 0.45 < lookups["kernel_us"].sum() / lookups["measured_us"].sum() < 1.6
