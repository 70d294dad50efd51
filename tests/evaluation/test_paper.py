"""Whole models: which ops a model stacks, and how often they count."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.surfer_pairs import (
    CASE_COLUMNS,
    PASS_COLUMNS,
    in_layer,
    model_calls,
    paper_surfer,
    scale_models,
)
from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.transfer.shipped_models import load_models

_TABLE = [
    ("call_module", "transformer.wte", "[[4, 64]]", "(4, 64, 1024)"),
    ("call_function", "<built-in function add>", "[[4, 64, 1024], [4, 64, 1024]]", "(4, 64, 1024)"),
    ("call_module", "transformer.h.0.ln_1", "[[4, 64, 1024]]", "(4, 64, 1024)"),
    ("call_function", "<function softmax at 0x15552dc96d80>", "[[64, 64, 64]]", "(64, 64, 64)"),
    ("call_module", "transformer.h.0.mlp.c_proj", "[[4, 64, 4096]]", "(4, 64, 1024)"),
    ("call_function", "<built-in function add>", "[[4, 64, 1024], [4, 64, 1024]]", "(4, 64, 1024)"),
    ("call_module", "transformer.ln_f", "[[4, 64, 1024]]", "(4, 64, 1024)"),
    ("call_module", "lm_head", "[[4, 64, 1024]]", "(4, 64, 50257)"),
]


def _ops(gpu: str, case: str = "gpt") -> pd.DataFrame:
    table = pd.DataFrame(_TABLE, columns=["op", "target", "input_shapes", "output_shape"])
    facts = {"gpu": gpu, "model": case, "mode": "inf", "seq_len": 64, "batch_size": 4, "option": ""}
    return table.assign(**facts, fw_latency_us=[30.0, 30.0, 30.0, 300.0, 40.0, 30.0, 30.0, 500.0])


def test_the_layer_runs_from_its_first_module_to_the_next_module_after_it() -> None:
    both = pd.concat([_ops("V100"), _ops("T4")], ignore_index=True)
    one = [False, False, True, True, True, True, False, False]
    assert list(in_layer(both)) == one + one


def test_a_public_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        TableError, match=r"model_latency\.parquet: no such file; download the public data"
    ):
        paper_surfer(tmp_path)
    (tmp_path / "neusight").mkdir()
    passes = pd.DataFrame([{name: 1 for name in PASS_COLUMNS}])
    passes.to_parquet(tmp_path / "neusight" / "model_latency.parquet")
    _ops("V100").drop(columns="target").to_parquet(
        tmp_path / "neusight" / "model_op_latency.parquet"
    )
    with pytest.raises(
        TableError, match=r"model_op_latency\.parquet: column target is missing; download it again"
    ):
        paper_surfer(tmp_path)


def test_a_function_is_known_by_its_name_and_not_by_its_address() -> None:
    assert list(model_calls(_ops("V100"))["family"])[2:5] == ["layer_norm", "softmax", "gemm"]


@pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")
def test_the_ops_of_the_layer_count_as_often_as_the_model_has_layers() -> None:
    facts = {"mode": "inf", "seq_len": 64, "batch_size": 4, "option": "", "fw_latency_us": 1e4}
    predicted = []
    for layers in (1, 1000):
        passes = pd.DataFrame(
            [{"gpu": gpu, "model": "gpt", "num_layer": layers, **facts} for gpu in ("V100", "P4")]
        )
        found = scale_models(passes, model_calls(_ops("V100")), load_gpu("P4"), load_models())
        assert list(found[CASE_COLUMNS].iloc[0]) == ["gpt", "inf", 64, 4, ""]
        predicted.append(found.set_index("method").loc["utilisation", "predicted_us"])
    # the head is arithmetic and the layer mostly traffic: the two do not slow down alike on a P4
    assert predicted[0] != pytest.approx(predicted[1], rel=0.02)
