"""Translators as NVIDIA trained them: shared embeddings, smoothed labels, a normalised attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pipeline.errors import ConfigError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.workloads import make_step
from pipeline.workloads.translation import smoothed
from tests.workloads.small import config_of

SMALL = {
    "gnmt": {"width": 16, "vocabulary": 50, "seq_len": 5},
    "transformer": {"width": 16, "heads": 2, "layers": 1, "vocabulary": 50, "seq_len": 5},
}


def config(name, **options):
    return config_of(name, **{**SMALL[name], **options})


@pytest.mark.parametrize(
    "name, option, more",
    [
        ("gnmt", "shared_embedding", -50 * 16),
        ("transformer", "shared_embedding", -2 * 50 * 16),
        ("gnmt", "normalised_attention", 16 + 1),  # a bias and a length
    ],
)
def test_parameters_follow_the_options(name, option, more):
    plain, other = (
        make_step(config(name, **{option: value}), 2, "meta").parameters_bytes
        for value in (False, True)
    )
    assert other - plain == 4 * more


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
def test_a_step_trains_on_the_cpu(name):
    step = make_step(config(name, label_smoothing=0.1, shared_embedding=True), 2, "cpu")
    before = [p.detach().clone() for p in step.parameters()]
    step.run()
    assert all(torch.isfinite(p).all() for p in step.parameters())
    assert not all(map(torch.equal, before, step.parameters()))


def test_the_loss_with_smoothed_labels_equals_pytorchs():
    torch.manual_seed(0)
    logits = torch.randn(7, 11)
    labels = torch.randint(11, (7,))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    assert smoothed(logits, labels, 0.1) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize(
    "precision, dtype, size", [("pure", "fp16", 2.0), ("autocast", "fp32", 4.0)]
)
def test_smoothing_reads_the_logits_in_fp32(precision, dtype, size):
    given = config("gnmt", label_smoothing=0.1, precision=precision, dtype=dtype)
    softmax = map_calls(capture(given, 4)).query("op == 'log_softmax' and phase == 'loss'")
    logits = 4 * 5 * 50
    moved = softmax[["bytes_read", "bytes_written"]].values.tolist()
    assert moved == [[size * logits, 4.0 * logits]]


@pytest.mark.parametrize("share", ["-0.1", "much"])
def test_a_share_of_smoothing_makes_sense(share):
    from pipeline.question.question import ask

    with pytest.raises(ConfigError, match=r"model\.label_smoothing"):
        ask(["gpu=V100", "model=gnmt", f"model.label_smoothing={share}"])
