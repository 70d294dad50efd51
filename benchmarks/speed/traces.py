"""Reading and linking a trace, beside HolisticTraceAnalysis (HTA): `benchmarks/trace/hta.py`, which runs both.

The traces are the largest public one, and the same with its events repeated ten times.
"""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

from benchmarks.trace.hta import LARGEST, ROOT, compare, enlarge, environment
from evaluation.pages.markdown import markdown
from pipeline.paths import datasets_dir

COPIES = 10


def section(rounds: int) -> str:
    """CPU time without imports, and peak memory: the round with the least CPU time of each tool."""
    data = datasets_dir()
    if data is None:
        raise SystemExit("no public traces here: set STEPTIME_DATASETS")
    python = environment(ROOT / "build" / "hta-env")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        raw = gzip.decompress((data / "traces" / LARGEST / "kineto.json.gz").read_bytes())
        small, large = Path(folder) / "trace.json", Path(folder) / "trace_large.json"
        small.write_bytes(raw)
        enlarge(raw, COPIES, large)
        for path in (small, large):
            found = compare("convert", path, str(python), rounds)
            tools = [
                f"{found[tool]['seconds']:.2f} s, {found[tool]['peak_mb']:.0f} MB"
                for tool in ("steptime", "hta")
            ]
            ratios = (f"{found['throughput_ratio']:.1f} x", f"{found['memory_ratio']:.2f} x")
            rows.append((f"{found['megabytes']:.0f} MB", *tools, *ratios))
    return markdown(("trace", "Steptime", "HTA", "throughput", "memory"), rows)
