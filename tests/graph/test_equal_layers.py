"""The memory need of a step of equal layers, computed from few of its layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.answers.predict_point import predict
from pipeline.config import expand
from pipeline.graph import graph_cache
from pipeline.graph.capture import capture
from pipeline.graph.equal_layers import memory_by_layers

LAYERS = {"bert_large": 5, "gpt2_large": 4, "opt_13": 3, "transformer": 3}
"""Workloads of equal layers, with fewer of them than they have, for speed."""


@pytest.mark.parametrize("attention", ["eager", "fused"])
@pytest.mark.parametrize("name", LAYERS)
def test_memory_by_layers_is_that_of_the_whole_step(name: str, attention: str) -> None:
    point = expand([f"model={name}", f"model.layers={LAYERS[name]}", f"model.attention={attention}"])[0]
    config = point.settings.model.plain()
    known = capture(config, 4)
    for size in (1, 2, 7):
        assert memory_by_layers(config, size, known) == capture(config, size).memory


def test_only_layers_that_give_the_known_memory_are_extended() -> None:
    config = expand(["model=gpt2_large", "model.layers=4"])[0].settings.model.plain()
    other = capture({**config, "layers": 5}, 4)
    assert memory_by_layers(config, 2, other) is None
    assert memory_by_layers({**config, "mode": "inference"}, 2, capture({**config, "mode": "inference"}, 4)) is None
    assert memory_by_layers({**config, "heads": 7}, 2, other) is None


def test_a_large_step_that_does_not_fit_is_captured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path))
    done: list[int] = []
    monkeypatch.setattr(graph_cache, "capture", lambda config, batch: done.append(batch) or capture(config, batch))
    found = predict("P4", model="gpt2_large", batch_size=4, model__layers=12)
    assert not found.fits and done == [4]
    config = expand(["model=gpt2_large", "model.layers=12"])[0].settings.model.plain()
    for size in range(1, 4):
        fits = graph_cache.memory_need(config, size).total <= 8e9
        assert fits == (size <= (found.largest_batch or 0))
