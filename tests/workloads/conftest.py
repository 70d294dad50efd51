"""A network that is captured fast, and a cache of a test's own."""

from pathlib import Path

import pytest


@pytest.fixture
def shallow(monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-50 with each kind of layer once: it is captured four times as fast."""
    monkeypatch.setattr("pipeline.workloads.vision.RESNET50", ((1, 1, 1, 1), True, 1, 64))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
