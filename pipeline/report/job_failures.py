"""Reasons why jobs of a run failed, one line each, from the jobs' logs (`pipeline.scripting.job`)."""

from __future__ import annotations

from pathlib import Path

TRACEBACK = "Traceback"
"""First word in the log of a failed job; the log's last line gives the reason."""


def reasons(root: str | Path, since: float) -> list[str]:
    """Reasons of failures since a given time, without duplicates.

    Args:
        root: the results folder.
        since: seconds since the epoch; logs of earlier runs are skipped.
    """
    found: dict[str, None] = {}
    for log in sorted(Path(root).rglob("logs/*.log")):
        if log.stat().st_mtime < since:
            continue
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        kind, _, message = text.splitlines()[-1].partition(": ") if text.startswith(TRACEBACK) else ("", "", "")
        if kind.startswith("pipeline."):  # meant for users
            found[message] = None
        elif kind and kind != "KeyboardInterrupt":
            found[f"{kind}: {message} (an error of Steptime; see {log})"] = None
    return list(found)
