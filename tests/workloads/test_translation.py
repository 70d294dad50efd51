"""Translators as NVIDIA trained them: shared embeddings, smoothed labels, a normalised attention."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pipeline.errors import ConfigError
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.question.options import workload_values
from pipeline.workloads import make_step
from pipeline.workloads.translation import smoothed

SMALL = {
    "gnmt": {"width": 16, "vocabulary": 50, "seq_len": 5},
    "transformer": {"width": 16, "heads": 2, "layers": 1, "vocabulary": 50, "seq_len": 5},
}


def config(name, **options):
    return {
        **workload_values(name),
        **SMALL[name],
        **options,
    }


def parameters(name, **options):
    return sum(p.numel() for p in make_step(config(name, **options), 2, "cpu").parameters())


@pytest.mark.parametrize("name, tables", [("gnmt", 1), ("transformer", 2)])
def test_shared_embeddings_are_counted_once(name, tables):
    assert parameters(name) - parameters(name, shared_embedding=True) == tables * 50 * 16


def test_a_normalised_attention_has_a_bias_and_a_length():
    assert parameters("gnmt", normalised_attention=True) - parameters("gnmt") == 16 + 1


@pytest.mark.parametrize("name", ["gnmt", "transformer"])
@pytest.mark.parametrize("options", [{"label_smoothing": 0.1}, {"shared_embedding": True}])
def test_a_step_trains_on_the_cpu(name, options):
    step = make_step(config(name, **options), 2, "cpu")
    before = [p.detach().clone() for p in step.parameters()]
    step.run()
    assert all(torch.isfinite(p).all() for p in step.parameters())
    assert any((p != old).any() for p, old in zip(step.parameters(), before, strict=True))


def test_the_loss_with_smoothed_labels_equals_pytorchs():
    torch.manual_seed(0)
    logits = torch.randn(7, 11)
    labels = torch.randint(11, (7,))
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1)
    assert smoothed(logits, labels, 0.1) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("precision, dtype", [("pure", "fp16"), ("autocast", "fp32")])
def test_smoothing_reads_the_logits_in_fp32(precision, dtype):
    plain, smooth = (
        map_calls(
            capture(config("gnmt", label_smoothing=share, precision=precision, dtype=dtype), 4)
        )
        for share in (0.0, 0.1)
    )
    logits = 4 * 5 * 50
    softmax = smooth[
        (smooth["family"] == "softmax")
        & (smooth["op"] == "log_softmax")
        & (smooth["phase"] == "loss")
    ]
    assert list(softmax["bytes_written"]) == [4.0 * logits]
    assert list(softmax["bytes_read"]) == [logits * (2.0 if dtype == "fp16" else 4.0)]
    moved = [(table["bytes_read"] + table["bytes_written"]).sum() for table in (plain, smooth)]
    assert moved[1] > moved[0] + 4.0 * logits


@pytest.mark.parametrize("share", ["-0.1", "much"])
def test_a_share_of_smoothing_makes_sense(share):
    from pipeline.question.question import ask

    with pytest.raises(ConfigError, match=r"model\.label_smoothing"):
        ask(["gpu=V100", "model=gnmt", f"model.label_smoothing={share}"])
