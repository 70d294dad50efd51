"""Output at the end of a Snakemake run: the predictions of its grid and their paths, or why jobs failed."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.flow import Flow
from pipeline.prediction import Prediction
from pipeline.report.artifact_list import places
from pipeline.report.job_failures import reasons
from pipeline.report.show import show
from pipeline.report.summary_index import refresh
from pipeline.schemas import read_table


def show_predictions(flow: Flow, table: str) -> None:
    """Print the predictions of a grid and the paths of all results; print nothing if the run made another target."""
    stored = getattr(table, "flags", {}).get("storage_object")
    if stored is not None:  # an object store: Snakemake has removed the local copy of the table
        print(f"results: {stored.query.removesuffix(f'grids/{flow.grid}/summary.parquet')}")
    if not Path(table).is_file():
        return
    root, since = flow.artifacts.root, Path(table).stat().st_mtime
    refresh(root)
    predictions = Prediction.all_of(read_table(table, "summary"), table)
    pages = {"figures": f"{root}/figures/{flow.grid}", "accuracy": f"{root}/accuracy/{flow.grid}.md",
             "report": f"{root}/reports/{flow.grid}.html"}  # fmt: skip
    made = {name: page for name, page in pages.items() if Path(page).exists() and Path(page).stat().st_mtime > since}
    show(predictions, {**places(predictions, Path(root)), **made})
    for line in flow.not_fitted():
        print(f"steptime: {line}", file=sys.stderr)


def explain_failures(flow: Flow) -> None:
    """Print why jobs failed, one line each, below Snakemake's own messages."""
    for reason in reasons(flow.artifacts.root, flow.started):
        print(f"steptime: {reason}", file=sys.stderr)
