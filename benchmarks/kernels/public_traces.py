"""Compares predicted kernel times with public DLRM traces: families without public samples, and very short kernels.

    python benchmarks/kernels/public_traces.py [DATASETS_DIR] [--calls FILE.csv] [--trace NAME ...]

`evaluation/checks/traced_kernel_times.py` makes the comparison and says which calls it covers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pandas as pd

from evaluation.checks.operator_map_check import TRACES
from evaluation.checks.traced_kernel_times import compare
from pipeline.paths import datasets_dir

TRACE_ROUNDING_US = 0.5
"""Rounding error of older traces in microseconds: they record whole microseconds."""


def _label(found: pd.DataFrame) -> pd.Series:
    """Family of each call. Products in a dtype other than fp32 get their own label, because other models predict them."""
    family = found["family"].astype(str)
    other = family.isin(["gemm", "bmm"]) & (found["dtype"].astype(str) != "fp32")
    return family.where(~other, family + " (" + found["dtype"].astype(str) + ")").rename("family")


def table(found: pd.DataFrame) -> str:
    """Markdown table by trace and family: error of the sum, median error, and share of measurements inside p10 to p90."""
    lines = [
        "| trace | family | kernels | median µs | sum, error % | median error % | inside p10–p90 % | evidence |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (trace, family), rows in found.groupby(["trace", _label(found)], observed=True):
        measured, kernel = rows["measured_us"].to_numpy(dtype=float), rows["kernel_us"].to_numpy(dtype=float)
        error = np.abs(kernel / measured - 1.0)
        inside = (rows["p10_us"] - TRACE_ROUNDING_US <= measured) & (measured <= rows["p90_us"] + TRACE_ROUNDING_US)
        evidence = rows["evidence"].value_counts().index[0]
        lines.append(
            f"| {trace} | {family} | {len(rows)} | {np.median(measured):.1f} | "
            f"{100 * (kernel.sum() / measured.sum() - 1):+.0f} | {100 * np.median(error):.0f} | "
            f"{100 * inside.mean():.0f} | {evidence} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="?", type=Path, default=datasets_dir())
    parser.add_argument("--calls", type=Path, help="write every compared call to this CSV file")
    parser.add_argument("--trace", nargs="+", default=["v100x8_dlrm", "a100x8_dlrm"], choices=list(TRACES))
    chosen = parser.parse_args()
    if chosen.datasets is None:
        print("no public data: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    found = pd.concat([compare(chosen.datasets / "traces" / name, TRACES[name]) for name in chosen.trace])
    print(table(found))
    if chosen.calls:
        found.to_csv(chosen.calls, index=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
