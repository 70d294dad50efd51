"""NVIDIA's fine-tuning of BERT, as the benchmark of published steps runs it."""

import pytest
import torch
from torch import nn

from evaluation.workloads import squad_step


def test_plain_adam_moves_weights_and_biases_as_written() -> None:
    weight, bias = nn.Parameter(torch.full((2, 2), 3.0)), nn.Parameter(torch.tensor([1.0]))
    weight.grad, bias.grad = torch.full((2, 2), 4.0), torch.tensor([0.5])
    squad_step.PlainAdam([weight, bias]).step()
    # the weight's gradient has the norm 8 and is clipped to 1; neither moment is corrected for its start
    update = 0.1 * 0.5 / ((0.001 * 0.5**2) ** 0.5 + 1e-6)
    decayed = 3.0 - squad_step.RATE * (update + squad_step.DECAY * 3.0)
    assert weight.detach().flatten().tolist() == pytest.approx([decayed] * 4)
    assert bias.item() == pytest.approx(1.0 - squad_step.RATE * update)


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", True), ("fp32", False), ("fp16", False)])
def test_a_step_updates_the_weights_of_the_model(
    monkeypatch: pytest.MonkeyPatch, dtype: str, zero: bool
) -> None:
    monkeypatch.setitem(squad_step.SIZES, "tiny", (32, 1, 2))
    monkeypatch.setattr(squad_step, "TOKENS", 8)
    config = {"dtype": dtype, "mode": "train", "optimizer": "none"}
    torch.manual_seed(0)
    step = squad_step.make_step(config | {"options": {"size": "tiny", "zero": zero}}, 2, "cpu")
    for tensor in step.pool[0]:
        tensor.zero_()
    half = step.modules[0].out.weight
    assert half.dtype == {"fp16": torch.float16, "fp32": torch.float32}[dtype]
    for number in range(2):  # the second adds to what the first left, or starts anew
        before = half.detach().clone()
        step.run(number)
        assert not torch.equal(before, half)
    assert (half.grad is not None) == zero and not (zero and half.grad.any())
