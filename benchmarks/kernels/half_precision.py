"""bf16 products of newer GPUs: how far off a GPU's spec file is, and the model fitted to measurements.

    python benchmarks/kernels/half_precision.py            # the shipped models, and the spec file alone
    python benchmarks/kernels/half_precision.py --weights  # also fits without a tenth of the weights' sizes (slow)

`spec file`: what Steptime says of a GPU without any sample of it: fp32 products of five older GPUs, carried over by the
cross-GPU model and scaled by physics to bf16. It has seen none of these measurements. `fitted`: cross-validation by size.
`new weights`: all products with a tenth of the (N, K) pairs are held out, sizes of a weight that no sample had.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import pandas as pd

from pipeline.datasets.aiconfigurator import TABLES, read_products
from pipeline.hardware.spec import load_gpu
from pipeline.kernels.evaluate import gmae, mape
from pipeline.kernels.fit import fit_family
from pipeline.kernels.half import FAMILY, FOLDER
from pipeline.kernels.heuristics import Physics
from pipeline.kernels.predictor import KernelPredictor
from pipeline.kernels.transferred import transferred_models
from pipeline.paths import packs_dir

ROWS = 8000


def spec_alone(gpu: str, rows: int = ROWS) -> dict[str, float]:
    """Errors of the prediction from other GPUs and the spec file, on a draw of the sizes."""
    spec = load_gpu(gpu)
    samples = read_products(gpu)
    samples = samples.sample(min(rows, len(samples)), random_state=0).reset_index(drop=True)
    predictor = KernelPredictor(spec, transferred_models(spec, set()), Physics.of(spec))
    found = predictor.predict(samples.drop(columns=["latency_us", "kernel_us"]))
    measured, kernel = samples["kernel_us"].to_numpy(), found["kernel_us"].to_numpy()
    long = measured > 100.0
    return {
        "gmae": gmae(kernel, measured),
        "mape": mape(kernel, measured),
        "bias": float(np.exp(np.mean(np.log(kernel[long] / measured[long]))) - 1.0),
        "coverage": float(np.mean((found["p10_us"] <= measured) & (measured <= found["p90_us"]))),
    }


def new_weights(gpu: str, share: float = 0.1, seed: int = 0) -> dict[str, float]:
    """Errors of a fit that has seen no product with the held-out weights."""
    samples = read_products(gpu)
    pairs = samples[["N", "K"]].drop_duplicates().sample(frac=share, random_state=seed)
    held = pd.MultiIndex.from_frame(samples[["N", "K"]]).isin(pd.MultiIndex.from_frame(pairs))
    return fit_family(samples, load_gpu(gpu), FAMILY, "average", seed, held_out=held).metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--weights", action="store_true", help="also fit without a tenth of the weights' sizes")
    chosen = parser.parse_args()
    extra = " fitted, new weights, GMAE |" if chosen.weights else ""
    print(
        f"| GPU | spec file, GMAE | MAPE | bias above 100 µs | inside p10-p90 | fitted, GMAE | MAPE | inside |{extra}"
    )
    print("|---|---|---|---|---|---|---|---|" + ("---|" if chosen.weights else ""))
    for gpu in chosen.gpus:
        before = spec_alone(gpu)
        description = packs_dir() / FOLDER / gpu / "kernels" / FAMILY / "family.json"
        after = json.loads(description.read_text(encoding="utf-8"))["metrics"]
        cells = [f"{100 * before[key]:.1f}" for key in ("gmae", "mape")]
        cells += [f"{100 * before['bias']:+.0f}", f"{100 * before['coverage']:.0f}"]
        cells += [f"{100 * after[key]:.{digits}f}" for key, digits in (("gmae", 2), ("mape", 1), ("coverage", 0))]
        if chosen.weights:
            cells.append(f"{100 * new_weights(gpu)['gmae']:.2f}")
        print(f"| {gpu} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
