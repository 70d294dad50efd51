"""Errors and processor times of fits of kernel models.

A split of the shapes of two GPUs takes minutes of processor time. Finished fits are kept in `TABLE`, so that a run that
was interrupted goes on. Set OMP_NUM_THREADS=1: the times are those of one thread.
"""

from __future__ import annotations

from datetime import date
from itertools import product

import pandas as pd

from benchmarks.kernels.held_out import complete
from evaluation.pages.markdown import markdown
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.paths import project_dir

GPUS = ("V100", "A100-PCIE-40GB")
"""GPUs whose public samples are fitted."""

TABLE = project_dir() / "results" / "benchmarks" / "fits.csv"
"""Errors and times of finished fits; delete it to measure anew."""

HEADER = ("family", "fits", "GMAE, %", "CPU time, s")


def section(rounds: int) -> str:
    """Errors on held-out shapes and times of fits, for as many splits as there are rounds."""
    complete(TABLE, GPUS, product(range(rounds), PUBLIC_FAMILIES, ("auto",)))
    fits = pd.read_csv(TABLE)
    splits = f"seeds 0 to {rounds - 1} of the split" if rounds > 1 else "one split"
    samples = f"the samples of {' and '.join(GPUS)}, {splits}"
    return f"{summary(fits[fits['seed'] < rounds])} Measured on {date.today()} with {samples}."


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
