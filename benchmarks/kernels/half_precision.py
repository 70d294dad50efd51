"""Errors of bf16 matrix products on newer GPUs, without samples of the chip and with the model fitted to them.

    python benchmarks/kernels/half_precision.py [--squares] [--weights]

`--squares` adds published throughputs of GPUs without samples. `--weights` adds fits without a tenth of the weight sizes
(slow). Columns of the table:

- `from fp32`: fp32 products of five older GPUs, transferred by their cross-GPU model and scaled by physics to bf16. This
  is the best prediction without any bf16 sample.
- `chip left out`: the cross-GPU model of products on tensor cores, trained on the other chips. The command
  `python -m evaluation.training.build_tensor_core` computes it and stores it with the model.
- `fitted`: the GPU's own samples, in cross-validation by size.
- `new weights`: a tenth of the (N, K) pairs is held out, with all their products. No sample has a weight of that size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

import numpy as np
import pandas as pd

from evaluation.published.aiconfigurator import TABLES, read_products
from pipeline.answers.gap_models import FAMILY, FOLDER, measured_gpus
from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.transferred_models import transferred_models
from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.physics import Physics
from pipeline.paths import packs_dir
from pipeline.transfer.shipped_models import tensor_model

ROWS = 8000
"""Number of samples that are drawn per GPU for the column `from fp32`."""

SIZES = (2048.0, 4096.0)
"""Widths of published square products. 1024 is left out (on fast GPUs it waits for the host), and 8192 set the sustained rates."""

SQUARES = {
    ("V100-SXM2-32GB", "fp16"): (78.23, 95.73),
    ("A40", "tf32"): (43.80, 54.88),
    ("A40", "fp16"): (94.31, 113.51),
    ("A40", "bf16"): (95.47, 115.16),
    ("L4", "tf32"): (31.88, 24.00),
    ("L4", "fp16"): (68.83, 53.02),
    ("L4", "bf16"): (70.89, 54.91),
    ("A100-PCIE-40GB", "tf32"): (90.82, 108.32),
    ("A100-PCIE-40GB", "fp16"): (214.73, 241.49),
    ("A100-PCIE-40GB", "bf16"): (138.46, 234.14),
    ("H100-PCIe", "tf32"): (176.95, 234.80),
    ("H100-PCIe", "fp16"): (458.03, 457.32),
    ("H100-PCIe", "bf16"): (449.09, 495.93),
    ("H100", "tf32"): (334.99, 402.15),
    ("H100", "fp16"): (645.12, 760.04),
    ("H100", "bf16"): (676.59, 788.72),
}
"""TFLOP/s of `torch` products of `SIZES` on contributors' GPUs: github.com/zzc0721/torch-performance-test-data, issues 140
(V100-SXM2 with 16 GB), 185, 120, 108, 95 and 79."""


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


def new_weights(gpu: str) -> dict[str, float]:
    """Errors of a fit without any product of the held-out weights."""
    samples = read_products(gpu)
    pairs = samples[["N", "K"]].drop_duplicates().sample(frac=0.1, random_state=0)
    held = pd.MultiIndex.from_frame(samples[["N", "K"]]).isin(pd.MultiIndex.from_frame(pairs))
    return fit_family(samples, load_gpu(gpu), FAMILY, "mlp", 0, held_out=held).metrics


def squares() -> pd.DataFrame:
    """Predicted over published time minus one, for square products; one row per GPU and dtype."""
    rows = []
    for (gpu, dtype), published in SQUARES.items():
        size = np.array(SIZES)
        calls = pd.DataFrame(
            {
                "family": FAMILY,
                "op": "mm",
                "phase": "forward",
                "dtype": dtype,
                "B": 1.0,
                "M": size,
                "N": size,
                "K": size,
            }
        )
        found = kernel_predictor(load_gpu(gpu), "auto", None).predict(calls)
        off = found["kernel_us"].to_numpy() / (2e-6 * size**3 / np.array(published)) - 1.0
        rows.append(
            {
                "GPU": gpu,
                "dtype": dtype,
                "evidence": found["evidence"].iloc[0],
                **{f"{int(width)}": value for width, value in zip(SIZES, off, strict=True)},
            }
        )
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument(
        "--weights", action="store_true", help="also fit without a tenth of the weight sizes"
    )
    parser.add_argument(
        "--squares",
        action="store_true",
        help="also compare with published throughputs of GPUs without samples",
    )
    chosen = parser.parse_args()
    print_errors(chosen.gpus, chosen.weights)
    if chosen.squares:
        print_squares()


def print_errors(gpus: Sequence[str], weights: bool) -> None:
    """Print the table; with `weights`, also fits without a tenth of the weight sizes."""
    model = tensor_model()
    left_out = {} if model is None else model.provenance["chip_left_out"]
    extra = " fitted, new weights, GMAE |" if weights else ""
    print(
        "| GPU | from fp32, GMAE | MAPE | bias above 100 µs | chip left out, GMAE | MAPE | bias |"
        f" inside p10-p90 | fitted, GMAE | MAPE | inside |{extra}"
    )
    print("|" + "---|" * (12 if weights else 11))
    table = []
    for gpu in gpus:
        before, without = from_fp32(gpu), left_out.get(gpu, {})
        keys = ("gmae", "mape", "bias", "coverage")
        table.append([*(before[key] for key in keys[:3]), *(without.get(k, np.nan) for k in keys)])
        new = [f"{100 * new_weights(gpu)['gmae']:.2f}"] if weights else []
        print(f"| {gpu} | {' | '.join([*_cells(table[-1]), *fitted(gpu), *new])} |", flush=True)
    values = np.array(table)
    values[:, [2, 5]] = np.abs(values[:, [2, 5]])
    means = " | ".join(_cells(list(values.mean(axis=0))))
    print(f"| mean (of absolute biases) | {means} |" + " |" * (4 if weights else 3))


def fitted(gpu: str) -> list[str]:
    """GMAE, MAPE and coverage in % of the GPU's own model; empty cells without one."""
    if gpu not in measured_gpus():
        return ["", "", ""]
    description = packs_dir() / FOLDER / gpu / "kernels" / FAMILY / "family.json"
    metrics = json.loads(description.read_text(encoding="utf-8"))["metrics"]
    digits = {"gmae": 2, "mape": 1, "coverage": 0}
    return [f"{100 * metrics[key]:.{places}f}" for key, places in digits.items()]


def print_squares() -> None:
    """Print the errors of published square products."""
    found, sizes = squares(), [str(int(size)) for size in SIZES]
    print(f"\n| GPU | dtype | evidence | {' | '.join(sizes)} |\n|---|---|---|---|---|")
    for row in found.to_dict("records"):
        values = " | ".join(f"{100 * row[size]:+.0f}" for size in sizes)
        print(f"| {row['GPU']} | {row['dtype']} | {row['evidence']} | {values} |")
    both = 100 * found[sizes].to_numpy()
    print(f"mean absolute error {np.abs(both).mean():.0f} %, mean {both.mean():+.0f} %")


def _cells(row: list[float]) -> list[str]:
    """Cells in %: biases with a sign, coverage without decimals."""
    formats = ("{:.1f}", "{:.1f}", "{:+.0f}", "{:.1f}", "{:.1f}", "{:+.0f}", "{:.0f}")
    return [text.format(100 * value) for text, value in zip(formats, row, strict=True)]


if __name__ == "__main__":
    main()
