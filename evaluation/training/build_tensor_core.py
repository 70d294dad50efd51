"""Build of the cross-GPU model of tensor-core products, trained on every GPU with public bf16 products.

    python -m evaluation.training.build_tensor_core [--out packs/transfer]

Errors and interval come from leaving out one chip at a time, with all GPUs that have it. No GPU with the same chip may
be in the training set, because a new chip has none there. The build takes a few minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from evaluation.published.aiconfigurator import SOURCE, TABLES, read_products
from evaluation.training.build_models import interval_of_a_new_gpu
from evaluation.training.recipes import TENSOR_CORE_RECIPE, Recipe
from evaluation.training.utilisation_train import train_utilisation
from evaluation.training.write_packs import record_file
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.paths import transfer_dir
from pipeline.transfer.output_tiles import FAMILY
from pipeline.transfer.utilisation import UtilisationModel

Array = npt.NDArray[np.float64]

TRAINING_ROWS, TEST_ROWS = 4000, 8000
"""Number of sizes drawn from each GPU for training, and for judging a left-out GPU."""

LONG_KERNEL_US = 100.0
"""Kernels above this time, in microseconds, count in `bias`: they dominate the time of whole steps."""


def chips(gpus: Sequence[str]) -> list[tuple[str, ...]]:
    """GPUs by chip. GPUs count as one chip if their architecture and the major number of compute capability agree."""
    by_chip: dict[tuple[str, int], list[str]] = {}
    for name in gpus:
        spec = load_gpu(name)
        by_chip.setdefault((spec.architecture, int(spec.compute_capability)), []).append(name)
    return [tuple(names) for names in by_chip.values()]


def draw_sizes(
    products: Mapping[str, pd.DataFrame], rows: int, seed: int
) -> dict[str, pd.DataFrame]:
    """Draw up to `rows` sizes of each GPU, as samples of the model's family."""
    return {
        gpu: table.sample(min(rows, len(table)), random_state=seed)
        .reset_index(drop=True)
        .assign(family=FAMILY)
        for gpu, table in products.items()
    }


def train_without(
    left: Sequence[str], samples: Mapping[str, pd.DataFrame], recipe: Recipe = TENSOR_CORE_RECIPE
) -> UtilisationModel:
    """A model trained without the GPUs of one chip."""
    own = [table for gpu, table in samples.items() if gpu not in left]
    return train_utilisation(pd.concat(own, ignore_index=True), FAMILY, recipe)


def residuals(model: UtilisationModel, samples: pd.DataFrame, gpu: str) -> Array:
    """log(measured / predicted) on a GPU, predicted from its spec file, shape (rows,)."""
    _, predicted = model.kernel_and_latency(samples, load_gpu(gpu))
    return np.asarray(np.log(samples["kernel_us"].to_numpy(dtype=np.float64) / predicted))


def error_summary(off: Array, measured: Array) -> dict[str, float]:
    """GMAE, MAPE, and the bias of long kernels, from log residuals."""
    predicted, long = measured * np.exp(-off), measured > LONG_KERNEL_US
    return {
        "gmae": gmae(predicted, measured),
        "mape": mape(predicted, measured),
        "bias": float(np.expm1(-np.mean(off[long]))) if long.any() else float("nan"),
    }


def build(
    products: Mapping[str, pd.DataFrame], recipe: Recipe = TENSOR_CORE_RECIPE
) -> UtilisationModel:
    """Train the model of all GPUs, with its interval and the errors of each GPU when its chip is left out.

    Args:
        products: samples tables by GPU, of at least two chips.
        recipe: sizes and schedule; the shipped ones by default.
    """
    trained, judged = (
        draw_sizes(products, TRAINING_ROWS, seed=1),
        draw_sizes(products, TEST_ROWS, seed=2),
    )
    off: dict[str, Array] = {}
    groups = chips(list(products))
    for chip in groups:
        model = train_without(chip, trained, recipe)
        off |= {gpu: residuals(model, judged[gpu], gpu) for gpu in chip}
    pooled = {chip[0]: np.concatenate([off[gpu] for gpu in chip]) for chip in groups}
    left_out = {}
    for chip in groups:
        low, high = interval_of_a_new_gpu(
            {name: own for name, own in pooled.items() if name != chip[0]}
        )
        for gpu in chip:
            gpu_errors = error_summary(
                off[gpu], judged[gpu]["kernel_us"].to_numpy(dtype=np.float64)
            )
            left_out[gpu] = {
                **gpu_errors,
                "coverage": float(np.mean((off[gpu] >= low) & (off[gpu] <= high))),
            }
    low, high = interval_of_a_new_gpu(pooled)
    everything = train_utilisation(pd.concat(trained.values(), ignore_index=True), FAMILY, recipe)
    provenance = {**everything.provenance, "source": SOURCE, "chip_left_out": left_out}
    return replace(everything, log_p10=low, log_p90=high, provenance=provenance)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: train, save, and print the errors of each GPU when its chip is left out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=transfer_dir())
    options = parser.parse_args(arguments)
    model = build({gpu: read_products(gpu) for gpu in TABLES})
    path = options.out / f"{FAMILY}.safetensors"
    model.save(path)
    record_file(path)
    print(
        (100.0 * pd.DataFrame(model.provenance["chip_left_out"]).T).round(1).to_string(), flush=True
    )


if __name__ == "__main__":
    main()
