"""Training of networks: same seed, same weights; a training that diverges says so; numpy evaluates what torch trained."""

import numpy as np
import pytest

from pipeline.errors import PackError, SteptimeError
from pipeline.kernels.network_training import (
    Recipe,
    minimise,
    shuffled_batches,
    train_network,
    uniform,
)
from pipeline.kernels.networks import Network

torch = pytest.importorskip("torch")

TRUE = torch.tensor([[2.0], [-1.0], [0.5]])


def line(seed, steps=300, **options):
    """Weights of a line through exact samples, fitted from random ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 3, generator=generator)
    weight, batches = uniform((3, 1), 1.0, generator), shuffled_batches(60, 16, generator)

    def loss():
        rows = next(batches)
        return ((x[rows] @ (weight - TRUE)) ** 2).mean()

    minimise(loss, [weight], steps, 0.1, **options)
    return weight.detach().numpy()


@pytest.mark.parametrize("options", [{}, {"warm_up": None}])
def test_a_line_is_found_and_the_same_seed_gives_the_same_weights(options):
    np.testing.assert_allclose(line(0, **options), TRUE.numpy(), atol=5e-3)
    np.testing.assert_array_equal(line(0, 20, **options), line(0, 20, **options))
    assert not np.array_equal(line(0, 20, **options), line(1, 20, **options))


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
def test_a_loss_that_is_no_number_stops_the_training_at_its_step(bad):
    weight, calls = torch.ones(2), []

    def loss():
        calls.append(1)
        return weight.sum() * (bad if len(calls) == 4 else 1.0)

    with pytest.raises(SteptimeError, match=r"training diverged: the loss is .* at step 4 of 9; "):
        minimise(loss, [weight], 9, 0.1)
    assert len(calls) == 4


def test_parameters_that_are_no_numbers_after_the_last_step_are_refused():
    weight = torch.zeros(1)  # the loss is 0, its gradient infinite
    with pytest.raises(SteptimeError, match=r"training diverged: parameters .* after step 1"):
        minimise(lambda: weight.abs().sqrt().sum(), [weight], 1, 0.1)


@pytest.mark.parametrize("frequencies, lost", [(0, "mean"), (4, "periodic_units")])
def test_a_network_round_trips_through_half_precision(frequencies, lost):
    features = np.random.default_rng(0).normal(0, 1, (400, 5))
    recipe = Recipe(width=32, layers=3, steps=100, frequencies=frequencies)
    network = train_network(features, features.sum(axis=1), 0, recipe)
    assert (network.periodic is not None) == bool(frequencies)
    tensors = network.tensors()
    again = Network.from_tensors(tensors).predict(features)
    np.testing.assert_allclose(network.predict(features), again, atol=0.02)
    with pytest.raises(PackError, match="contradict each other"):
        shorter = tensors["periodic_frequency"][:2] if frequencies else tensors["mean"][:2]
        Network.from_tensors(tensors | {"periodic_frequency" if frequencies else "mean": shorter})
    del tensors[lost]
    with pytest.raises(PackError, match=r"array .* is missing"):
        Network.from_tensors(tensors)
