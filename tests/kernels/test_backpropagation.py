"""Gradients written out by hand are those of torch's automatic differentiation, to rounding."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pipeline.kernels.backpropagation import Backpropagation, Parameters  # noqa: E402
from pipeline.kernels.network_training import train_network  # noqa: E402
from pipeline.kernels.networks import Network, Periodic, Recipe  # noqa: E402

COLUMNS, SAMPLES, CHOICES, BATCH = 7, 60, 5, 16


def random_parameters(recipe, outputs, generator):
    """Parameters none of which is zero, in float64: (embedding, layers)."""

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.4

    count, units = recipe.frequencies, recipe.units
    embedding = [normal(COLUMNS, count), normal(COLUMNS, 2 * count, units), normal(COLUMNS, units)] if count else []
    sizes = [COLUMNS * (1 + units) if count else COLUMNS, *[recipe.width] * recipe.layers, outputs]
    shapes = [shape for a, b in zip(sizes[:-1], sizes[1:], strict=True) for shape in ((a, b), (b,))]
    return embedding, [normal(*shape) for shape in shapes]


def automatic(x, y, embedding, layers, recipe):
    """The loss of a batch as torch derives it, from the formulas of `Network` and `Periodic`."""
    if embedding:
        frequency, weight, bias = embedding
        angle = 2.0 * torch.pi * frequency * x[:, :, None]
        waves = torch.cat([angle.cos(), angle.sin()], dim=2)
        units = torch.relu(torch.einsum("rcw,cwu->rcu", waves, weight) + bias)
        x = torch.cat([x, units.flatten(1)], dim=1)
    for layer in range(0, len(layers) - 2, 2):
        sums = x @ layers[layer] + layers[layer + 1]
        hidden = torch.relu(sums) if recipe.relu else sums * torch.sigmoid(sums)
        x = x + hidden if recipe.residual and layer else hidden
    found = x @ layers[-2] + layers[-1]
    if recipe.loss == "odds":
        return -(y * torch.log_softmax(found, dim=1)).sum(dim=1).mean()
    error = found[:, 0] - y
    return error.abs().mean() if recipe.loss == "l1" else (error**2).mean()


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("loss", ["l1", "l2", "odds"])
@pytest.mark.parametrize(("frequencies", "layers"), [(0, 3), (3, 3), (3, 1)])
def test_loss_and_gradient_are_those_of_torch(frequencies, layers, loss, relu, residual):
    recipe = Recipe(
        width=6, layers=layers, batch=BATCH, residual=residual, relu=relu, loss=loss, frequencies=frequencies, units=2
    )
    generator = torch.Generator().manual_seed(1)
    embedding, parts = random_parameters(recipe, CHOICES if loss == "odds" else 1, generator)
    x = torch.randn(SAMPLES, COLUMNS, generator=generator, dtype=torch.float64)
    y = torch.rand(SAMPLES, CHOICES, generator=generator, dtype=torch.float64)
    y = y / y.sum(dim=1, keepdim=True) if loss == "odds" else y[:, 0]
    step = Backpropagation(Parameters.copy_of(embedding, parts), recipe, x, y)
    for tensor in (*embedding, *parts):
        tensor.requires_grad_(True)
    for _ in range(2):  # the second batch finds the memory of the first one
        rows = torch.randperm(SAMPLES, generator=generator)[:BATCH]
        for tensor in (*embedding, *parts):
            tensor.grad = None
        expected = automatic(x[rows], y[rows], embedding, parts, recipe)
        expected.backward()
        assert step(rows) == pytest.approx(expected.item(), rel=1e-12)
        own = Parameters.copy_of([part.grad for part in embedding], [part.grad for part in parts])
        np.testing.assert_allclose(step.gradient.flat, own.flat, atol=1e-12)


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("frequencies", [0, 3])
def test_a_network_is_evaluated_with_numpy_as_it_was_trained(frequencies, relu):
    recipe = Recipe(width=6, layers=3, batch=SAMPLES, loss="l2", frequencies=frequencies, units=2, relu=relu)
    generator = torch.Generator().manual_seed(2)
    embedding, layers = random_parameters(recipe, 1, generator)
    x = torch.randn(SAMPLES, COLUMNS, generator=generator, dtype=torch.float64)
    step = Backpropagation(Parameters.copy_of(embedding, layers), recipe, x, torch.zeros(SAMPLES, dtype=torch.float64))
    arrays, periodic = [layer.numpy() for layer in layers], [part.numpy() for part in embedding]
    network = Network(
        np.zeros(COLUMNS, np.float32), np.ones(COLUMNS, np.float32), 0.0, 1.0, tuple(arrays[::2]), tuple(arrays[1::2]),
        recipe.residual, Periodic(*periodic) if periodic else None, relu,
    )  # fmt: skip
    assert step(torch.arange(SAMPLES)) == pytest.approx((network.predict(x.numpy()) ** 2).mean(), rel=1e-6)


def test_parameters_are_views_of_one_tensor():
    parameters = Parameters.copy_of([], [torch.ones(2, 3), torch.zeros(3), torch.ones(3, 1), torch.zeros(1)])
    parameters.flat.add_(1.0)
    views = [*parameters.weights, *parameters.biases]
    assert [view.unique().tolist() for view in views] == [[2.0], [2.0], [1.0], [1.0]]
    zeros = parameters.zeros()
    assert zeros.flat.tolist() == [0.0] * 13
    assert [view.shape for view in (*zeros.weights, *zeros.biases)] == [view.shape for view in views]


def test_fewer_samples_than_a_batch_are_one_batch():
    features = np.random.default_rng(0).normal(size=(10, 2))
    network = train_network(features, features[:, 0], Recipe(width=16, layers=2, steps=300, batch=64), 0)
    assert np.abs(network.predict(features) - features[:, 0]).mean() < 0.05
