"""Processes learn few samples, answer the same after a save, and refuse files that do not fit."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from pipeline.errors import InputError, PackError
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import fit_gpu as fit
from pipeline.kernels import gaussian_process as process
from pipeline.kernels import learned_variants as variants
from pipeline.kernels.error_metrics import metrics
from pipeline.kernels.estimate import fit_quantiles
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fit_family import with_predictions
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.gaussian_process import (
    GaussianProcess,
    Hyperparameters,
    find_hyperparameters,
    negative_log_likelihood,
    train_gaussian_process,
)
from pipeline.kernels.samples import assign_folds, with_families


@pytest.fixture
def wave():
    """Sixty made-up points of a smooth function of the first of four columns, the last of which never moves."""
    rng = np.random.default_rng(3)
    features = np.column_stack([rng.uniform(-3, 3, (60, 3)), np.full(60, 7.0)])
    return features, np.sin(features[:, 0]) + 2.0


@pytest.fixture
def learned(wave):
    features, target = wave
    return train_gaussian_process(features, target, [find_hyperparameters(features, target, 0)])


@pytest.fixture
def curved(gemm_samples):
    """Samples whose kernels take ever longer than physics says, which no factor mends."""
    table = with_families(gemm_samples, "t")
    return table.assign(latency_us=table["latency_us"] ** 1.3)


def test_a_process_of_two_samples_answers_as_computed_by_hand():
    """At a scaled distance of 1 the covariance is 2/e; the weights are 1 / (1.1 - 2/e), of opposite sign."""
    features, target = np.array([[-1.0], [1.0]]), np.array([0.0, 2.0])
    scale = Hyperparameters(np.array([2.0 * np.sqrt(3.0)]), 0.1)
    learned = train_gaussian_process(features, target, [scale])
    moved = (1 - 2.0 / np.e) / (1.1 - 2.0 / np.e)
    found = learned.predict(np.array([[-1.0], [0.0], [1.0]]))
    np.testing.assert_allclose(found, [1 - moved, 1.0, 1 + moved])


def test_the_likelihood_is_that_of_scikit_learn_and_its_gradient_that_of_differences():
    features = np.random.default_rng(5).normal(0.0, 1.0, (40, 4))
    target = np.sin(features[:, 0]) + 0.3 * features[:, 1]
    theta = np.log([0.8, 1.5, 2.5, 0.9, 4.0, 0.05])
    kernel = ConstantKernel(0.8) * Matern([1.5, 2.5, 0.9, 4.0], nu=1.5) + WhiteKernel(0.05)
    theirs = GaussianProcessRegressor(kernel, alpha=process.MIN_NOISE, optimizer=None)
    theirs.fit(features, target)

    def ours(at):
        return negative_log_likelihood(features, target, at)

    value, gradient = ours(theta)
    logarithm = theirs.log_marginal_likelihood(theirs.kernel_.theta)
    assert value + 20 * np.log(2.0 * np.pi) == pytest.approx(-logarithm, rel=1e-9)
    by_differences = approx_fprime(theta, lambda at: ours(at)[0], 1e-6)
    np.testing.assert_allclose(gradient, by_differences, rtol=1e-4, atol=1e-4)


def test_a_process_finds_which_feature_matters(wave):
    features, target = wave
    found = find_hyperparameters(features[:50], target[:50], 0)
    assert 3 * found.lengths[0] < found.lengths[1:].min()
    assert np.isinf(found.lengths[3]), "a feature that is constant in the samples is ignored"
    unseen = train_gaussian_process(features[:50], target[:50], [found]).predict(features[50:])
    np.testing.assert_allclose(unseen, target[50:], atol=0.1)


def test_blocks_of_calls_change_nothing(wave, learned, monkeypatch):
    features, _ = wave
    whole = learned.predict(features)
    monkeypatch.setattr(process, "MAX_COVARIANCE_CELLS", 7 * 60)
    np.testing.assert_allclose(learned.predict(features), whole, rtol=1e-12)


@pytest.mark.parametrize("damage", ["missing", "shape", "empty"])
def test_a_damaged_process_is_refused(wave, learned, damage):
    features, _ = wave
    tensors = learned.tensors()
    again = GaussianProcess.from_tensors(tensors).predict(features)
    np.testing.assert_array_equal(again, learned.predict(features))
    weights = tensors.pop("process_weights")
    if damage == "shape":
        tensors["process_weights"] = weights[:, :-1]
    if damage == "empty":
        tensors["process_weights"] = weights[:0]
        tensors["process_lengths"] = tensors["process_lengths"][:0]
    with pytest.raises(PackError, match="rebuild"):
        GaussianProcess.from_tensors(tensors)


@pytest.mark.parametrize(("most", "variant"), [(60, "process"), (59, "mlp")])
def test_auto_takes_processes_for_few_samples_and_networks_for_many(
    curved, v100, monkeypatch, most, variant
):
    monkeypatch.setattr(fitter, "MAX_GAUSSIAN_PROCESS_SAMPLES", most)
    monkeypatch.setattr(variants, "NETWORK", replace(variants.NETWORK, width=32, steps=200))
    assert fit_family(curved.head(60), v100, "gemm").model.variant == variant


@pytest.mark.parametrize(("rows", "variant"), [(7, "roofline"), (8, "process")])
def test_from_eight_samples_on_something_is_learned(curved, v100, rows, variant):
    assert fit_family(curved.head(rows), v100, "gemm", "process").model.variant == variant


def test_a_saved_process_answers_as_before(curved, v100, tmp_path):
    fitted = fit_family(curved.head(80), v100, "gemm")
    fitted.save(tmp_path)
    loaded = FittedModel.load(tmp_path, v100)
    assert loaded.variant == "process"
    before, after = (model.predict(curved) for model in (fitted.model, loaded))
    for key in ("latency", "kernel", "p10", "p90"):
        np.testing.assert_allclose(getattr(after, key), getattr(before, key), rtol=1e-5)


def test_processes_err_less_than_scaled_physics_where_no_factor_is_right(curved, v100):
    unseen = assign_folds(curved, 5, 0) > 0
    errors = [
        metrics(
            with_predictions(
                fit_family(curved[~unseen], v100, "gemm", variant).model, curved[unseen]
            )
        )["gmae"]
        for variant in ("auto", "roofline")
    ]
    assert errors[0] < 0.6 * errors[1]


def test_physics_stays_where_nothing_better_is_learned(gemm_samples, v100):
    """Latencies that are noise around physics: processes of them are worse than the factor."""
    rng = np.random.default_rng(0)
    table = with_families(gemm_samples, "t").head(12)
    noisy = table.assign(latency_us=table["latency_us"] * np.exp(rng.normal(0, 0.3, 12)))
    assert fit_family(noisy, v100, "gemm").model.variant == "roofline"


def test_ends_of_few_residuals_are_order_statistics():
    """A tenth of new ones lie below the least of nine."""
    found = fit_quantiles(np.zeros(9), np.arange(9.0) - 4.0, few=True)
    assert (found.low, found.high) == ((-4.0,), (4.0,))


def test_too_many_samples_for_processes_are_refused_in_one_line(curved, v100, monkeypatch):
    monkeypatch.setattr(fit, "MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES", 100)
    with pytest.raises(
        InputError, match="gemm: 240 samples, but the variant process takes at most 100"
    ):
        fit_family(curved, v100, "gemm", "process")
