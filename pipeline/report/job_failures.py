"""Why jobs of a run failed, one line each, from the logs that they left (`pipeline.scripting.job`)."""

from __future__ import annotations

from pathlib import Path

TRACEBACK = "Traceback"
"""How the log of a job that failed begins; the last line then says why."""


def reasons(root: str | Path, since: float) -> list[str]:
    """What failed since a time, each reason once.

    Args:
        root: the results folder.
        since: seconds since the epoch; logs of earlier runs are passed over.
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
