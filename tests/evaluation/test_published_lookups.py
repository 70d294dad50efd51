"""The reader of published lookups: small invented numbers in the published forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, TABLE, read_lookups
from pipeline.errors import TableError

HEAD = "kernel_name,kernel_provider,kernel_operation_mode,metric_name,x_name,x_value,y_value_50,extra_benchmark_config_str,gpu_name"
SIZES = '"{""B"": 4, ""T"": 8, ""D"": 768, ""dtype"": ""torch.float32""}"'
CARD = "NVIDIA A100-SXM4-80GB"
LINES = (
    f"embedding,huggingface,forward,speed,V,1000,0.25,{SIZES},{CARD}",
    f"embedding,huggingface,full,speed,V,1000,1.0,{SIZES},{CARD}",
    f"embedding,torch_compile,forward,speed,V,1000,0.125,{SIZES},{CARD}",
    f"embedding,liger,forward,speed,V,1000,0.125,{SIZES},{CARD}",
    f"embedding,huggingface,forward,speed,V,1000,0.5,{SIZES},Some other card",
    f"embedding,huggingface,full,memory,V,1000,5.0,{SIZES},{CARD}",
    f'rms_norm,huggingface,forward,speed,H,1024,0.5,"{{""M"": 2}}",{CARD}',
)
KERNEL = {
    "kernel_name": "batched_embedding_forward_kernel_1", "batch_size": 2, "num_tables": 3, "num_embeddings": 500,
    "bag_size": 7, "embedding_dim": 32, "kernel_runtime": 12.5,
}  # fmt: skip
ADDING = KERNEL | {"kernel_name": "batched_embedding_backward_sgd_kernel_1", "kernel_runtime": 50}
COMMENT = """An invented table:
|num_tokens|feature size|cuda kernel|thrust  |speedup|
|----------|------------|-----------|--------|-------|
|1024      |64          |7.5E-05    |0.0002  |2.84   |
|1024      |8192        |0.0009     |0.001   |1.09   |
"""


def cells(*tables):
    plain = {"source": ["x = 1"], "outputs": [{"output_type": "stream", "text": ["5"]}]}
    return {"cells": [plain, *({"outputs": [{"data": {TABLE: {"data": list(table)}}}]} for table in tables)]}


def write(folder: Path, lines=LINES, notebook=None, comment=COMMENT) -> Path:
    notebook = cells([KERNEL, ADDING], [KERNEL, {"kernel_name": "sgemm"}]) if notebook is None else notebook
    for name, text in ((LIGER, "\n".join((HEAD, *lines))), (NOTEBOOK, json.dumps(notebook)), (PULL_REQUEST, comment)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_each_source_is_read_in_its_form(tmp_path):
    rows = read_lookups(write(tmp_path)).set_index("op")
    assert rows.index.tolist() == ["gather_2024", "dense", "gather", "fused", "fused_atomic", "dense_few"]
    assert rows["measured_us"].tolist() == pytest.approx([250.0, 750.0, 125.0, 12.5, 50.0, 75.0])
    assert rows.loc["gather", ["gpu", "B", "E", "L", "D"]].tolist() == ["A100-SXM4-80GB", 32, 1000, 1, 768]
    assert rows.loc["fused", ["gpu", "B", "T", "E", "L", "D"]].tolist() == ["V100", 2, 3, 500, 7, 32]
    assert rows.loc["dense_few", ["B", "D"]].tolist() == [1024, 64]
    assert not rows["seen"].any()


def test_the_widths_in_view_are_marked(tmp_path):
    rows = read_lookups(write(tmp_path, [line.replace("768", "4096") for line in LINES]))
    assert rows.loc[rows["source"] == "liger", "seen"].all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lines": [LINES[-1]]}, "has no embedding on"),
        ({"lines": [LINES[0].replace("{", "")]}, "not Liger's"),
        ({"lines": [LINES[0], LINES[1].replace("1.0,", "0.1,")]}, "is not positive"),
        ({"notebook": cells()}, "has no printed table"),
        ({"notebook": cells([{"kernel_name": KERNEL["kernel_name"]}])}, "not the expected notebook"),
        ({"notebook": []}, "not the expected notebook"),
        ({"comment": "|num_tokens|feature size|"}, "has no table"),
        ({"comment": COMMENT.replace("7.5E-05", "7.5E-")}, "not a positive number"),
        ({"comment": COMMENT.replace("|64 ", "|6.4")}, "not a positive number"),
    ],
)
def test_a_file_with_other_contents_is_refused(tmp_path, values, message):
    with pytest.raises(TableError, match=message):
        read_lookups(write(tmp_path, **values))


@pytest.mark.parametrize("name", [LIGER, NOTEBOOK, PULL_REQUEST])
def test_a_missing_file_is_named(tmp_path, name):
    (write(tmp_path) / name).unlink()
    with pytest.raises(TableError, match=f"{name}: no such file"):
        read_lookups(tmp_path)
