"""README and `docs/accuracy.md`: their tables and pictures, made of artifacts.

`make readme` or `python -m pipeline.report.readme_tables`: brings `results/checks/` up to date where the public data is at hand,
replaces the text between markers, and draws the pictures under `docs/images/`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.answers.tensor_core_gemm import FOLDER, measured_gpus
from pipeline.errors import InputError, SteptimeError
from pipeline.evaluation.replayed_traces import mean_errors
from pipeline.packs import list_packs, model_folders
from pipeline.paths import datasets_dir, project_dir, transfer_dir
from pipeline.report.accuracy_tables import Evidence, left_out_errors, long, outdated, short
from pipeline.report.figures import evidence_shares as evidence
from pipeline.report.figures import figure_data as tables
from pipeline.report.figures.style import save
from pipeline.report.grid_inputs import MODEL_ERRORS, PAIR_ERRORS, read_any
from pipeline.report.markdown import rewrite
from pipeline.report.rule_graph import draw, rule_graph
from pipeline.report.run_snakemake import run_snakemake

GRAPH_OF = ("gpu=local", "model=dlrm_small")
"""The grid whose rule graph is shown: the one in which every stage runs for real."""

PLACES = (("README.md", "accuracy", short), ("docs/accuracy.md", "tables", long))
"""Files with a generated block, the name of its markers, and what writes it."""


def shipped_families() -> list[tuple[str, Path]]:
    """(GPU, model folder) of every family that ships; those of one dtype alone say so behind the GPU's name."""
    packs = {gpu: gpu for gpu in list_packs()} | {f"{gpu} (bf16)": f"{FOLDER}/{gpu}" for gpu in measured_gpus()}
    return [(name, folder) for name, pack in packs.items() for folder in model_folders(pack)]


def gather(results: Path) -> Evidence:
    """Everything that the account is made of.

    Raises:
        InputError: the checks have not run.
    """
    checks = {name: results / "checks" / f"{name}.parquet" for name in ("replays", "passes")}
    for path in checks.values():
        if not path.is_file():
            raise InputError(f"{path}: no such file; it needs the public data: set $STEPTIME_DATASETS to its folder")
    moved = transfer_dir()
    pairs, models = (read_any([str(path)] if path.is_file() else []) for path in
                     (moved / PAIR_ERRORS, moved / MODEL_ERRORS))  # fmt: skip
    return Evidence(tables.kernel_errors(shipped_families()), read_any([str(checks["replays"])]),
                    read_any([str(checks["passes"])]), left_out_errors(moved), pairs, models)  # fmt: skip


def write(found: Evidence, root: Path) -> list[Path]:
    """Replace the generated blocks and pictures under a checkout; returns what was written.

    Raises:
        InputError: a file lacks its markers.
    """
    written = []
    for name, marker, make in PLACES:
        rewrite(root / name, {marker: make(found)})
        written.append(root / name)
    images = root / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    save(evidence.result(found.kernels, found.passes, mean_errors(found.spans)), images, "result", kinds=("png",))
    save(draw(rule_graph(GRAPH_OF, "report")), images, "rules", kinds=("svg",))
    return [*written, images / "result.png", images / "rules.svg"]


def refresh(results: Path) -> None:
    """Run the checks whose data or code has changed; does nothing where there is no public data.

    Raises:
        SteptimeError: a check failed; Snakemake has said why.
    """
    if datasets_dir() is None:
        return
    if run_snakemake("checks", {"results": results}, "--quiet", "rules") != 0:
        raise SteptimeError("the checks against public data did not finish; see the lines above")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: gather, write, name what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--root", type=Path, default=project_dir(), help="checkout whose files are rewritten")
    options = parser.parse_args(arguments)
    try:
        refresh(options.results)
        found = gather(options.results)
        for path in write(found, options.root):
            print(path.relative_to(options.root))
        if families := outdated(found):
            print(f"steptime: {PAIR_ERRORS} is not of the shipped models ({', '.join(families)}): docs/transfer.md says how "
                  "to rebuild it", file=sys.stderr)  # fmt: skip
    except SteptimeError as error:
        print(f"steptime: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
