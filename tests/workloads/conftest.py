"""Networks that are captured fast, steps that are captured once, and a cache of a test's own."""

from pathlib import Path

import pytest

from pipeline.graph import step_store
from pipeline.workloads import vision


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("STEPTIME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shallow(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-50 and Inception v3 with each kind of layer once or twice: they are captured up to four times as fast.

    Other tests must not find them in a cache.
    """
    monkeypatch.setattr(vision, "RESNET50", ((1, 1, 1, 1), True, 1, 64))

    class Inception(vision.InceptionV3):
        def __init__(self, classes: int) -> None:
            super().__init__(classes)
            del self.middle[5:], self.middle[2], self.late[2]

    monkeypatch.setattr(vision, "InceptionV3", Inception)


@pytest.fixture
def no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch size is captured, and no other (`test_batch_line.py` tests what is computed instead)."""
    monkeypatch.setattr(step_store, "_may_have_line", lambda config: False)
