"""`model.dtype=default`: what an unmodified script does. Convolutions may run in TF32, products may not."""

from __future__ import annotations

import pytest

from pipeline import predict
from pipeline.errors import ConfigError
from pipeline.graph.device_calls import map_calls
from pipeline.graph.step_store import StepStore
from pipeline.question.question import ask

SMALL = ["model=timm", "model.name=test_resnet", "batch_size=4"]


@pytest.mark.parametrize(
    ("gpu", "dtype", "convolutions", "products"),
    [
        ("A100", "default", "tf32", "fp32"),
        ("A100", "fp32", "fp32", "fp32"),
        ("A100", "tf32", "tf32", "tf32"),
        ("V100", "default", "fp32", "fp32"),
        ("V100", "tf32", "fp32", "fp32"),
    ],
)
def test_convolutions_and_products(gpu: str, dtype: str, convolutions: str, products: str) -> None:
    question = ask([f"gpu={gpu}", *SMALL, f"model.dtype={dtype}"])
    calls = map_calls(StepStore().graph(question), question.gpu)
    found = calls.groupby("family")["dtype"].agg(set)
    assert found["conv2d_forward"] == {convolutions} and found["gemm"] == {products}


def test_it_is_the_default_and_needs_no_note() -> None:
    assert ask(["gpu=A100", *SMALL]).workload["dtype"] == "default"
    assert ask(["gpu=A100", "model=resnet50", "model.dtype=default"]).variant == "default"
    plain, forced = (
        predict("V100", "dcgan", batch_size=4, model__width=4, **options)
        for options in ({}, {"model__dtype": "tf32"})
    )
    assert not plain.warnings and plain.as_dict()["dtype"] == "default"
    assert any("no TF32" in text for text in forced.warnings)


def test_a_list_of_rows_has_as_many_tables() -> None:
    with pytest.raises(ConfigError, match=r"model__rows lists 3; give model__tables=3 too"):
        predict("V100", "dlrm_default", model__rows=[10, 20, 30], model__tables=2)
