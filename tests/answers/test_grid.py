"""A grid has the numbers of single predictions, and a point that cannot be predicted does not end it."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from pipeline import predict, predict_grid
from pipeline.answers.engine import engine, in_order
from pipeline.errors import SteptimeWarning
from pipeline.question.question import expand

RELATIVE = 1e-9
"""Largest relative difference between a grid and single predictions."""

GRIDS = [
    # packs, a GPU with the same chip, cross-GPU models; bf16 on GPUs that lack it
    "gpu=V100,A100,RTX4090 model=dlrm_default,dlrm_small batch_size=16,64",
    "gpu=V100,L4,H100 model=bert_large model.layers=1 batch_size=128 model.dtype=bf16",
    # altered figures: each value is a GPU of its own
    "gpu=V100,L4 model=dlrm_default batch_size=16 gpu.dram_gb_per_s=700,1400",
    # other methods: formulas alone, a faster host, CUDA graphs, the published walk
    "gpu=V100,T4 model=dlrm_default batch_size=64 kernels=auto,roofline",
    "gpu=V100 model=dlrm_default overheads.host_scale=0.5,1 predict.cuda_graph=false,true",
    "gpu=V100 model=dlrm_default,dcgan predict.critical_path=published predict.draws=64",
    # too large for the GPU: the largest batch and the GPUs that hold it
    "gpu=P4,T4 model=dcgan batch_size=16384",
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


@pytest.mark.parametrize("overrides", GRIDS)
def test_a_grid_has_the_numbers_of_single_predictions(overrides: str) -> None:
    points = expand(overrides.split())
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


def test_a_grid_is_a_table_with_a_row_per_point_also_where_one_cannot_be_predicted() -> None:
    with pytest.warns(SteptimeWarning, match="V100 has no bf16"):
        table = predict_grid(
            gpu="P100,V100", model="dlrm_small", batch_size="64,128", model__dtype="bf16"
        )
    assert list(table["gpu"]) == ["P100", "P100", "V100", "V100"]
    assert list(table["batch_size"]) == [64, 128] * 2
    assert list(table["unpredicted"].notna()) == [True, True, False, False]
    assert "bf16" in table["unpredicted"].iloc[0] and pd.isna(table["predicted_us"].iloc[0])
    with pytest.warns(SteptimeWarning, match="V100 has no bf16"):
        alone = predict("V100", "dlrm_small", batch_size=128, model__dtype="bf16")
    last, told = table.iloc[3], alone.as_dict()
    assert [last["predicted_us"], last["p90_us"], last["families_us.gemm"]] == pytest.approx(
        [told["predicted_us"], told["p90_us"], told["families_us"]["gemm"]], rel=RELATIVE
    )
    assert (last["bound"], last["host"]) == (told["bound"], told["host"])
