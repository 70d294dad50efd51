"""Extracts host overheads of several workloads of one host from traces: any, the public ones, or those of a campaign.

The values include the profiler's cost. `summarise(samples, cost=ProfilerCost(...))` subtracts it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from pipeline.errors import TraceError, UnknownNameError
from pipeline.measured.campaign_reader import read_traces
from pipeline.overheads.extraction import extract_overheads, without_one_time_costs
from pipeline.trace.host_activity import activity
from pipeline.trace.load import load_trace

PUBLIC_TRACES: dict[str, dict[str, str]] = {
    "V100": {
        "v100_ddp": "v100_ddp/kineto.json.gz",
        **{
            f"v100x8_dlrm_rank{rank}": f"v100x8_dlrm/rank{rank}_kineto.json.gz" for rank in range(5)
        },
    },
    "A100-PCIE-40GB": {"a100x8_dlrm": "a100x8_dlrm/kineto.json.gz"},
    "RTX2080Ti": {
        "rtx2080ti_resnet": "rtx2080ti_resnet/kineto.json.gz",
        "rtx2080ti_linear": "rtx2080ti_linear/kineto.json.gz",
    },
}
"""For each GPU and workload the trace under `traces/`. The A100 trace is from an SXM GPU, which does not matter: the
overheads depend on the host."""


def extract_traces(traces: Iterable[tuple[str, Path]]) -> pd.DataFrame:
    """Observations of several workloads' traces as one `overhead_samples` table, from the iterations after warm-up.

    One-time calls (memory from the driver, code that is loaded) are cut out, as in a replay. Steps after warm-up do not
    have them, and among few iterations a single one would dominate the mean of its op.

    Args:
        traces: (workload, trace file) pairs; each file is read before the next pair is fetched.

    Raises:
        TraceError: a trace is missing or damaged, or there is none.
    """
    parts = []
    for workload, path in traces:
        trace = load_trace(path)
        parts.append(
            extract_overheads(
                without_one_time_costs(activity(trace), trace.after_warm_up),
                workload,
                trace.after_warm_up,
            )
        )
    if not parts:
        raise TraceError("no traces to extract overheads from")
    return pd.concat(parts, ignore_index=True)


def extract_public(datasets: str | Path, gpu: str) -> pd.DataFrame:
    """Observations of a GPU's public traces.

    Args:
        datasets: the folder that holds `traces/`.
        gpu: name of the GPU.

    Raises:
        UnknownNameError: there are no public traces of this GPU.
        TraceError: a trace is missing or damaged.
    """
    if gpu not in PUBLIC_TRACES:
        raise UnknownNameError("GPU with public traces", gpu, list(PUBLIC_TRACES))
    folder = Path(datasets) / "traces"
    return extract_traces(
        (workload, folder / name) for workload, name in PUBLIC_TRACES[gpu].items()
    )


def extract_campaign(folder: str | Path) -> pd.DataFrame:
    """Observations of every traced step of a campaign; workloads have the same names as in grid points.

    Args:
        folder: `measurements/<GPU>`.

    Raises:
        InputError: the folder is not that of a campaign.
        TraceError: it holds no traces, or a damaged one.
    """
    members = list(read_traces(folder))
    if not members:
        raise TraceError(f"{folder}: the campaign has no traces; run it again with --parts steps")
    with tempfile.TemporaryDirectory(prefix="steptime_") as scratch:
        return extract_traces(
            (member.workload, member.extract(Path(scratch))[0]) for member in members
        )
