"""Errors of bf16 matrix products on newer GPUs, without samples of the chip and with the model fitted to them.

    python benchmarks/kernels/half_precision.py [--gpus H200 B200]

Columns of the table:

- `from fp32`: fp32 products of five older GPUs, transferred by their cross-GPU model and scaled by physics to bf16. This
  is the best prediction without any bf16 sample.
- `chip left out`: the cross-GPU model of products on tensor cores, trained on the other chips. The command
  `python -m evaluation.training.build_tensor_core` computes it and stores it with the model.
- `fitted`: the GPU's own samples, in cross-validation by size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np

from evaluation.published.aiconfigurator import TABLES, read_products
from pipeline.answers.gap_models import FAMILY
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.transferred_models import transferred_models
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.kernels.physics import Physics
from pipeline.model_files import HALF, list_packs
from pipeline.paths import packs_dir
from pipeline.transfer.shipped_models import tensor_model

ROWS = 8000
"""Number of samples that are drawn per GPU for the column `from fp32`."""


def from_fp32(gpu: str) -> dict[str, float]:
    """Errors of the prediction from fp32 samples of other GPUs and the spec file, on randomly drawn sizes."""
    spec = load_gpu(gpu)
    samples = read_products(gpu)
    samples = samples.sample(min(ROWS, len(samples)), random_state=0).reset_index(drop=True)
    predictor = KernelPredictor(spec, transferred_models(spec, set()), Physics.of(spec))
    found = predictor.predict(samples.drop(columns=["latency_us", "kernel_us"]))
    measured, kernel = samples["kernel_us"].to_numpy(), found["kernel_us"].to_numpy()
    long = measured > 100.0
    return {
        "gmae": gmae(kernel, measured),
        "mape": mape(kernel, measured),
        "bias": float(np.exp(np.mean(np.log(kernel[long] / measured[long]))) - 1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", nargs="+", default=list(TABLES), choices=list(TABLES))
    print_errors(parser.parse_args().gpus)


def print_errors(gpus: Sequence[str]) -> None:
    """Print the table."""
    model = tensor_model()
    left_out = {} if model is None else model.provenance["chip_left_out"]
    print(
        "| GPU | from fp32, GMAE | MAPE | bias above 100 µs | chip left out, GMAE | MAPE | bias |"
        " inside p10-p90 | fitted, GMAE | MAPE | inside |"
    )
    print("|" + "---|" * 11)
    table = []
    for gpu in gpus:
        before, without = from_fp32(gpu), left_out.get(gpu, {})
        keys = ("gmae", "mape", "bias", "coverage")
        table.append([*(before[key] for key in keys[:3]), *(without.get(k, np.nan) for k in keys)])
        print(f"| {gpu} | {' | '.join([*_cells(table[-1]), *fitted(gpu)])} |", flush=True)
    values = np.array(table)
    values[:, [2, 5]] = np.abs(values[:, [2, 5]])
    means = " | ".join(_cells(list(values.mean(axis=0))))
    print(f"| mean (of absolute biases) | {means} |" + " |" * 3)


def fitted(gpu: str) -> list[str]:
    """GMAE, MAPE and coverage in % of the GPU's own model; empty cells without one."""
    if gpu not in list_packs(HALF):
        return ["", "", ""]
    description = packs_dir() / HALF / gpu / "kernels" / FAMILY / "family.json"
    metrics = json.loads(description.read_text(encoding="utf-8"))["metrics"]
    digits = {"gmae": 2, "mape": 1, "coverage": 0}
    return [f"{100 * metrics[key]:.{places}f}" for key, places in digits.items()]


def _cells(row: list[float]) -> list[str]:
    """Cells in %: biases with a sign, coverage without decimals."""
    formats = ("{:.1f}", "{:.1f}", "{:+.0f}", "{:.1f}", "{:.1f}", "{:+.0f}", "{:.0f}")
    return [text.format(100 * value) for text, value in zip(formats, row, strict=True)]


if __name__ == "__main__":
    main()
