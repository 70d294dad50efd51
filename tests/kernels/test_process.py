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
from pipeline.kernels.estimate import fit_quantiles
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fit_gpu import fit_family, fit_gpu
from pipeline.kernels.gaussian_process import (
    GaussianProcess,
    Hyperparameters,
    find_hyperparameters,
    negative_log_likelihood,
    train_gaussian_process,
)
from pipeline.kernels.samples import with_families


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
    learned = train_gaussian_process(
        features, target, [Hyperparameters(np.array([2.0 * np.sqrt(3.0)]), 0.1)]
    )
    close = 2.0 / np.e
    np.testing.assert_allclose(
        learned.predict(features),
        [1 - (1 - close) / (1.1 - close), 1 + (1 - close) / (1.1 - close)],
    )
    np.testing.assert_allclose(learned.predict(np.array([[0.0]])), 1.0)


def test_a_feature_that_is_constant_in_the_samples_is_ignored(wave, learned):
    features, _ = wave
    elsewhere = features.copy()
    elsewhere[:, 3] = 1000.0
    np.testing.assert_array_equal(learned.predict(elsewhere), learned.predict(features))


def test_the_likelihood_is_that_of_scikit_learn_and_its_gradient_that_of_differences():
    features = np.random.default_rng(5).normal(0.0, 1.0, (40, 4))
    target = np.sin(features[:, 0]) + 0.3 * features[:, 1]
    theta = np.log([0.8, 1.5, 2.5, 0.9, 4.0, 0.05])
    kernel = ConstantKernel(0.8) * Matern([1.5, 2.5, 0.9, 4.0], nu=1.5) + WhiteKernel(0.05)
    theirs = GaussianProcessRegressor(kernel, alpha=process.MIN_NOISE, optimizer=None).fit(
        features, target
    )
    value, gradient = negative_log_likelihood(features, target, theta)
    constant = 0.5 * len(target) * np.log(2.0 * np.pi)
    assert value + constant == pytest.approx(
        -theirs.log_marginal_likelihood(theirs.kernel_.theta), rel=1e-9
    )
    by_differences = approx_fprime(
        theta, lambda at: negative_log_likelihood(features, target, at)[0], 1e-6
    )
    np.testing.assert_allclose(gradient, by_differences, rtol=1e-4, atol=1e-4)


def test_a_process_finds_which_feature_matters(wave):
    features, target = wave
    found = find_hyperparameters(features, target, 0)
    assert 3 * found.lengths[0] < found.lengths[1:].min()
    assert np.isinf(found.lengths[3])
    learned = train_gaussian_process(features[:50], target[:50], [found])
    np.testing.assert_allclose(learned.predict(features[50:]), target[50:], atol=0.1)


def test_blocks_of_calls_change_nothing(wave, learned, monkeypatch):
    features, _ = wave
    whole = learned.predict(features)
    monkeypatch.setattr(process, "MAX_COVARIANCE_CELLS", 7 * 60)
    np.testing.assert_allclose(learned.predict(features), whole, rtol=1e-12)


def test_what_cannot_be_told_apart_is_averaged():
    """Equal features, different times: the matrix is singular but for the noise."""
    features, target = np.ones((12, 2)), np.linspace(1.0, 2.0, 12)
    learned = train_gaussian_process(features, target, [find_hyperparameters(features, target, 0)])
    np.testing.assert_allclose(learned.predict(features), 1.5, atol=0.05)


def test_lengths_are_found_on_some_rows_and_all_rows_are_used(wave, monkeypatch):
    features, target = wave
    monkeypatch.setattr(process, "MAX_HYPERPARAMETER_SAMPLES", 20)
    found = find_hyperparameters(features, target, 1)
    np.testing.assert_array_equal(found.lengths, find_hyperparameters(features, target, 1).lengths)
    assert np.any(found.lengths != find_hyperparameters(features, target, 2).lengths)
    assert train_gaussian_process(features, target, [found]).rows.shape == (60, 4)


