"""Host overheads from the traces of our own campaign."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd

from pipeline.collect.reader import read_traces
from pipeline.errors import TraceError
from pipeline.overheads.extract import extract_traces


def extract_campaign(folder: str | Path) -> pd.DataFrame:
    """Raw observations of every traced step of a campaign as an `overhead_samples` table.

    Workloads are named `model/variant/b<batch>`, as grid points name theirs. The profiler's cost is still in the values.

    Args:
        folder: `measurements/<GPU>`, or the output of the stand-alone script.

    Raises:
        InputError: the folder is no campaign's.
        TraceError: it holds no traces, or a damaged one.
    """
    members = list(read_traces(folder))
    if not members:
        raise TraceError(f"{folder}: the campaign holds no traces; run it again with --parts steps")
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        return extract_traces(
            (f"{member.model}/{member.variant}/b{member.batch_size}", member.extract(Path(scratch))[0])
            for member in members
        )
