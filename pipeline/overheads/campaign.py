"""Host overheads from the traces of our own campaign."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd

from pipeline.collect.reader import read_traces
from pipeline.errors import TraceError
from pipeline.overheads.extract import extract_overheads
from pipeline.trace.load import load_trace


def extract_campaign(folder: str | Path) -> pd.DataFrame:
    """Raw observations of every traced step of a campaign as an `overhead_samples` table.

    Workloads are named `model/variant/b<batch>`, as grid points name theirs. The profiler's cost is still in the values.

    Args:
        folder: `measurements/<GPU>`, or the output of the stand-alone script.

    Raises:
        InputError: the folder is no campaign's.
        TraceError: it holds no traces, or a damaged one.
    """
    parts = []
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        for member in read_traces(folder):
            kineto, _ = member.extract(Path(scratch))
            trace = load_trace(kineto)
            name = f"{member.model}/{member.variant}/b{member.batch_size}"
            parts.append(extract_overheads(trace, name, trace.settled))
    if not parts:
        raise TraceError(f"{folder}: the campaign holds no traces; run it again with --parts steps")
    return pd.concat(parts, ignore_index=True)
