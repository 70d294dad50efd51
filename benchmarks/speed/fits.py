"""Errors and processor times of fits of kernel models: the quick way against the long one.

A split of the shapes of two GPUs takes half an hour of processor time. Finished fits are kept in `TABLE`, so that a run
that was interrupted goes on. Set OMP_NUM_THREADS=1: the times are those of one thread.
"""

from __future__ import annotations

from datetime import date
from itertools import product

import pandas as pd

from benchmarks.kernels.held_out import complete
from pipeline.flow import PUBLIC_FAMILIES
from pipeline.paths import project_dir
from pipeline.report.markdown import markdown

GPUS = ("V100", "A100-PCIE-40GB")
"""GPUs whose public samples are fitted."""

TABLE = project_dir() / "results" / "benchmarks" / "fits.csv"
"""Errors and times of finished fits; delete it to measure anew."""

HEADER = ("GPU", "family", "GMAE, long (%)", "quick (%)", "ratio", "CPU time, long (s)", "quick (s)", "ratio")


def section(rounds: int) -> str:
    """Errors on held-out shapes and times of both ways, as means over as many splits as there are rounds."""
    complete(TABLE, GPUS, product(range(rounds), PUBLIC_FAMILIES, ("auto",), ("long", "quick")))
    found = pd.read_csv(TABLE)
    return f"{compared(found[found['seed'] < rounds])}\n\nMeasured on {date.today()}."


def compared(found: pd.DataFrame) -> str:
    """Markdown table of the families of each GPU that were fitted in both ways, and the sums of their times."""
    means = found.groupby(["gpu", "family", "effort"])[["gmae", "fit_s"]].mean().unstack("effort").dropna()
    rows = []
    for gpu in dict.fromkeys(means.index.get_level_values("gpu")):
        own = means.loc[gpu].reindex([name for name in PUBLIC_FAMILIES if (gpu, name) in means.index])
        for name, one in own.iterrows():
            rows.append((gpu, str(name), *_pair(100.0 * one["gmae"], 2), *_pair(one["fit_s"], 0)))
        rows.append((gpu, f"all {len(own)}", "", "", _ratio(own["gmae"]), *_pair(own["fit_s"].sum(), 0)))
    return markdown(HEADER, rows)


def _pair(values: pd.Series, digits: int) -> tuple[str, str, str]:
    """The values of the long and the quick way, and their ratio."""
    long, quick = float(values["long"]), float(values["quick"])
    return f"{long:.{digits}f}", f"{quick:.{digits}f}", f"{quick / long:.2f}"


def _ratio(errors: pd.DataFrame) -> str:
    """Geometric mean of the ratios of quick to long."""
    ratios = errors["quick"] / errors["long"]
    return f"{ratios.prod() ** (1.0 / len(ratios)):.2f}"
