"""Errors of the bandwidth curves of collectives over NVLink, on held-out sizes and held-out GPUs.

    python benchmarks/kernels/collectives.py

Columns of the table:

- `held-out sizes`: the curve is fitted to every other size and evaluated on the sizes between.
- `other GPUs`: the curves of each other measured GPU, scaled by link bandwidth.
- `formula`: bytes over the link's peak plus a constant, which is used for GPUs without curves.
"""

import numpy as np

from evaluation.published.aiconfigurator import COLLECTIVES, read_collectives
from evaluation.training.collective_fit import fit_curves, predicted_over_measured
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.collective_bandwidth import (
    FAMILY,
    SPREAD,
    TRANSFERRED_SPREAD,
    CollectiveModel,
)  # fmt: skip
from pipeline.kernels.physics import Physics


def main() -> None:
    samples = {gpu: read_collectives(gpu) for gpu in COLLECTIVES}
    specs = {gpu: load_gpu(gpu) for gpu in COLLECTIVES}
    curves = {gpu: fit_curves(samples[gpu], specs[gpu]) for gpu in COLLECTIVES}
    print(
        "| GPU | points | formula, MAPE % | held-out sizes, GMAE % | MAPE % | inside % | other GPUs, MAPE % | inside % |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for gpu, own in samples.items():
        spec = specs[gpu]
        between = own["bytes"].isin(np.sort(own["bytes"].unique())[1::2])
        fitted = fit_curves(own[~between].reset_index(drop=True), spec)
        unseen = predicted_over_measured(CollectiveModel(spec, spec, fitted), own[between].reset_index(drop=True))
        calls = own.assign(family=FAMILY, bytes_read=own["bytes"], bytes_written=own["bytes"])
        formula = Physics.of(spec).kernel_us(FAMILY, calls) / own["kernel_us"].to_numpy()
        others = np.concatenate(
            [
                predicted_over_measured(CollectiveModel(spec, specs[name], curves[name]), own)
                for name in samples
                if name != gpu
            ]
        )
        error = np.abs(unseen - 1.0)
        cells = [
            f"{len(own)}", f"{100 * np.abs(formula - 1).mean():.0f}",
            f"{100 * np.exp(np.log(np.maximum(error, 1e-6)).mean()):.1f}", f"{100 * error.mean():.1f}",
            f"{100 * np.mean(np.abs(np.log(unseen)) <= np.log(SPREAD)):.0f}",
            f"{100 * np.abs(others - 1).mean():.0f}",
            f"{100 * np.mean(np.abs(np.log(others)) <= np.log(TRANSFERRED_SPREAD)):.0f}",
        ]  # fmt: skip
        print(f"| {gpu} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
