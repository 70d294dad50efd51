"""A grid has the numbers of single predictions, and a point that cannot be predicted does not end it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline import predict, predict_grid
from pipeline.answers import engine as engine_module
from pipeline.answers.engine import engine, in_order
from pipeline.answers.kernel_predictor import TIMES
from pipeline.errors import SteptimeWarning
from pipeline.question.question import expand
from tests.kernels.shipped import shipped

RELATIVE = 1e-9
"""Largest relative difference between a grid and single predictions."""

GRIDS = [
    # packs, a GPU with the same chip, cross-GPU models; bf16 and TF32 on GPUs that lack them
    ["gpu=V100,A100,RTX4090", "model=dlrm_default,dcgan", "batch_size=16,48"],
    ["gpu=V100,L4,H100", "model=bert_large", "model.layers=2", "batch_size=4", "model.dtype=bf16"],
    ["gpu=V100,A100", "model=gnmt", "batch_size=8,16"],
    # altered figures: each value is a GPU of its own
    [
        "gpu=V100,L4",
        "model=dcgan,dlrm_default",
        "batch_size=16",
        "gpu.dram_gb_per_s=700,1400",
    ],
    # other methods: formulas alone, the host's own statistics, a faster host, other draws, CUDA graphs
    ["gpu=V100,T4", "model=dlrm_default", "batch_size=64,2048", "kernels=auto,roofline"],
    [
        "gpu=V100",
        "model=dlrm_default",
        "batch_size=256",
        "overheads.host_scale=0.5,1",
        "predict.draws=50",
    ],
    ["gpu=V100,A100", "model=dlrm_default", "batch_size=256", "predict.cuda_graph=true"],
    [
        "gpu=V100",
        "model=dlrm_default,dcgan",
        "batch_size=16",
        "predict.critical_path=published",
        "predict.draws=64",
    ],
    # too large for the GPU: the largest batch and the GPUs that hold it
    ["gpu=P4,T4", "model=resnet50", "batch_size=512"],
]


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Equal keys, texts and numbers; numbers to `RELATIVE`."""
    if isinstance(wanted, dict):
        assert set(found) == set(wanted), where
        for key in wanted:
            assert_same(found[key], wanted[key], f"{where}/{key}")
    elif isinstance(wanted, float) and not isinstance(wanted, bool):
        assert math.isclose(found, wanted, rel_tol=RELATIVE, abs_tol=1e-12), (
            f"{where}: {found!r}, alone {wanted!r}"
        )
    else:
        assert found == wanted, where


@pytest.mark.parametrize("overrides", GRIDS, ids=lambda texts: " ".join(texts))
def test_a_grid_has_the_numbers_of_single_predictions(overrides: list[str]) -> None:
    points = expand(overrides)
    answers = in_order(points, engine(None).predict(points))
    assert len(points) > 1 and [answer.question for answer in answers] == points
    for point, answer in zip(points, answers, strict=True):
        alone = engine(None).predict_one(point).whole()
        assert answer.prediction is not None
        assert_same(
            answer.prediction.as_dict(),
            alone.as_dict(),
            f"{point.gpu.name} {point.model} {point.batch_size}",
        )
        assert answer.prediction.overrides == alone.overrides


def test_the_size_of_the_tables_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    points = expand(["gpu=V100,L4", "model=dlrm_default,dcgan", "batch_size=16,48"])
    together = in_order(points, engine(None).predict(points))
    monkeypatch.setattr(engine_module, "CALLS_AT_ONCE", 1)
    apart = in_order(points, engine(None).predict(points))
    for one, other in zip(together, apart, strict=True):
        assert one.prediction is not None and other.prediction is not None
        assert_same(one.prediction.as_dict(), other.prediction.as_dict())


def test_a_grid_is_a_table_with_a_row_per_point() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SteptimeWarning)
        table = predict_grid(
            gpu="V100,A100", model="dlrm_default", batch_size="512,1024", model__embedding="sparse"
        )
    assert list(table["gpu"]) == ["V100", "V100", "A100-PCIE-40GB", "A100-PCIE-40GB"]
    assert list(table["batch_size"]) == [512, 1024] * 2
    assert table["unpredicted"].isna().all() and table["predicted_us"].notna().all()
    alone = predict("A100", batch_size=1024, model__embedding="sparse")
    assert table["predicted_us"].iloc[3] == pytest.approx(alone.predicted_us, rel=RELATIVE)
    for key, value in alone.as_dict().items():
        for name, each in value.items() if isinstance(value, dict) else [("", value)]:
            column = f"{key}.{name}" if name else key
            found = table[column].iloc[3] if column in table else None
            if each is None:
                assert pd.isna(found), key
            else:
                assert found == (
                    pytest.approx(each, rel=RELATIVE) if isinstance(each, float) else each
                ), key


def test_a_point_that_cannot_be_predicted_does_not_end_the_grid() -> None:
    """PyTorch refuses bf16 products on Pascal, and a variant that was not fitted concerns its GPU alone."""
    with pytest.warns(SteptimeWarning, match="V100 has no bf16"):
        table = predict_grid(
            gpu="P100,V100", model="dlrm_small", batch_size=64, model__dtype="bf16"
        )
    assert list(table["unpredicted"].notna()) == [True, False]
    assert "bf16" in table["unpredicted"].iloc[0] and pd.isna(table["predicted_us"].iloc[0])
    unfitted = predict_grid(gpu="V100", batch_size=64, kernels="auto,mlp_paper")
    assert list(unfitted["unpredicted"].notna()) == [False, True]


@pytest.mark.parametrize("gpu", ["V100", "T4"])
def test_a_call_has_one_time_whatever_calls_are_beside_it(gpu: str) -> None:
    """Networks are evaluated in float64: in float32 a row depends on the rows beside it by more than 1e-9."""
    predictor = shipped(gpu)
    rng = np.random.default_rng(0)
    sizes = {
        name: np.exp(rng.uniform(np.log(8), np.log(4096), 300)).astype(int)
        for name in ("M", "N", "K")
    }
    calls = pd.DataFrame(
        {"family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "B": 1, **sizes}
    )
    together = predictor.predict(calls)
    for rows in (slice(0, 1), slice(7, 12), slice(100, 233)):
        alone = predictor.predict(calls[rows])
        for name in TIMES:
            np.testing.assert_allclose(alone[name], together[name][rows], rtol=1e-11)
