"""Whole steps of ResNet-50 against throughputs that NVIDIA and Lambda Labs published: a check from outside.

    python benchmarks/kernels/published_resnet.py [--split dev|report] [--set NAME=VALUE ...]

Rows of the split `dev` may set constants (those of `pipeline/kernels/tensor_convolution.py`); `report` rows never do.
Lambda ran NVIDIA's training scripts on synthetic data, which lie on the card already, and NVIDIA's loader copies beside the
step: copies of inputs are taken out of the prediction. "TF32" rows are the containers' fp32 on Ampere and newer.
`--set` tries another value of a constant.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd

from pipeline import predict
from pipeline.kernels import tensor_convolution

LAMBDA = "Lambda Labs deeplearning-benchmark, PyTorch (NGC 22.x to 24.x), NCHW, synthetic data"
NVIDIA = "NVIDIA DeepLearningExamples, ConvNets/resnet50v1.5 (NGC 21.03), one GPU"
DELL = "second H100 row of the same Lambda table (Dell server)"

TRAINING = (
    # GPU, dtype, layout, batch, images/s, split, source
    ("V100-SXM2-32GB", "fp32", "contiguous", 128, 369, "dev", LAMBDA),
    ("V100-SXM2-32GB", "fp32", "contiguous", 128, 367, "dev", NVIDIA),
    ("V100-SXM2-32GB", "fp16", "contiguous", 256, 833, "dev", LAMBDA),
    ("V100-SXM2-32GB", "fp16", "channels_last", 256, 1200, "dev", NVIDIA),
    ("V100-SXM2-32GB", "fp16", "channels_last", 256, 1156, "dev", NVIDIA),
    ("A100-PCIE-40GB", "tf32", "contiguous", 360, 882, "dev", LAMBDA),
    ("A100-PCIE-40GB", "fp16", "contiguous", 720, 1396, "dev", LAMBDA),
    ("A100-PCIE-80GB", "tf32", "contiguous", 640, 1014, "dev", LAMBDA),
    ("A100-PCIE-80GB", "fp16", "contiguous", 1280, 1527, "dev", LAMBDA),
    ("A100-SXM4-80GB", "tf32", "contiguous", 256, 938, "dev", NVIDIA),
    ("A100-SXM4-80GB", "fp16", "channels_last", 256, 2470, "dev", NVIDIA),
    ("RTX3090", "tf32", "contiguous", 224, 513, "dev", LAMBDA),
    ("RTX3090", "fp16", "contiguous", 448, 905, "dev", LAMBDA),
    ("A100-SXM4-80GB", "tf32", "contiguous", 640, 1066, "report", LAMBDA),
    ("A100-SXM4-80GB", "fp16", "contiguous", 1280, 1582, "report", LAMBDA),
    ("A10", "tf32", "contiguous", 224, 349, "report", LAMBDA),
    ("A10", "fp16", "contiguous", 448, 638, "report", LAMBDA),
    ("H100-PCIe", "tf32", "contiguous", 640, 1197, "report", LAMBDA),
    ("H100-PCIe", "fp16", "contiguous", 1280, 1866, "report", LAMBDA),
    ("H100", "tf32", "contiguous", 640, 1753, "report", LAMBDA),
    ("H100", "tf32", "contiguous", 640, 1893, "report", DELL),
    ("H100", "fp16", "contiguous", 1280, 2616, "report", LAMBDA),
    ("H100", "fp16", "contiguous", 1280, 2776, "report", DELL),
)

INFERENCE = (
    # GPU, dtype, layout, batch, ms
    ("V100-SXM2-32GB", "fp32", "contiguous", 32, 29.37),
    ("V100-SXM2-32GB", "fp32", "contiguous", 256, 214.48),
    ("V100-SXM2-32GB", "fp16", "channels_last", 32, 15.84),
    ("V100-SXM2-32GB", "fp16", "channels_last", 256, 84.14),
    ("T4", "fp32", "contiguous", 32, 77.62),
    ("T4", "fp32", "contiguous", 256, 635.98),
    ("T4", "fp16", "channels_last", 32, 29.54),
    ("T4", "fp16", "channels_last", 256, 225.95),
)
"""NVIDIA's inference rows, all of the split `report` (the V100 is the 16 GB card of the same chip)."""


def rows() -> pd.DataFrame:
    """Every published step: `measured_ms` and what it ran."""
    train = [(*row[:4], "train", 1e3 * row[3] / row[4], *row[5:]) for row in TRAINING]
    infer = [(*row[:4], "inference", row[4], "report", NVIDIA) for row in INFERENCE]
    names = ["gpu", "dtype", "layout", "batch", "mode", "measured_ms", "split", "source"]
    return pd.DataFrame([*train, *infer], columns=names)


def predicted(row: pd.Series) -> dict[str, float | bool]:
    """Steptime's step for one row, without the copies of inputs."""
    options = {"model.dtype": row["dtype"], "model.memory_format": row["layout"], "model.mode": row["mode"]}
    found = predict(gpu=row["gpu"], model="resnet50", batch_size=int(row["batch"]), **options)
    families = dict(found.families)
    copies = families.get("memcpy_h2d", 0.0)
    low, middle, high = ((value - copies) / 1e3 for value in (found.p10_us, found.predicted_us, found.p90_us))
    convolutions = sum(value for name, value in families.items() if name.startswith("conv2d")) / 1e3
    return {"predicted_ms": middle, "error_percent": 100.0 * (middle / row["measured_ms"] - 1.0),
            "convolutions_ms": convolutions, "implied_ms": row["measured_ms"] - middle + convolutions,
            "inside": low <= row["measured_ms"] <= high, "p10": low / middle, "p90": high / middle}  # fmt: skip


def main() -> None:
    """Print the table, and the error by split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("dev", "report"))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    for text in options.set:
        name, value = text.split("=")
        setattr(tensor_convolution, name, float(value))
    table = rows()
    table = table if options.split is None else table[table["split"] == options.split]
    table = table.join(pd.DataFrame([predicted(row) for _, row in table.iterrows()], index=table.index))
    shown = table.drop(columns="source").assign(layout=table["layout"].map({"contiguous": "NCHW"}).fillna("NHWC"))
    print(shown.round(2).to_string(index=False))
    for keys, group in table.groupby(["split", "mode", "dtype"]):
        mean = float(np.mean(np.abs(group["error_percent"])))
        inside = int(group["inside"].sum())
        print(f"{' '.join(keys):24} {len(group):2} rows, mean error {mean:4.1f} %, {inside} inside p10 to p90")


if __name__ == "__main__":
    main()
