"""Check grids on Slurm, results in an object store and MLflow on PostgreSQL, and write what was found to docs/scale_out.md.

    python -m benchmarks.cluster [slurm] [store] [mlflow]

All servers run on this machine and are stopped at the end. It needs root, `pip install 'steptime[cluster]'`, and Debian's
packages slurm-wlm, munge and postgresql.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks.cluster import services, slurm_grid, stored_results, writers
from evaluation.pages.markdown import rewrite
from pipeline.paths import project_dir

PARTS: dict[str, Callable[[], str]] = {
    "slurm": slurm_grid.section,
    "store": stored_results.section,
    "mlflow": writers.section,
}
"""What checks each section of the page."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default: all"
    )
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if lacking := services.missing():
        parser.error(f"not installed: {', '.join(lacking)}")
    for name in given.parts or PARTS:
        text = PARTS[name]()
        print(f"\n{text}", flush=True)
        rewrite(project_dir() / "docs" / "scale_out.md", {name: text})


if __name__ == "__main__":
    main()
