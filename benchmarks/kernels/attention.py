"""Errors of the model of fused attention on held-out sizes and GPUs, compared with the roofline.

    python benchmarks/kernels/attention.py

Columns of the table:

- `held out`: fitted to four fifths of the (heads, sequence) combinations, evaluated on the others.
- `other GPU`: constants of another measured GPU, with this GPU's specification. It is the GPU that a GPU without samples
  would use first.
- `roofline`: Steptime's former prediction.

Causal samples include the write to a serving cache; its modelled time is added to the roofline too.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from evaluation.published.aiconfigurator import ATTENTION, read_attention
from evaluation.training.fused_attention_fit import (
    FOLDS,
    START_CONSTANTS_FROM,
    fit_gpus,
    fit_with_intervals,
    folds_of,
)
from pipeline.families.dims import Dims
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.kernels.estimate import Estimate
from pipeline.kernels.fused_attention import (
    AttentionModel,
    Constants,
    FittedAttention,
    Shape,
    attention_us,
)
from pipeline.kernels.physics import Physics

MIN_LONG_US = 200.0
"""Minimum duration of a *long* kernel in microseconds: launch and waves dominate shorter ones."""

TRANSFER_SOURCE = {
    "A100-SXM4-80GB": "L40S",
    "L40S": "A100-SXM4-80GB",
    "H100": "H200",
    "H200": "H100",
    "B200": "H100",
}
"""For each GPU, another measured GPU whose constants predict it in the column `other GPU`."""


def roofline_us(rows: pd.DataFrame, spec: GpuSpec, fitted: FittedAttention) -> np.ndarray:
    """Roofline of the calls that a graph would make, plus the time of the cache write."""
    shape, d = Shape.of(rows), Dims(rows)
    peak = Physics.of(spec).peak_flop_per_us(d)
    whole = attention_us(fitted.constants, fitted.tiles, spec, peak, shape)
    bare = attention_us(
        fitted.constants,
        fitted.tiles,
        spec,
        peak,
        Shape(*list(vars(shape).values())[:-1], np.zeros(len(rows), dtype=bool)),
    )
    return Physics.of(spec).kernel_us("attention", rows) + whole - bare


def held_out_estimates(
    rows: pd.DataFrame, spec: GpuSpec, full: FittedAttention, start: Constants
) -> Estimate:
    """Estimates (with intervals) from fits without samples of the same combination of heads and sequence length."""
    fold, parts = folds_of(rows, seed=1), []
    for number in range(FOLDS):
        seen = rows[fold != number].reset_index(drop=True)
        model = AttentionModel(spec, spec, fit_with_intervals(seen, spec, full.tiles, start))
        parts.append(model.predict(rows[fold == number]))
    order = np.argsort(np.concatenate([np.flatnonzero(fold == number) for number in range(FOLDS)]))
    return Estimate(
        *(np.concatenate([getattr(part, name) for part in parts])[order] for name in vars(parts[0]))
    )


def cells(found: np.ndarray, measured: np.ndarray) -> list[str]:
    """MAPE of all rows, MAPE of long kernels, and bias of long kernels, as text."""
    long = measured > MIN_LONG_US
    bias = np.exp(np.mean(np.log(found[long] / measured[long]))) - 1.0
    return [
        f"{100 * mape(found, measured):.1f}",
        f"{100 * mape(found[long], measured[long]):.1f}",
        f"{100 * bias:+.0f}",
    ]


def inside(found: Estimate, measured: np.ndarray) -> str:
    return f"{100 * np.mean((found.p10 <= measured) & (measured <= found.p90)):.0f}"


def sizes(samples: Mapping[str, pd.DataFrame], fitted: Mapping[str, FittedAttention]) -> None:
    print(
        "| GPU | rows | roofline, MAPE | long | bias | held out, GMAE | MAPE | long | bias | inside"
        " | other GPU | MAPE | long | bias | inside |"
    )
    print("|" + "---|" * 15)
    for gpu, rows in samples.items():
        spec, measured = load_gpu(gpu), rows["kernel_us"].to_numpy(dtype=np.float64)
        start = (
            fitted[START_CONSTANTS_FROM[gpu]].constants
            if gpu in START_CONSTANTS_FROM
            else Constants()
        )
        own = held_out_estimates(rows, spec, fitted[gpu], start)
        other = load_gpu(TRANSFER_SOURCE[gpu])
        moved = AttentionModel(spec, other, fitted[other.name]).predict(rows)
        line = [
            gpu,
            str(len(rows)),
            *cells(roofline_us(rows, spec, fitted[gpu]), measured),
            f"{100 * gmae(own.kernel, measured):.1f}",
            *cells(own.kernel, measured),
            inside(own, measured),
            other.name,
            *cells(moved.kernel, measured),
            inside(moved, measured),
        ]
        print(f"| {' | '.join(line)} |", flush=True)


def main() -> None:
    samples = {gpu: read_attention(gpu) for gpu in ATTENTION}
    sizes(samples, fit_gpus(samples))


if __name__ == "__main__":
    main()
