"""Compares predictions of a GPU without its own models with the kernels that a campaign measured on it.

    python benchmarks/kernels/unmeasured.py [--gpu H100] [--half report]

The GPU is predicted from its datasheet alone, as a card that nobody measured: by cross-GPU models and physics. Constants were
set on the half `development` of the shapes, by a hash of family and dims; the other half is `report`.
"""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import gmae
from pipeline.measured.campaign_reader import read_samples
from pipeline.paths import measurements_dir

HALVES = ("development", "report")

SPLIT_DIMS = (
    "B", "M", "N", "K", "H", "E", "T", "L", "D", "F", "C", "HW", "bytes", "inputs", "outputs",
    "tensors", "in_channels", "out_channels", "kernel_size", "input_size", "stride", "padding",
    "groups", "I", "layers",
)  # fmt: skip
"""Dims that tell the shapes of a campaign apart, in the order of the hash."""

CHOSEN = '{"chosen": true, '
"""A campaign times attention as PyTorch chooses its kernel."""


def half_of(samples: pd.DataFrame) -> pd.Series:
    """The half of each sample: whether the first byte of the SHA-256 of its family and dims is odd."""
    dims = (
        samples[[name for name in SPLIT_DIMS if name in samples]]
        .astype("Float64")
        .fillna(-1.0)
        .astype(str)
    )
    keys = samples["family"].astype(str) + "|" + dims.agg("|".join, axis=1)
    return keys.map(lambda key: HALVES[sha256(key.encode()).digest()[0] % 2])


def compare(gpu: str) -> pd.DataFrame:
    """The samples of a campaign with `predicted_kernel_us` and `half`."""
    samples = read_samples(measurements_dir() / gpu)
    samples = samples[samples["kernel_us"] > 0].reset_index(drop=True)
    attention = samples["family"] == "attention"
    attributes = samples["attributes"].where(
        ~attention, samples["attributes"].str.replace("{", CHOSEN, n=1, regex=False)
    )
    calls = samples.drop(columns=["kernel_us", "latency_us"]).assign(attributes=attributes)
    stated = load_gpu(gpu)
    peaks: dict[str, Any] = {
        field.name: None for field in fields(stated) if field.name.startswith("measured_")
    }
    predicted = load_predictor(replace(stated, **peaks))
    return samples.assign(
        predicted_kernel_us=predicted.predict(calls)["kernel_us"].to_numpy(), half=half_of(samples)
    )


def errors(samples: pd.DataFrame) -> pd.DataFrame:
    """GMAE and geometric bias in %, by family and dtype, and of all samples."""
    groups = [*samples.groupby(["family", "dtype"], observed=True), (("all", ""), samples)]
    rows = []
    for (family, dtype), part in groups:
        predicted, measured = (
            part[name].to_numpy(float) for name in ("predicted_kernel_us", "kernel_us")
        )
        bias = np.expm1(np.log(predicted / measured).mean())
        rows.append(
            {
                "family": f"{family} {dtype}".strip(),
                "samples": len(part),
                "GMAE %": f"{100 * gmae(predicted, measured):.0f}",
                "bias %": f"{100 * bias:+.0f}",
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    """Print the table of one half."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="H100")
    parser.add_argument("--half", choices=HALVES, default="report")
    options = parser.parse_args()
    samples = compare(options.gpu)
    print(errors(samples[samples["half"] == options.half]).to_string(index=False))


if __name__ == "__main__":
    main()
