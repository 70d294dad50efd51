"""Files in the forms in which others published their measurements, with invented numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, TABLE
from evaluation.published.published_steps import CONVERTED

LIGER_HEAD = (
    "kernel_name,kernel_provider,kernel_operation_mode,metric_name,x_name,x_value,"
    "y_value_50,extra_benchmark_config_str,"
    "gpu_name"
)
SIZES = '"{""B"": 4, ""T"": 8, ""D"": 768, ""dtype"": ""torch.float32""}"'
CARD = "NVIDIA A100-SXM4-80GB"
LIGER_LINES = (
    f"embedding,huggingface,forward,speed,V,1000,0.25,{SIZES},{CARD}",
    f"embedding,huggingface,full,speed,V,1000,1.0,{SIZES},{CARD}",
    f"embedding,torch_compile,forward,speed,V,1000,0.125,{SIZES},{CARD}",
    f"embedding,liger,forward,speed,V,1000,0.125,{SIZES},{CARD}",
    f"embedding,huggingface,forward,speed,V,1000,0.5,{SIZES},Some other card",
    f"embedding,huggingface,full,memory,V,1000,5.0,{SIZES},{CARD}",
    f'rms_norm,huggingface,forward,speed,H,1024,0.5,"{{""M"": 2}}",{CARD}',
)
KERNEL = {
    "kernel_name": "batched_embedding_forward_kernel_1", "batch_size": 2, "num_tables": 3,
    "num_embeddings": 500, "bag_size": 7, "embedding_dim": 32, "kernel_runtime": 12.5,
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
    return {
        "cells": [
            plain,
            *({"outputs": [{"data": {TABLE: {"data": list(table)}}}]} for table in tables),
        ]
    }


COLUMNS = (
    "table", "gpu", "gpus", "model", "precision", "batch_per_gpu", "global_batch", "value", "notes",
)  # fmt: skip
STEPS = (
    ("lambda", "RTX 3090", 1, "resnet50", "fp32/TF32", 250, 250, 500, ""),
    ("lambda", "RTX 3090", 1, "bert_large_squad", "fp16", 10, 10, 20, ""),
    ("lambda", "RTX 3090", 1, "bert_large_squad", "fp16", 10, 10, 10, ""),
    ("lambda", "RTX 3090", 1, "bert_large_squad", "fp16", 10, 10, 40, ""),
    ("lambda", "RTX 3090", 1, "bert_large_squad", "fp16", 5, 5, 1, ""),
    ("lambda", "RTX 3090", 2, "resnet50", "fp32/TF32", 250, 500, 900, ""),
    ("lambda", "LambdaCloud V100 16GB", 1, "bert_base_squad", "fp32", 20, 20, 40, ""),
    ("lambda", "some card", 1, "resnet50", "fp32", 250, 250, 500, ""),
    *(
        ("nvidia_examples", "", 1, "resnet50v1.5", precision, 256, 256, rate, section)
        for section in (
            "Training performance: NVIDIA DGX A100 (8x A100 80GB)",
            "Inference performance: NVIDIA DGX A100 (8x A100 80GB)",
        )
        for precision, rate in (("TF32", 512), ("fp16 mixed", 1024))
    ),
)
"""Rows of the converted table of steps: three runs at the usual batch size, one at another; several GPUs; an unknown card."""

FILES: dict[str, str] = {
    LIGER: "\n".join((LIGER_HEAD, *LIGER_LINES)),
    PULL_REQUEST: COMMENT,
    NOTEBOOK: json.dumps(cells([KERNEL, ADDING], [KERNEL, {"kernel_name": "sgemm"}])),
}
"""Text of each file, by its path below the datasets folder."""


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, newline="")
    (folder / CONVERTED).parent.mkdir()
    pd.DataFrame(STEPS, columns=list(COLUMNS)).to_parquet(folder / CONVERTED)
    return folder
