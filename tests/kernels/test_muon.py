"""Muon: steps have nearly equal singular values, in the directions of the gradient; PyTorch's own optimizer agrees."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pipeline.kernels import muon  # noqa: E402
from pipeline.kernels.muon import Muon, orthogonal  # noqa: E402
from pipeline.kernels.network_training import train_network  # noqa: E402
from pipeline.kernels.networks import Recipe  # noqa: E402

SHAPES = [(24, 24), (40, 16), (16, 40), (1, 8), (8, 1)]


def random(shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_one_and_directions_stay(shape, scale):
    matrix = random(shape)
    u, s, vt = torch.linalg.svd(matrix, full_matrices=False)
    inner = (u.T @ orthogonal(scale * matrix) @ vt.T).numpy()
    found, large = np.diag(inner), (s > 0.02 * s.max()).numpy()
    assert (found[large] > 0.6).all() and (found < 1.3).all()
    np.testing.assert_allclose(inner - np.diag(found), 0.0, atol=1e-4)


def test_a_gradient_of_zero_changes_nothing():
    matrix = random((5, 3)).requires_grad_()
    before, matrix.grad = matrix.detach().clone(), torch.zeros(5, 3)
    Muon([matrix], 0.1).step()
    torch.testing.assert_close(matrix.detach(), before, rtol=0, atol=0)


def test_a_step_is_as_long_as_one_of_adamw_and_decay_shrinks_by_the_rate():
    matrix, rate = random((30, 50)).requires_grad_(), 0.01
    before, matrix.grad = matrix.detach().clone(), 1e3 * random((30, 50), 1)
    Muon([matrix], rate, weight_decay=0.5).step()
    step = matrix.detach() - before * (1 - 0.5 * rate)
    # 30 singular values of about one make entries of sqrt(30 / (30 x 50)) on average
    expected = rate * muon.STEP_LENGTH * np.sqrt(50) * np.sqrt(1 / 50)
    assert step.square().mean().sqrt().item() == pytest.approx(expected, rel=0.2)
    assert (step * matrix.grad).sum() < 0


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with PyTorch 2.9")
@pytest.mark.parametrize("shape", SHAPES[:3])
def test_steps_are_those_of_torch_but_for_its_bfloat16(shape):
    start, steps = random(shape), [random(shape, seed) for seed in (1, 2, 3)]
    own, other = start.clone().requires_grad_(), start.clone().requires_grad_()
    optimizers = (
        Muon([own], 0.01, weight_decay=0.1),
        torch.optim.Muon([other], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for gradient in steps:
        for matrix, optimizer in zip((own, other), optimizers, strict=True):
            matrix.grad = gradient.clone()
            optimizer.step()
    moved = [(matrix - start).detach() for matrix in (own, other)]
    torch.testing.assert_close(*moved, rtol=0, atol=0.05 * moved[0].abs().max().item())


def test_differences_of_nearly_equal_features_are_learned_faster_than_with_adamw():
    rng = np.random.default_rng(0)
    features, shift = rng.normal(size=(4000, 8)), rng.normal(size=(4000, 4))
    features[:, 4:] = features[:, :4] + 0.1 * shift
    target = np.sin(-shift[:, 0]) + 0.3 * features[:, 1]
    errors = []
    for rates in ({"learning_rate": 5e-3}, {"learning_rate": 2e-3, "muon_rate": 2e-2}):
        recipe = Recipe(width=48, layers=3, steps=800, batch=256, relu=True, **rates)
        network = train_network(features, target, recipe, 0)
        errors.append(np.abs(network.predict(features) - target).mean())
    assert errors[1] < 0.3 * errors[0]


@pytest.mark.parametrize("frequencies", [0, 2])
def test_all_parameters_of_a_network_are_trained(frequencies):
    features = np.random.default_rng(0).normal(size=(200, 3))
    recipe = Recipe(width=8, layers=2, batch=64, frequencies=frequencies, units=2, learning_rate=1e-3, muon_rate=1e-2)
    short, longer = (
        train_network(features, features[:, 0] ** 2, Recipe(**vars(recipe) | {"steps": steps}), 0).tensors()
        for steps in (2, 12)
    )
    fixed = {"mean", "scale", "target"}
    assert not any(np.array_equal(short[name], longer[name]) for name in set(short) - fixed)
