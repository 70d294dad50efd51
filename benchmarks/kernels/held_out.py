"""Held-out errors of three kernel models: roofline, the paper's MLP on raw sizes, and ours; by GPU, family and seed.

One fifth of the shapes is held out, each shape for all operators at once. Each variant is fitted to the rest. Finished rows
are appended to the table and are not computed again.

Usage::

    python benchmarks/kernels/held_out.py --gpus V100 A100 --seeds 0 1 2 --variants auto --out table.csv

    python benchmarks/kernels/held_out.py --show table.csv
    python benchmarks/kernels/held_out.py --packs            # the shipped models, in cross-validation
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.answers.who_answers import PUBLIC_KERNEL_GPUS
from pipeline.datasets.neusight import read_samples
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.error_metrics import gmae, mape
from pipeline.kernels.features import raw_features
from pipeline.kernels.fit_gpu import calibrate_physics, fit_family
from pipeline.kernels.learned_variants import FOLDS, Problem, search_recipe
from pipeline.kernels.network_training import train_network
from pipeline.kernels.samples import assign_folds, split_by_shape
from pipeline.paths import datasets_dir, packs_dir

VARIANTS = ("roofline", "mlp_paper", "auto")
SHOWN = ("gmae", "mape", "coverage", "above_floor_gmae", "fit_s")
KEYS = ("gpu", "family", "variant", "seed")


def paper_mlp(samples: pd.DataFrame, name: str, held: Any, seed: int) -> dict[str, float]:
    """Errors of the published network, from log sizes (and the operator) to log latency, without figures of the GPU."""
    started = time.perf_counter()
    own = samples["family"] == name
    rows, unseen = samples[own].reset_index(drop=True), held[own.to_numpy()]
    kinds = [(rows["op"] == op).to_numpy(float) for op in sorted(rows["op"].unique())]
    inputs = np.column_stack([raw_features(name, rows)[0], *(kinds if len(kinds) > 1 else [])])
    target = np.log(rows["latency_us"].to_numpy(float))
    train = rows[~unseen].reset_index(drop=True)
    problem = Problem(inputs[~unseen], target[~unseen], assign_folds(train, FOLDS, seed))
    network = train_network(problem.features, problem.target, seed, search_recipe(problem, seed))
    predicted, measured = np.exp(network.predict(inputs[unseen])), np.exp(target[unseen])
    return {
        "gmae": gmae(predicted, measured),
        "mape": mape(predicted, measured),
        "fit_s": time.perf_counter() - started,
    }


def errors(
    samples: pd.DataFrame, gpu: GpuSpec, name: str, variant: str, seed: int
) -> dict[str, float]:
    """Errors of one fit on its held-out shapes."""
    held = split_by_shape(samples, 0.2, seed)
    if variant == "mlp_paper":
        return paper_mlp(samples, name, held, seed)
    memory, offset_us, _ = calibrate_physics(samples[~held], gpu)
    return fit_family(
        samples, gpu, name, variant, seed, memory=memory, offset_us=offset_us, held_out=held
    ).metrics


def show(path: Path) -> str:
    """Markdown table: GMAE in %, mean over the seeds (with their number, if more than one), and coverage of our model."""
    found = pd.read_csv(path)
    lines = [
        "| GPU | family | roofline | paper's MLP | ours | ours, above floor | coverage |",
        "|---|---|---|---|---|---|---|",
    ]
    order = {name: i for i, name in enumerate(PUBLIC_FAMILIES)}
    for (gpu, name), rows in sorted(
        found.groupby(["gpu", "family"]), key=lambda item: (item[0][0], order[item[0][1]])
    ):
        cells = []
        for variant in VARIANTS:
            own = rows.loc[rows["variant"] == variant, "gmae"]
            spread = f" ± {100 * own.std():.2f} ({len(own)})" if len(own) > 1 else ""
            cells.append(f"{100 * own.mean():.2f}{spread}" if len(own) else "")
        ours = rows[rows["variant"] == "auto"]
        above, inside = (
            f"{100 * ours[key].mean():.{digits}f}" if len(ours) else ""
            for key, digits in (("above_floor_gmae", 2), ("coverage", 0))
        )
        lines.append(f"| {gpu} | {name} | {' | '.join(cells)} | {above} | {inside} |")
    return "\n".join(lines)


def shipped() -> str:
    """Markdown table: GMAE and coverage of the shipped models in %, on shapes that the predicting member had not seen."""
    lines = [f"| GPU | {' | '.join(PUBLIC_FAMILIES)} |", "|---|" + "---|" * len(PUBLIC_FAMILIES)]
    for gpu in PUBLIC_KERNEL_GPUS:
        cells = []
        for name in PUBLIC_FAMILIES:
            found = json.loads((packs_dir() / gpu / "kernels" / name / "family.json").read_text())[
                "metrics"
            ]
            cells.append(f"{100 * found['gmae']:.2f} ({100 * found['coverage']:.0f})")
        lines.append(f"| {gpu} | {' | '.join(cells)} |")
    return "\n".join(lines)


def complete(out: Path, gpus: Iterable[str], fits: Iterable[tuple[int, str, str]]) -> None:
    """Fit what the table lacks, and append its rows: of each GPU, every (seed, family, variant) of `fits`."""
    root, fits = datasets_dir(), list(fits)
    if root is None:
        raise SystemExit("the public data are not found: set $STEPTIME_DATASETS")
    out.parent.mkdir(parents=True, exist_ok=True)
    for gpu in map(load_gpu, gpus):
        samples = read_samples(root, gpu.name)
        for seed, name, variant in fits:
            done = pd.read_csv(out) if out.is_file() else pd.DataFrame(columns=[*KEYS, *SHOWN])
            key = (gpu.name, name, variant, seed)
            if key in set(done[list(KEYS)].itertuples(index=False, name=None)):
                continue
            found = errors(samples, gpu, name, variant, seed)
            row = dict(zip(KEYS, key, strict=True)) | {
                k: round(found.get(k, np.nan), 5) for k in SHOWN
            }
            print(row, flush=True)
            done = pd.read_csv(out) if out.is_file() else done
            pd.concat([done, pd.DataFrame([row])]).to_csv(out, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", nargs="+", default=["V100", "P100", "P4", "T4", "A100"])
    parser.add_argument(
        "--families", nargs="+", default=list(PUBLIC_FAMILIES), choices=PUBLIC_FAMILIES
    )
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="table (CSV) that is completed")
    parser.add_argument("--show", type=Path, help="print an existing table as Markdown")
    parser.add_argument(
        "--packs", action="store_true", help="print the errors of the shipped models"
    )
    chosen = parser.parse_args()
    if chosen.packs:
        print(shipped())
        return
    if chosen.show:
        print(show(chosen.show))
        return
    if chosen.out is None:
        raise SystemExit("give --out")
    complete(chosen.out, chosen.gpus, product(chosen.seeds, chosen.families, chosen.variants))


if __name__ == "__main__":
    main()
