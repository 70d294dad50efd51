"""Writes the tables and pictures of README.md and `docs/accuracy.md` from artifacts.

`make readme` or `python -m evaluation.pages.mean_tables`: updates `results/checks/` where public data is available,
replaces the text between markers, and draws the pictures under `docs/images/`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from evaluation.figures.accuracy_data import mean_errors
from evaluation.figures.accuracy_inputs import MODEL_ERRORS, PAIR_ERRORS, read_any
from evaluation.figures.kernel_errors import kernel_errors
from evaluation.pages import pictures, snakemake_runs
from evaluation.pages.accuracy_means import mean_table, readme_rows
from evaluation.pages.accuracy_tables import (
    Evidence,
    left_out_errors,
    outdated_families,
    page_tables,
)
from evaluation.pages.markdown import rewrite, whole_text
from pipeline.errors import InputError, SteptimeError
from pipeline.kernels.estimate import FILE as SESSIONS
from pipeline.model_files import HALF, list_packs, model_folders, read_by_gpu
from pipeline.paths import datasets_dir, packs_dir, project_dir, transfer_dir
from pipeline.show.figures.board import save

RULE_GRAPH_GRID = {"gpu": "local", "model": "dlrm_small", "results": "no-results"}
"""Grid whose rule graph is drawn: the only one in which every stage runs. No artifact of an earlier run is in its folder."""

README, README_MARKER = "README.md", "accuracy"
PAGE, PAGE_MARKER, MEANS_MARKER = "docs/accuracy.md", "tables", "means"
RULES_PAGE, RULES_MARKER = "ARCHITECTURE.md", "rules"
"""Files with a generated block, and the name of its markers."""


def shipped_families() -> list[tuple[str, Path]]:
    """(GPU, model folder) of every shipped family. A GPU with samples of only one dtype has the dtype in its name."""
    packs = {gpu: gpu for gpu in list_packs()} | {
        f"{gpu} (bf16)": f"{HALF}/{gpu}" for gpu in list_packs(HALF)
    }
    return [(name, folder) for name, pack in packs.items() for folder in model_folders(pack)]


def gather(results: Path) -> Evidence:
    """Read all artifacts that the tables need.

    Raises:
        InputError: the checks have not run.
    """
    checks = {name: results / "checks" / f"{name}.parquet" for name in ("replays", "passes")}
    for path in checks.values():
        if not path.is_file():
            raise InputError(
                f"{path}: no such file; it needs the public data: set $STEPTIME_DATASETS to its"
                " folder"
            )
    moved = transfer_dir()
    pairs, models = (
        read_any([str(path)] if path.is_file() else [])
        for path in (moved / PAIR_ERRORS, moved / MODEL_ERRORS)
    )
    return Evidence(
        kernel_errors(shipped_families()),
        read_any([str(checks["replays"])]),
        read_any([str(checks["passes"])]),
        left_out_errors(moved),
        pairs,
        models,
        read_by_gpu(packs_dir() / SESSIONS, dict),
    )


def write(evidence: Evidence, root: Path) -> list[Path]:
    """Replace the generated blocks and pictures in a checkout; return the written files.

    Raises:
        InputError: a file lacks its markers, or the accuracy page lacks a table of published steps.
    """
    means = mean_table(evidence, whole_text(root / PAGE))
    blocks = {
        README: {README_MARKER: readme_rows(means)},
        PAGE: {MEANS_MARKER: means, PAGE_MARKER: page_tables(evidence)},
        RULES_PAGE: {RULES_MARKER: rule_graph()},
    }
    for name, texts in blocks.items():
        rewrite(root / name, texts)
    images = root / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    save(
        pictures.result(evidence.kernels, evidence.passes, mean_errors(evidence.spans)),
        images,
        "result",
        kinds=("png",),
    )
    return [*(root / name for name in blocks), images / "result.png"]


def rule_graph() -> str:
    """Snakemake's graph of the rules up to the report, as a Mermaid block with sorted arrows: Snakemake's order changes.

    Raises:
        SteptimeError: Snakemake could not draw it; the message says why.
    """
    drawn = snakemake_runs.rule_arrows(RULE_GRAPH_GRID, "report")
    arrows = sorted(f"\t{source} --> {target}" for source, target in drawn)
    return "\n".join(["```mermaid", "flowchart TB", *arrows, "```"])


def refresh(results: Path) -> None:
    """Run the checks whose data or code has changed; do nothing without public data.

    Raises:
        SteptimeError: a check failed; Snakemake has printed the reason.
    """
    if datasets_dir() is None:
        return
    if snakemake_runs.run_snakemake("checks", {"results": results}, "--quiet", "rules") != 0:
        raise SteptimeError("the checks against public data did not finish; see the lines above")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: reads the artifacts, writes the tables and pictures, and prints the names of the written files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument(
        "--root", type=Path, default=project_dir(), help="checkout whose files are rewritten"
    )
    options = parser.parse_args(arguments)
    try:
        refresh(options.results)
        evidence = gather(options.results)
        for path in write(evidence, options.root):
            print(path.relative_to(options.root))
        if families := outdated_families(evidence):
            print(
                f"steptime: {PAIR_ERRORS} does not belong to the shipped models"
                f" ({', '.join(families)}): docs/transfer.md says how to rebuild it",
                file=sys.stderr,
            )
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
