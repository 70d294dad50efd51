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
    ("call_module", "transformer.wte", "[[4, 64]]", 30.0),
    ("call_function", "<built-in function add>", "[[4, 64, 1024], [4, 64, 1024]]", 30.0),
    ("call_module", "transformer.h.0.ln_1", "[[4, 64, 1024]]", 30.0),
    ("call_function", "<function softmax at 0x15552dc96d80>", "[[64, 64, 64]]", 300.0),
    ("call_module", "transformer.h.0.mlp.c_proj", "[[4, 64, 4096]]", 40.0),
    ("call_module", "transformer.ln_f", "[[4, 64, 1024]]", 30.0),
    ("call_module", "lm_head", "[[4, 64, 1024]]", 500.0),
]
SHAPES = {"[[64, 64, 64]]": "(64, 64, 64)"}
PASS = {"model": "gpt", "mode": "inf", "seq_len": 64, "batch_size": 4, "option": ""}


def _ops(gpu: str) -> pd.DataFrame:
    table = pd.DataFrame(_TABLE, columns=["op", "target", "input_shapes", "fw_latency_us"])
    table["output_shape"] = table["input_shapes"].map(SHAPES).fillna("(4, 64, 1024)")
    table.loc[table["target"] == "lm_head", "output_shape"] = "(4, 64, 50257)"
    return table.assign(gpu=gpu, **PASS)


def test_the_layer_runs_from_its_first_module_to_the_next_module_after_it() -> None:
    both = pd.concat([_ops("V100"), _ops("T4")], ignore_index=True)
    assert list(in_layer(both)) == [False, False, True, True, True, False, False] * 2


def test_a_public_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "neusight"
    folder.mkdir()
    pd.DataFrame([dict.fromkeys(PASS_COLUMNS, 1)]).to_parquet(folder / "model_latency.parquet")
    _ops("V100").drop(columns="target").to_parquet(folder / "model_op_latency.parquet")
    with pytest.raises(TableError, match=r"model_op_latency\.parquet: column target is missing; d"):
        paper_surfer(tmp_path)


def test_a_function_is_known_by_its_name_and_not_by_its_address() -> None:
    assert list(model_calls(_ops("V100"))["family"])[2:5] == ["layer_norm", "softmax", "gemm"]


@pytest.mark.skipif(not load_models(), reason="no cross-GPU models under packs/transfer")
def test_the_ops_of_the_layer_count_as_often_as_the_model_has_layers() -> None:
    calls, card = model_calls(_ops("V100")), load_gpu("P4")

    def predicted_us(layers: int) -> float:
        passes = pd.DataFrame({"gpu": ["V100", "P4"], "num_layer": layers, "fw_latency_us": 1e4})
        found = scale_models(passes.assign(**PASS), calls, card, load_models())
        assert list(found[CASE_COLUMNS].iloc[0]) == list(PASS.values())
        return found.set_index("method").loc["utilisation", "predicted_us"]

    # the head is arithmetic and the layer mostly traffic: the two do not slow down alike on a P4
    assert predicted_us(1) != pytest.approx(predicted_us(1000), rel=0.02)
