"""Files in the forms in which others published their measurements, with invented numbers."""

from __future__ import annotations

import json
from pathlib import Path

from evaluation.published.published_lookups import LIGER, NOTEBOOK, PULL_REQUEST, TABLE

HEADER = (
    "name_gpu,num_gpu,watt,price,ssd,bert_base_squad,bert_large_squad,gnmt,resnet50,"
    "tacotron2,waveglow\r\n"
)
THROUGHPUT = (
    "RTX 3090,1,350,2750,1,80,20,1,500,1,1\r\nLambdaCloud 1x V100 16GB,1,300,9,1,40,10,1,0,1,1\r\n"
)
BATCH = (
    "RTX 3090,1,350,2750,1,40,10,1,250,1,1\r\nLambdaCloud 1x V100 16GB,1,300,9,1,20,5,1,128,1,1\r\n"
)

RESNET_PAGE = """# ResNet-50

##### Inference performance: NVIDIA T4

###### FP32 Inference Latency

| **Batch Size** | **Throughput Avg** | **Latency Avg** | **Latency 95%** |
|:--------------:|:------------------:|:---------------:|:---------------:|
|       1        |      90 img/s      |    11.5 ms      |    12.5 ms      |
|       32       |     400 img/s      |     80 ms       |    81.5 ms      |

###### Mixed Precision Inference Latency

| **Batch Size** | **Throughput Avg** | **Latency Avg** | **Latency 95%** |
|:--------------:|:------------------:|:---------------:|:---------------:|
|       32       |     1000 img/s     |    32.25 ms     |    33.5 ms      |

##### Inference performance: some other card

###### FP32 Inference Latency

|       32       |     1000 img/s     |    32.25 ms     |    33.5 ms      |
"""

FIRST = """##### Training performance: NVIDIA DGX-1 (8x V100 32G)

| GPUs   | Batch size / GPU   | Throughput - FP32    | Throughput - mixed precision    | Throughput speedup |
|----|---|---|---|---|
| 1 | 32k |  500k | 1000k | 2.0 |
"""
SECOND = """##### Training performance: NVIDIA DGX A100 (8x A100 40GB)

| GPUs   | Model size    | Batch size / GPU   | Throughput - TF32    | Throughput - mixed precision    | speedup
|----:|----|----|---:|---:|---:|
| 8 | large | 64k | 9,000,000 | 9,000,000 | 1.0 |
| 1 | small | 32k | 2,000,000 | 4,000,000 | 2.0 |

##### Training performance: NVIDIA DGX-2 (16x V100 32GB)

| 1 | small | 32k | 2,000,000 | 4,000,000 | 2.0 |
"""
TD = '<td style="text-align: right;">{}</td>'


def latencies(*rows: tuple[str, ...]) -> str:
    lines = ["<tr>" + "".join(TD.format(cell) for cell in row) + "</tr>" for row in rows]
    head = (
        "##### Inference performance: NVIDIA DGX-1 (1x V100"
        " 32GB)\n\n<tr><td><b>FP32</b></td></tr>\n"
    )
    return head + "\n".join(lines)


LAST = SECOND.replace("40GB", "80GB") + latencies(
    ("4096", "1", "0.001", "1", "0.004", "1", "0.003", "1", "0.004"),
    (" 512", "1", "0.0005", "1", "0.002", "1", "0.002", "1", "0.003"),
    ("2", "1", "0.0001", "1", "0.0015", "1", "0.001", "1", "0.002"),
)
SPEC = """channel_spec:
  categorical: [cat_0.bin, cat_1.bin, cat_10.bin]
feature_spec:
  cat_0.bin: {cardinality: 30, dtype: int8}
  cat_1.bin: {cardinality: 10, dtype: int8}
  cat_10.bin: {cardinality: 20, dtype: int8}
"""

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


ARGUMENTS = (
    "0: Run arguments: Namespace(batching='bucketing', math='{math}', train_batch_size={batch},"
    " val_batch_size=64)\n"
)
LINE = (
    "0: TRAIN [{epoch}][{step}/40]\tTime 0.7{step} ({mean})\tData 2e-04 (2e-04)\tTok/s 1000"
    " (900)\tLoss/tok 1.0 (1.0)\n"
)
END = "0: VALIDATION [0][10/80]\tTime 0.084 (0.103)\tData 1e-03 (1e-03)\n"

TRANSFORMER_PAGE = """##### Training performance: NVIDIA DGX A100 (8x A100 40GB)

| GPUs   | Batch size / GPU   | Throughput - TF32    | Throughput - mixed precision |
|--------|--------------------|----------------------|------------------------------|
| 8      | 1000               | 70000                | 140000                       |
| 1      | 1000               | 10000                | 20000                        |

##### Training performance: NVIDIA DGX-1 (8x V100 16GB)

| 1      | 400/200            | 1000                 | 4000                         |

##### Training performance: another machine

| 1      | 400/200            | 1                    | 1                            |
"""


def log(math: str, batch: object, lines: str) -> str:
    return ARGUMENTS.format(math=math, batch=batch) + lines + END


TWO_EPOCHS = "".join(
    LINE.format(epoch=epoch, step=step, mean=f"0.{epoch}{step}")
    for epoch in (0, 1)
    for step in (10, 30)
)
RESNET, CRITEO, TRANSFORMER = (
    "nvidia/resnet50v1.5-README.md",
    "nvidia/dlrm-criteo_f15.yaml",
    "nvidia/transformer-README.md",
)
RATES, SIZES_OF_BATCHES = (
    "lambda/pytorch-train-throughput-fp16.csv",
    "lambda/pytorch-train-bs-fp16.csv",
)
GNMT = "lambda/results/3090_v1/PyTorch_gnmt_FP32/log.txt"


FILES: dict[str, str] = {
    CRITEO: SPEC,
    RESNET: RESNET_PAGE,
    TRANSFORMER: TRANSFORMER_PAGE,
    "nvidia/dlrm-README-2020-04.md": FIRST,
    "nvidia/dlrm-README-2020-08.md": SECOND,
    "nvidia/dlrm-README-2021-10.md": LAST,
    LIGER: "\n".join((LIGER_HEAD, *LIGER_LINES)),
    PULL_REQUEST: COMMENT,
    NOTEBOOK: json.dumps(cells([KERNEL, ADDING], [KERNEL, {"kernel_name": "sgemm"}])),
    RATES: HEADER + THROUGHPUT,
    RATES.replace("fp16", "fp32"): HEADER + THROUGHPUT,
    SIZES_OF_BATCHES: HEADER + BATCH,
    SIZES_OF_BATCHES.replace("fp16", "fp32"): HEADER + BATCH,
    "lambda/results/LambdaCloud_V100_16GB_v1/PyTorch_gnmt_FP32/log.txt": log(
        "fp32", 128, LINE.format(epoch=0, step=30, mean="0.500")
    ),
    GNMT: log("fp32", 256, TWO_EPOCHS),
    "lambda/results_v2/LambdaOD_test_1xB200_192GB_somewhere_v2/PyTorch_gnmt_FP16/log.txt": log(
        "fp16", 512, TWO_EPOCHS
    ),
    "lambda/results/another_v1/PyTorch_gnmt_FP16/log.txt": log("fp16", 512, TWO_EPOCHS),
}
"""Text of each file, by its path below the datasets folder."""


def write(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, newline="")
    return folder
