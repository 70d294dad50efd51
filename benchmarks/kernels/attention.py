"""Errors of the model of fused attention on held-out sizes and GPUs, compared with the roofline.

    python benchmarks/kernels/attention.py

Columns of the first table:

- `held out`: fitted to four fifths of the (heads, sequence) combinations, evaluated on the others.
- `other GPU`: constants of another measured GPU, with this GPU's specification. It is the GPU that a GPU without samples
  would use first.
- `roofline`: Steptime's former prediction.

Causal samples include the write to a serving cache; its modelled time is added to the roofline too. The second table
compares the ratio of backward to forward time with published pairs of FlashAttention's own benchmark.
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
    BACKWARD_SHARE,
    BACKWARD_TRAFFIC,
    BACKWARD_WORK,
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

PUBLISHED_PAIRS = (
    # heads x samples, tokens, width, causal, forward us, backward us, DRAM GB/s
    (
        "RTX A5000, FlashAttention-2, gpu-mode/ring-attention#10",
        1024,
        512,
        64,
        False,
        817,
        3248,
        768,
    ),
    ("RTX A5000", 256, 2048, 64, False, 3380, 9808, 768),
    ("RTX A5000", 64, 8192, 64, False, 13431, 35504, 768),
    (
        "H100, FlashAttention-2, Dao-AILab/flash-attention#2688",
        1024,
        512,
        64,
        False,
        272,
        905,
        3350,
    ),
    ("H100", 256, 2048, 64, False, 892, 2606, 3350),
    ("H100", 64, 8192, 64, False, 3545, 9187, 3350),
    ("RTX A6000, cuDNN, pytorch#137036", 1024, 1024, 64, True, 1817, 6655, 768),
    ("RTX A6000, FlashAttention-2, pytorch#137036", 1024, 1024, 64, True, 2404, 6559, 768),
    (
        "B200, FlashAttention-4, Dao-AILab/flash-attention#2280",
        64,
        8192,
        128,
        False,
        1433,
        4043,
        8000,
    ),
    ("B200", 64, 8192, 128, True, 775, 2274, 8000),
)
"""Published forward and backward times. The H100's thread names no GPU; the throughput is that of an H100."""


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


def backward() -> None:
    print(
        "\n| published | heads x tokens x width | causal | backward over forward | model |"
        " error % |"
    )
    print("|---|---|---|---|---|---|")
    errors = []
    for name, heads, tokens, width, causal, forward, back, dram in PUBLISHED_PAIRS:
        traffic = BACKWARD_TRAFFIC * heads * tokens * width / (0.9e3 * dram)
        model = BACKWARD_WORK / BACKWARD_SHARE + traffic / forward
        errors.append(model * forward / back - 1.0)
        size = f"{heads} x {tokens} x {width}"
        print(
            f"| {name} | {size} | {'yes' if causal else 'no'} | {back / forward:.2f} | {model:.2f}"
            f" | {100 * errors[-1]:+.0f} |"
        )
    print(
        f"\nmean |error| {100 * np.mean(np.abs(errors)):.1f} %, mean {100 * np.mean(errors):+.1f} %"
    )


def main() -> None:
    samples = {gpu: read_attention(gpu) for gpu in ATTENTION}
    sizes(samples, fit_gpus(samples))
    backward()


if __name__ == "__main__":
    main()
