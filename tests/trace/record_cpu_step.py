"""Records the CPU trace that the golden test reads: four training steps of a small DLRM, and an execution trace.

    python -m tests.trace.record_cpu_step        # from the repository's root; then refresh the goldens

The steps run on one thread with `torch.profiler`, so the times are measured. The same file cannot be recorded twice:
another processor or another PyTorch gives other times and operators. Paths and names of the machine are left out.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

import torch

from pipeline.collect.profiling import execution_trace, profile_steps, write_gzip
from pipeline.workloads import make_step
from tests.workloads.small import config_of

FOLDER = Path(__file__).parent / "golden" / "cpu_dlrm" / "input"

MODEL = {
    "bottom_mlp": [16, 32, 8],
    "top_mlp": [32, 1],
    "tables": 2,
    "rows": 1000,
    "dim": 8,
    "lookups": 4,
}
BATCH_SIZE = 256
STEPS = 4

KEPT = ("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds", "traceEvents")
"""Entries of the file that the reader uses; the others name the machine, its folders and its processes."""


def record(folder: Path = FOLDER) -> None:
    """Write `kineto.json.gz` and `execution_trace.json.gz` into a folder."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = torch.device("cpu")
    step = make_step(config_of("dlrm_small", **MODEL), BATCH_SIZE, "cpu")
    for number in range(10):  # the first steps also fill caches and allocate
        step.run(number)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "kineto.json"
        profile_steps(step.run, device, STEPS, path)
        kineto = json.loads(path.read_text())
        nodes = json.loads(execution_trace(step.run, device, Path(scratch)))
    kineto = {key: kineto[key] for key in KEPT if key in kineto}
    nodes = {key: nodes[key] for key in ("schema", "nodes")}
    for name, content in (("kineto", kineto), ("execution_trace", nodes)):
        write_gzip(json.dumps(content, separators=(",", ":")).encode(), folder / f"{name}.json.gz")


if __name__ == "__main__":
    record()
    for written in sorted(FOLDER.iterdir()):
        print(
            f"{written.name}: {written.stat().st_size} bytes,"
            f" {len(gzip.decompress(written.read_bytes()))} unpacked"
        )
