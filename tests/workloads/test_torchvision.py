"""The convolutional networks against torchvision's, where a torchvision for this torch is installed."""

from __future__ import annotations

from types import ModuleType

import pandas as pd
import pytest

from evaluation.checks.sequence_match import top_level_names
from pipeline.as_on_cuda.torchvision_operators import declare_torchvision_operators
from pipeline.graph.capture import capture
from pipeline.graph.device_calls import map_calls
from pipeline.schemas import DIMS
from pipeline.workloads import vision
from tests.workloads.small import config_of

CALL = ["family", "op", "phase", "dtype", *DIMS, "flops", "bytes_read", "bytes_written"]


@pytest.fixture(scope="module")
def models() -> ModuleType:
    """torchvision's models. A build for another torch raises RuntimeError when it is imported."""
    declare_torchvision_operators()
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision is not at hand: {str(error).splitlines()[0]}")
    return models


def counted(name: str, **changes: object) -> tuple[pd.Series, pd.Series]:
    """How often each operator and each device call of a training step occurs."""
    graph = capture(config_of(name, **changes), 2)
    return pd.Series(top_level_names(graph)).value_counts(), map_calls(graph)[CALL].astype(
        str
    ).value_counts()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("resnet50", {"mode": "inference"}),
        ("inception_v3", {"mode": "inference"}),
        pytest.param("resnet50", {}, marks=pytest.mark.nightly),
        pytest.param(
            "resnet50",
            {"dtype": "fp16", "memory_format": "channels_last"},
            marks=pytest.mark.nightly,
        ),
        pytest.param("inception_v3", {}, marks=pytest.mark.nightly),
        pytest.param(
            "inception_v3",
            {"dtype": "fp16", "memory_format": "channels_last"},
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_steps_equal_those_of_torchvision(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, object]
) -> None:
    ours = counted(name, **changes)
    theirs_built = []

    def of_torchvision(*arguments: object) -> object:
        options = {} if name == "resnet50" else {"init_weights": False}
        theirs_built.append(getattr(models, name)(num_classes=arguments[-1], **options))
        return theirs_built[-1]

    monkeypatch.setattr(vision, "resnet", of_torchvision)
    monkeypatch.setattr(vision, "InceptionV3", of_torchvision)
    theirs = counted(name, **changes)
    assert theirs_built and type(theirs_built[0]).__module__.startswith("torchvision.")
    for own, other in zip(ours, theirs, strict=True):
        assert own.to_dict() == other.to_dict()
