"""Host overheads from the public traces, for GPUs whose hosts we have no measurements of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pipeline.errors import UnknownNameError
from pipeline.overheads.extract import extract_traces

PUBLIC_TRACES: dict[str, dict[str, str]] = {
    "V100": {
        "v100_ddp": "v100_ddp/kineto.json.gz",
        **{f"v100x8_dlrm_rank{rank}": f"v100x8_dlrm/rank{rank}_kineto.json.gz" for rank in range(5)},
    },
    "A100-PCIE-40GB": {"a100x8_dlrm": "a100x8_dlrm/kineto.json.gz"},
    "RTX2080Ti": {
        "rtx2080ti_resnet": "rtx2080ti_resnet/kineto.json.gz",
        "rtx2080ti_linear": "rtx2080ti_linear/kineto.json.gz",
    },
}
"""GPU -> workload -> trace under `traces/`. The A100 trace is from an SXM card; the host matters, not the card."""


def extract_public(datasets: str | Path, gpu: str) -> pd.DataFrame:
    """Raw observations of a GPU's public traces as an `overhead_samples` table, the profiler's cost still in them.

    `summarise(samples, cost=ProfilerCost(...))` takes the cost off. The first of three or more iterations is left out.

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
    return extract_traces((workload, folder / name) for workload, name in PUBLIC_TRACES[gpu].items())
