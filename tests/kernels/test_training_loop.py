"""The loop that trains all networks: same seed, same weights; a training that diverges says so."""

from functools import partial

import numpy as np
import pytest

from pipeline.errors import SteptimeError
from pipeline.kernels.training_loop import descend, minimise, shuffled_batches, uniform

torch = pytest.importorskip("torch")

from pipeline.kernels.muon import STEP_LENGTH, orthogonal  # noqa: E402

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


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"warm_up": None}, {"max_gradient_norm": 1.0}])
def test_a_line_is_found_and_the_same_seed_gives_the_same_weights(options):
    np.testing.assert_allclose(line(0, **options), TRUE.numpy(), atol=5e-3)
    np.testing.assert_array_equal(line(0, 20, **options), line(0, 20, **options))
    assert not np.array_equal(line(0, 20, **options), line(1, 20, **options))


def test_one_step_is_that_of_adamw():
    # the first step of Adam is the learning rate in the direction of the gradient's sign
    weight, free = torch.tensor([1.0, -2.0]), torch.tensor([4.0])
    gradient = torch.tensor([3.0, -0.1])
    minimise(
        lambda: (weight * gradient).sum() - free.sum(),
        [weight],
        1,
        0.01,
        weight_decay=0.5,
        undecayed=[free],
        warm_up=None,
    )
    np.testing.assert_allclose(weight.detach(), [1.0 * (1 - 0.005) - 0.01, -2.0 * (1 - 0.005) + 0.01], rtol=1e-6)
    np.testing.assert_allclose(free.detach(), [4.01], rtol=1e-6)


def test_the_rate_rises_to_its_peak_and_falls():
    weight, path = torch.zeros(1), []

    def loss():
        path.append(weight.item())
        return weight.sum()

    minimise(loss, [weight], 101, 1.0, warm_up=0.2, final_divisor=100.0)
    # with an equal gradient, steps of Adam are as long as the rate, but for the cycled momentum (up to 10 %)
    rates = -np.diff(path)
    assert 18 <= rates.argmax() <= 30 and rates.max() == pytest.approx(1.0, rel=0.1)
    assert rates[0] == pytest.approx(1 / 25, rel=0.01) and rates[-1] < 0.01


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
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


@pytest.mark.parametrize(("rows", "batch", "per_pass"), [(10, 3, 3), (10, 5, 2), (4, 9, 1), (1, 1, 1)])
def test_batches_pass_over_all_rows_in_a_new_order(rows, batch, per_pass):
    batches = shuffled_batches(rows, batch, torch.Generator().manual_seed(0))
    passes = [torch.cat([next(batches) for _ in range(per_pass)]).tolist() for _ in range(8)]
    for each in passes:
        assert len(each) == len(set(each)) == per_pass * min(batch, rows) and set(each) <= set(range(rows))
    assert rows == 1 or any(each != passes[0] for each in passes)


@pytest.mark.parametrize("factor", [1.0, float("nan")])
def test_tiny_numbers_are_zero_only_while_training_runs(factor):
    tiny, seen = torch.tensor([1e-39]), []
    weight = torch.zeros(1)

    def loss():
        seen.append((tiny * 1.0).item())
        return weight.sum() * factor

    try:
        minimise(loss, [weight], 2, 0.1)
    except SteptimeError:
        assert factor != 1.0
    assert set(seen) == {0.0} and (tiny * 1.0).item() > 0.0


def test_matrices_have_a_rate_of_their_own():
    weight, matrix, path = torch.zeros(1), torch.zeros(4, 4), []

    def gradient():
        path.append((weight.item(), matrix.norm().item()))
        weight.grad, matrix.grad = torch.ones(1), torch.eye(4)
        return 0.0

    descend(gradient, [weight], 60, 0.1, matrices=[matrix], matrix_rate=1.0, warm_up=0.5, final_divisor=100.0)
    by_adamw, by_muon = np.abs(np.diff(path, axis=0)).T
    assert by_adamw.max() == pytest.approx(0.1, rel=0.1)
    length = STEP_LENGTH * np.sqrt(4) * orthogonal(torch.eye(4)).norm().item()
    assert by_muon.max() == pytest.approx(length, rel=0.01)
    assert abs(by_adamw.argmax() - by_muon.argmax()) <= 6 and 20 <= by_muon.argmax() <= 40


def test_training_runs_on_one_thread_unless_told():
    before = torch.get_num_threads()
    one_step = partial(minimise, lambda: weight.sum(), steps=1, learning_rate=0.1)
    try:
        torch.set_num_threads(2)
        weight = torch.zeros(1)
        one_step([weight], threads=None)
        assert torch.get_num_threads() == 2
        one_step([weight])
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
