"""The memory of a pass without gradients: what is alive at once, not all that it makes."""

import pytest
import torch
import yaml
from torch import nn

from pipeline.answers.engine import STEPS
from pipeline.answers.memory_fit import estimated_largest_batch
from pipeline.graph.capture import capture
from pipeline.graph.memory import WorkingSet
from pipeline.paths import config_dir
from pipeline.question.question import ask


def test_results_count_while_they_live_and_storages_once():
    layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(5))).to("meta")
    x = torch.empty(64, 256, device="meta")
    with torch.no_grad(), WorkingSet() as working:
        kept = layers(x)  # at most the input and the output of a layer
        kept.view(-1).relu_()
    assert working.bytes == 2 * 64 * 256 * 4
    with torch.no_grad(), WorkingSet() as working:
        held = [layers[0](x) for _ in range(3)]
        _ = layers[0].weight.t()  # a view of what is not made here
    assert working.bytes == len(held) * 64 * 256 * 4


def test_inference_needs_less_than_training_and_more_with_each_sample():
    config = yaml.safe_load((config_dir() / "model" / "resnet50.yaml").read_text())
    small, large = (capture({**config, "mode": "inference"}, size).memory.activations for size in (2, 4))
    assert small > 4 * 2 * 64 * 112 * 112  # the first images
    assert large == pytest.approx(2 * small, rel=1e-3)
    assert large < capture(config, 4).memory.activations


def test_the_largest_batch_of_inference_is_one_that_a_gpu_holds():
    found = estimated_largest_batch(ask(["gpu=H100", "model=bert_large", "model.mode=inference"]), STEPS.memory_bytes)
    assert found is not None and 100 < found < 10_000  # 13 million where inputs alone count
