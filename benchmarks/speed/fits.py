"""Errors and processor times of fits of kernel models: the quick way against the long one.

A split of the shapes of two GPUs takes half an hour of processor time. Finished fits are kept in `TABLE`, so that a run
that was interrupted goes on. Set OMP_NUM_THREADS=1: the times are those of one thread.
"""

from __future__ import annotations

from datetime import date
from itertools import product

import numpy as np
import pandas as pd

from benchmarks.kernels.held_out import complete
from evaluation.pages.markdown import markdown
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.paths import project_dir

GPUS = ("V100", "A100-PCIE-40GB")
"""GPUs whose public samples are fitted."""

TABLE = project_dir() / "results" / "benchmarks" / "fits.csv"
"""Errors and times of finished fits; delete it to measure anew."""

HEADER = ("family", "fits compared", "GMAE, quick over long", "CPU time, quick over long")


def section(rounds: int) -> str:
    """Errors on held-out shapes and times of both ways, for as many splits as there are rounds."""
    complete(TABLE, GPUS, product(range(rounds), PUBLIC_FAMILIES, ("auto",), ("long", "quick")))
    found = pd.read_csv(TABLE)
    splits = f"seeds 0 to {rounds - 1} of the split" if rounds > 1 else "one split"
    samples = f"the samples of {' and '.join(GPUS)}, {splits}"
    return f"{compared(found[found['seed'] < rounds])} Measured on {date.today()} with {samples}."


def compared(found: pd.DataFrame) -> str:
    """Markdown table of the families that were fitted in both ways, and a sentence on all families of a GPU."""
    fits = found.set_index(["family", "gpu", "seed", "effort"])[["gmae", "fit_s"]].unstack("effort").dropna()
    rows = []
    for name in (name for name in PUBLIC_FAMILIES if name in fits.index):
        own = fits.loc[name]
        rows.append((name, str(len(own)), f"{_ratio(own['gmae']):.2f}", f"{_ratio(own['fit_s']):.2f}"))
    long, quick = (fits["fit_s"][effort].groupby(["gpu", "seed"]).sum().mean() for effort in ("long", "quick"))
    return (
        f"{markdown(HEADER, rows)}\n\nRatios are geometric means over the fits. All families of a GPU take {long:.0f} s of "
        f"CPU time the long way and {quick:.0f} s the quick way ({quick / long:.2f})."
    )


def _ratio(values: pd.DataFrame) -> float:
    """Geometric mean of the ratios of quick to long."""
    return float(np.exp(np.log(values["quick"] / values["long"]).mean()))
