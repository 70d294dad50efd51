"""Measure the speed of Steptime, and write the sections of docs/speed.md.

    python -m benchmarks.speed [PART ...] [--rounds 3] [--page docs/speed.md]

Without names, all parts are measured, except those that take many minutes (`ON_REQUEST`). A part is a module of this
folder with a function `section(rounds)`. It returns the text between `<!-- PART -->` and `<!-- /PART -->` of the page.
All other text of the page is written by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.speed import captures, draws, fits, grid, plans, products, snakemake_grid, traces
from evaluation.pages.markdown import rewrite
from pipeline.paths import project_dir

PARTS: dict[str, Callable[[int], str]] = {
    "grid": grid.section,
    "plan": plans.section,
    "captures": captures.section,
    "products": products.section,
    "draws": draws.section,
    "snakemake": snakemake_grid.section,
    "traces": traces.section,
    "fits": fits.section,
}
"""What measures each section of the page: the number of rounds in, Markdown out."""

ON_REQUEST = ("fits",)
"""Parts that are measured only if they are named."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path, default=project_dir() / "docs" / "speed.md")
    given = parser.parse_args()
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for name in given.parts or [part for part in PARTS if part not in ON_REQUEST]:
        text = PARTS[name](given.rounds)
        print(f"\n{text}", flush=True)
        rewrite(given.page, {name: text})  # after each part: the next one takes minutes


if __name__ == "__main__":
    main()
