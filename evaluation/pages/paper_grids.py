"""Writes `docs/papers.md` with its figures, runs the papers' grids, then reports what is missing and why.

python -m evaluation.pages.paper_grids [paper_dlrm ...]        (or: make paper)
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from evaluation.pages import papers
from evaluation.pages.grid_accuracy import missing_evidence
from evaluation.pages.snakemake_runs import run_snakemake
from pipeline.flow import Flow
from pipeline.paths import datasets_dir, project_dir
from pipeline.show.figures.gallery import INDEX

EXPERIMENTS = ("paper_dlrm", "paper_cnn", "paper_surfer")


def account(name: str, flow: Flow) -> Iterator[str]:
    """Results of an experiment's grid, line by line: points, report, figures that were not drawn, missing evidence."""
    root, grid = Path(flow.artifacts.root), flow.grid
    yield f"{name}: {len(flow.points)} points on {', '.join(flow.gpus)}"
    yield (
        f"  report: {root}/reports/{grid}.html    accuracy: {root}/accuracy/{grid}.md    figures:"
        f" {root}/figures/{grid}/"
    )
    index = json.loads((root / "figures" / grid / INDEX).read_text(encoding="utf-8"))
    yield f"  drawn: {', '.join(index['drawn'])}"
    for figure, reason in index["not_drawn"].items():
        yield f"  not drawn: {figure}, because {reason}"
    for line in missing_evidence(flow):
        yield f"  missing: {line}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: writes the page, runs each grid up to its report, then prints the results of all of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", default=list(EXPERIMENTS))
    parser.add_argument("--results", default="results")
    parser.add_argument(
        "--page", action="store_true", help="only write docs/papers.md and its figures"
    )
    options = parser.parse_args(arguments)
    for path in papers.write(project_dir()):
        print(path.relative_to(project_dir()), flush=True)
    if options.page:
        return 0
    grids = {name: {"experiment": name, "results": options.results} for name in options.experiments}
    runs = [("report", config) for config in grids.values()]
    if datasets_dir() is not None:  # first, because the figures of every grid show the checks
        runs.insert(0, ("checks", {"results": options.results}))
    for target, config in runs:
        print(f"steptime: {target} {config.get('experiment', '')}".rstrip(), flush=True)
        if (code := run_snakemake(target, config)) != 0:
            return code
    for name, config in grids.items():
        for line in account(name, Flow.from_config(config)):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
