"""Errors and processor times of fits of kernel models.

A split of the shapes of two GPUs takes minutes of processor time. Finished fits are kept in `TABLE`, so that a run that
was interrupted goes on. Set OMP_NUM_THREADS=1: the times are those of one thread.
"""

from __future__ import annotations

from datetime import date

import pandas as pd

from evaluation.pages.markdown import markdown
from pipeline.datasets.neusight import read_samples
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.error_metrics import metrics
from pipeline.kernels.fit_family import with_predictions
from pipeline.kernels.fit_gpu import calibrate_physics, fit_family
from pipeline.kernels.samples import assign_folds, clean_samples
from pipeline.paths import datasets_dir, project_dir

GPUS = ("V100", "A100-PCIE-40GB")
"""GPUs whose public samples are fitted."""

TABLE = project_dir() / "results" / "benchmarks" / "fits.csv"
"""Errors and times of finished fits; delete it to measure anew."""

KEYS = ("gpu", "family", "seed")

HEADER = ("family", "fits", "GMAE, %", "CPU time, s")


def section(rounds: int) -> str:
    """Errors on held-out shapes and times of fits, for as many splits as there are rounds."""
    fits = complete(rounds)
    splits = f"seeds 0 to {rounds - 1} of the split" if rounds > 1 else "one split"
    samples = f"the samples of {' and '.join(GPUS)}, {splits}"
    return f"{summary(fits[fits['seed'] < rounds])} Measured on {date.today()} with {samples}."


def complete(rounds: int) -> pd.DataFrame:
    """Fits of all GPUs and families by seed of the split: those of `TABLE`, and what it lacks, which is appended to it."""
    root = datasets_dir()
    if root is None:
        raise SystemExit("the public data are not found: set $STEPTIME_DATASETS")
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    found = pd.read_csv(TABLE) if TABLE.is_file() else pd.DataFrame(columns=list(KEYS))
    done = set(found[list(KEYS)].itertuples(index=False, name=None))
    for gpu in map(load_gpu, GPUS):
        samples = read_samples(root, gpu.name)
        for seed in range(rounds):
            held = assign_folds(samples, 5, seed) == 0
            train = samples[~held]
            memory, offset_us, _ = calibrate_physics(train, gpu)
            for name in PUBLIC_FAMILIES:
                if (gpu.name, name, seed) in done:
                    continue
                fit = fit_family(train, gpu, name, seed=seed, memory=memory, offset_us=offset_us)
                unseen = clean_samples(samples[held & (samples["family"] == name)])
                row = {"gpu": gpu.name, "family": name, "seed": seed, "fit_s": fit.metrics["fit_s"]}
                row |= {"gmae": metrics(with_predictions(fit.model, unseen))["gmae"]}
                found = pd.concat([found, pd.DataFrame([row])], ignore_index=True)
                found.to_csv(TABLE, index=False)
    return found


def summary(fits: pd.DataFrame) -> str:
    """Markdown table by family, and a sentence on all families of a GPU."""
    rows = []
    for name in (name for name in PUBLIC_FAMILIES if (fits["family"] == name).any()):
        of_family = fits[fits["family"] == name]
        means = of_family["gmae"].mean(), of_family["fit_s"].mean()
        rows.append((name, str(len(of_family)), f"{100 * means[0]:.2f}", f"{means[1]:.0f}"))
    total = fits.groupby(["gpu", "seed"])["fit_s"].sum().mean()
    return (
        f"{markdown(HEADER, rows)}\n\nFigures are means over the fits. All families of a GPU take"
        f" {total:.0f} s of CPU time."
    )
