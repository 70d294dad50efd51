"""Before the jobs of a Snakemake run: results that are dated in the future, as after a clock was set back, are dated now."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

AHEAD_S = 1.0
"""Seconds by which a file's time may be ahead: clocks of file servers differ a little."""


def date_now(root: str | Path) -> int:
    """Set the date of files of the future to now, and print how many there were.

    Snakemake stops a job whose output is older than its input, and such an input stays newer until its date has passed.
    """
    now, dated = time.time(), 0
    for path in Path(root).rglob("*"):
        with suppress(OSError):  # a file that another process has just removed
            if path.stat().st_mtime > now + AHEAD_S and path.is_file():
                os.utime(path, (now, now))
                dated += 1
    if dated:
        print(f"steptime: {root}: {dated} file(s) had a date in the future, and are dated now", file=sys.stderr)
    return dated
