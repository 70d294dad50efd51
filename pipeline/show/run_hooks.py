"""Before and after the jobs of a Snakemake run: dates of files; the predictions of its grid, or why jobs failed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import compress
from pathlib import Path

from pipeline.answers.host_share import point
from pipeline.errors import TableError
from pipeline.flow import Flow, key_of
from pipeline.paths import Artifacts
from pipeline.prediction import Prediction
from pipeline.private_names import storage_query
from pipeline.schemas import read_table
from pipeline.show.comparison import show
from pipeline.show.tracking import database_of
from pipeline.summary_rows import predictions_of

TRACEBACK = "Traceback"
"""First word in the log of a failed job (`pipeline.scripting.job`); the log's last line gives the reason."""


AHEAD_S = 1.0
"""Seconds by which a file's time may be ahead: clocks of file servers differ a little."""


def date_now(root: str | Path) -> int:
    """Set the date of files of the future to now, as after a clock was set back; print and return how many there were.

    Snakemake stops a job whose output is older than its input, and such an input stays newer until its date has passed.
    """
    now, dated = time.time(), 0
    for path in Path(root).rglob("*"):
        with suppress(OSError):  # a file that another process has just removed
            if path.stat().st_mtime > now + AHEAD_S and path.is_file():
                os.utime(path, (now, now))
                dated += 1
    if dated:
        print(
            f"steptime: {root}: {dated} file(s) had a date in the future, and are dated now",
            file=sys.stderr,
        )
    return dated


def show_predictions(flow: Flow, table: str) -> None:
    """Print the predictions of a grid and the paths of all results; nothing if the run made another target."""
    stored = storage_query(table)
    if stored is not None:  # an object store: Snakemake has removed the local copy of the table
        print(f"results: {stored.removesuffix(f'grids/{flow.grid}/summary.parquet')}")
    if not Path(table).is_file():
        return
    root, since = flow.artifacts.root, Path(table).stat().st_mtime
    made = {point(p): p for p in predictions_of(read_table(table, "summary"), table)}
    points = [(made[key_of(asked)], asked) for asked in flow.asked]
    predictions = [
        replace(p, notes=tuple(dict.fromkeys((*asked.notes, *p.notes)))) for p, asked in points
    ]
    pages = {
        "figures": f"{root}/figures/{flow.grid}",
        "accuracy": f"{root}/accuracy/{flow.grid}.md",
        "report": f"{root}/reports/{flow.grid}.html",
    }
    made_now = (
        Path(page).exists() and Path(page).stat().st_mtime > since for page in pages.values()
    )
    written = dict(compress(pages.items(), made_now))
    show(predictions, {**artifact_paths(predictions, Path(root)), **written})
    for line in flow.not_fitted():
        print(f"steptime: {line}", file=sys.stderr)


def explain_failures(flow: Flow) -> None:
    """Print why jobs failed, one line each, below Snakemake's own messages."""
    for reason in failures(flow.artifacts.root, flow.started):
        print(f"steptime: {reason}", file=sys.stderr)


def predictions_in(root: Path) -> list[Prediction]:
    """The predictions of all points of a results folder, by model, GPU, variant and batch size.

    Unreadable summaries are left out, and a printed line reports this: they are damaged, of an older version, or being
    rewritten by a run.

    Raises:
        TableError: the folder has none.
    """
    pattern = Artifacts("").point("*", "*", "*", "*").lstrip("/") + "/summary.parquet"
    predictions = []
    for path in sorted(root.glob(pattern)):
        try:
            predictions += predictions_of(read_table(path, "summary"), path)
        except TableError as error:
            print(f"steptime: skipped: {error}", file=sys.stderr)
    if not predictions:
        raise TableError(
            f"{root}: no predictions there; run the pipeline first, or name its folder:"
            " results=FOLDER"
        )
    return sorted(predictions, key=lambda p: (p.model, p.gpu, p.variant, p.batch_size))


def artifact_paths(predictions: Sequence[Prediction], summary: Path) -> dict[str, str]:
    """Folders and commands that give the details of the predictions, for the lines below their table.

    Args:
        predictions: rows of a summary table.
        summary: the folder of that table: the results folder, or a folder under `grids/` in it.
    """
    root = summary.parent.parent if summary.parent.name == "grids" else summary
    artifacts = Artifacts(str(root))
    paths = {"artifacts": f"{root}/"}
    if len(predictions) == 1:
        p = predictions[0]
        folder = artifacts.point(p.gpu, p.model, p.variant, p.batch_size)
        page = f"{folder}/timeline.html (in a browser; timeline.json.gz is for ui.perfetto.dev)"
        paths = {"artifacts": folder, "timeline": page}
    if not Path(paths["artifacts"]).is_dir():  # the table was copied elsewhere
        paths = {}
    if database_of(artifacts.tracking).is_file():
        paths["kernel models"] = (
            "steptime ui" if str(root) == "results" else f"steptime ui --results {root}"
        )
    return paths


def failures(root: str | Path, since: float) -> list[str]:
    """Reasons why jobs failed since a given time, from their logs, without duplicates.

    Args:
        root: the results folder.
        since: seconds since the epoch; logs of earlier runs are skipped.
    """
    reasons: dict[str, None] = {}
    for log in sorted(Path(root).rglob("logs/*.log")):
        if log.stat().st_mtime < since:
            continue
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        kind, _, message = (
            text.splitlines()[-1].partition(": ") if text.startswith(TRACEBACK) else ("", "", "")
        )
        if kind.startswith("pipeline."):  # meant for users
            reasons[message] = None
        elif kind and kind != "KeyboardInterrupt":
            reasons[f"{kind}: {message} (an error of Steptime; see {log})"] = None
    return list(reasons)