@pytest.mark.parametrize("damage", ["missing", "shape", "empty"])
def test_a_damaged_process_is_refused(wave, learned, damage):
    features, _ = wave
    tensors = learned.tensors()
    np.testing.assert_array_equal(
        GaussianProcess.from_tensors(tensors).predict(features),
        learned.predict(features),
    )
    if damage == "missing":
        del tensors["process_weights"]
    elif damage == "shape":
        tensors["process_weights"] = tensors["process_weights"][:, :-1]
    else:
        tensors |= {
            f"process_{name}": tensors[f"process_{name}"][:0] for name in ("weights", "lengths")
        }
    with pytest.raises(PackError, match="rebuild"):
        GaussianProcess.from_tensors(tensors)


def test_auto_takes_processes_for_few_samples_and_networks_for_many(curved, v100, monkeypatch):
    assert fit_family(curved.head(60), v100, "gemm").model.variant == "process"
    monkeypatch.setattr(fitter, "MAX_GAUSSIAN_PROCESS_SAMPLES", 59)
    small = replace(variants.NETWORK, width=64, steps=400)
    monkeypatch.setattr(variants, "NETWORK", small)
    assert fit_family(curved.head(60), v100, "gemm").model.variant == "mlp"


@pytest.mark.parametrize(("rows", "variant"), [(7, "roofline"), (8, "process")])
def test_from_eight_samples_on_something_is_learned(curved, v100, rows, variant):
    assert fit_family(curved.head(rows), v100, "gemm", "process").model.variant == variant


def test_a_saved_process_answers_as_before(curved, v100, tmp_path):
    fitted = fit_family(curved.head(80), v100, "gemm")
    fitted.save(tmp_path)
    loaded = FittedModel.load(tmp_path, v100)
    assert loaded.variant == "process"
    for key in ("latency", "kernel", "p10", "p90"):
        before, after = (getattr(model.predict(curved), key) for model in (fitted.model, loaded))
        np.testing.assert_allclose(after, before, rtol=1e-5)


def test_processes_err_less_than_scaled_physics_where_no_factor_is_right(curved, v100):
    errors = [
        fit_family(curved, v100, "gemm", variant, test_share=0.8).metrics["gmae"]
        for variant in ("auto", "roofline")
    ]
    assert errors[0] < 0.6 * errors[1]


def test_physics_stays_where_nothing_better_is_learned(gemm_samples, v100):
    """Latencies that are noise around physics: processes of them are worse than the factor."""
    rng = np.random.default_rng(0)
    table = with_families(gemm_samples, "t").head(12)
    noisy = table.assign(latency_us=table["latency_us"] * np.exp(rng.normal(0, 0.3, 12)))
    assert fit_family(noisy, v100, "gemm").model.variant == "roofline"


def test_variants_of_few_samples_are_ranked_by_the_mean_log_error(curved, v100, tmp_path):
    """One exact hit makes the geometric mean of few errors small, whatever the others are."""
    rows = curved.head(40)
    found = {}
    best = fit_gpu(
        rows,
        v100,
        tmp_path,
        variants=("auto", "roofline"),
        on_fit=lambda one: found.setdefault(one.model.variant, one),
    )
    hit = found["roofline"].test.assign(
        predicted_us=lambda table: np.where(table.index < 30, table["latency_us"], 1e5)
    )
    lucky = fit.FittedFamily(found["roofline"].model, {"gmae": 0.0}, hit)
    assert best["gemm"].model.variant == "process"
    assert lucky.rank > best["gemm"].rank


def test_ends_of_few_residuals_are_order_statistics():
    residual = np.arange(9.0) - 4.0
    found = fit_quantiles(np.zeros(9), residual, few=True)
    assert (found.low, found.high) == (
        (-4.0,),
        (4.0,),
    )  # a tenth of new ones lie below the least of nine
    wide, usual = (
        fit_quantiles(np.zeros(2000), np.linspace(-1, 1, 2000), few=few) for few in (True, False)
    )
    np.testing.assert_allclose(wide.low, usual.low, atol=0.02)


def test_too_many_samples_for_processes_are_refused_in_one_line(curved, v100, monkeypatch):
    monkeypatch.setattr(fit, "MAX_FORCED_GAUSSIAN_PROCESS_SAMPLES", 100)
    with pytest.raises(
        InputError, match="gemm: 240 samples, but the variant process takes at most 100"
    ):
        fit_family(curved, v100, "gemm", "process")
