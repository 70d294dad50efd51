"""The shipped kernel models against the public data they come from."""

import json

import pytest

from pipeline.answers.who_answers import PUBLIC_KERNEL_GPUS
from pipeline.datasets.neusight import read_samples
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import metrics
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fit_family import with_predictions
from pipeline.kernels.fit_gpu import calibrate_physics
from pipeline.model_files import check_pack
from pipeline.paths import packs_dir


def described(gpu, name):
    return json.loads((packs_dir() / gpu / "kernels" / name / "family.json").read_text())


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
        found = described(gpu, name)
        # P100's convolutions hold a disturbance of their session that no model of shapes can know (docs/kernels.md)
        bar = 0.105 if (gpu, name) == ("P100", "conv2d_forward") else 0.10
        assert found["metrics"]["gmae"] < bar and 0.75 <= found["metrics"]["coverage"] <= 0.85
        assert found["source"] and found["measured_on"]


@pytest.mark.parametrize("gpu", PUBLIC_KERNEL_GPUS)
def test_a_pack_predicts_the_samples_it_was_fitted_on(public, gpu):
    samples = read_samples(public, gpu).groupby("family", observed=True).sample(400, random_state=0)
    for name in PUBLIC_FAMILIES:
        model = FittedModel.load(packs_dir() / gpu / "kernels" / name, load_gpu(gpu))
        found = metrics(with_predictions(model, samples[samples["family"] == name]))["gmae"]
        # it has seen these: at most a little worse than on unseen ones, and not by heart
        assert 0.3 < found / model.description["metrics"]["gmae"] < 1.2


def test_public_samples_give_a_curve_below_the_datasheet(public, v100):
    samples = read_samples(public, "V100")
    assert samples["family"].value_counts()["gemm"] == 6460
    curve, offset_us, error = calibrate_physics(samples, v100)
    assert 0.85 * 900 < curve.peak_gb_per_s < 900
    assert 8 <= offset_us <= 20
    assert error < 0.02
    shipped = described("V100", "copy")["physics"]["memory"]
    assert shipped == pytest.approx(vars(curve), rel=1e-5)
