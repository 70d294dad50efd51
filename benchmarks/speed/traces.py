"""Reading and linking a trace, beside HolisticTraceAnalysis (HTA).

The traces are the largest public one, and the same with its events repeated ten times, at later times and with new ids. Each
tool runs in a process of its own. Time is processor time without imports, peak memory includes everything. Both tools keep
linked events in memory: steptime as columns, HTA as the data frame of its `TraceAnalysis`. HTA needs pandas < 3: a virtual
environment is created for it on first use.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from evaluation.pages.markdown import markdown
from pipeline.paths import datasets_dir, project_dir

LARGEST, COPIES = "a100x8_dlrm", 10
ROOT = project_dir()

BUSY_S = 0.5
"""Time for which both tools compute before they are measured. A core that was idle takes that long to reach its full speed:
without this, the 35 MB trace took 0.17 s instead of 0.115 s, and a tool that runs longer lost less."""

_MEASURE = """
import json, re, sys, time
{imports}
full_speed = time.perf_counter() + BUSY_S
while time.perf_counter() < full_speed:
    pass
begin = time.process_time()
{work}
seconds = time.process_time() - begin
# of this process since its start; ru_maxrss would include the parent's peak
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
print(json.dumps({{"seconds": seconds, "peak_mb": peak}}))
""".replace("BUSY_S", str(BUSY_S))

TOOLS = {
    "steptime": _MEASURE.format(
        imports="from pipeline.trace.load import load_trace", work="trace = load_trace(sys.argv[1])"
    ),
    "hta": _MEASURE.format(
        imports="from hta.common.trace import Trace",
        work="""trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.load_traces(use_multiprocessing=False, use_memory_profiling=False)""",
    ),
}


def section(rounds: int) -> str:
    """CPU time without imports, and peak memory: the round with the least CPU time of each tool."""
    data = datasets_dir()
    if data is None:
        raise SystemExit("no public traces here: set STEPTIME_DATASETS")
    pythons = {"steptime": sys.executable, "hta": str(environment(ROOT / "build" / "hta-env"))}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        raw = gzip.decompress((data / "traces" / LARGEST / "kineto.json.gz").read_bytes())
        small, large = Path(folder) / "trace.json", Path(folder) / "trace_large.json"
        small.write_bytes(raw)
        enlarge(raw, COPIES, large)
        for path in (small, large):
            # in turn, so that other work on the machine slows both
            runs = [
                [measured(pythons[tool], TOOLS[tool], path) for tool in TOOLS]
                for _ in range(rounds)
            ]
            ours, theirs = (
                min(of, key=lambda run: run["seconds"]) for of in zip(*runs, strict=True)
            )
            cells = [
                f"{each['seconds']:.2f} s, {each['peak_mb']:.0f} MB" for each in (ours, theirs)
            ]
            cells.append(f"{theirs['seconds'] / ours['seconds']:.1f} x")
            cells.append(f"{ours['peak_mb'] / theirs['peak_mb']:.2f} x")
            rows.append((f"{path.stat().st_size / 1e6:.0f} MB", *cells))
    return markdown(("trace", "Steptime", "HTA", "throughput", "memory"), rows)


def measured(python: str, code: str, path: Path) -> dict[str, float]:
    """Processor time and peak memory of one run."""
    run = subprocess.run(
        [python, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def environment(path: Path) -> Path:
    """Path of the Python in HTA's virtual environment, which is created on first use."""
    python = path / "bin" / "python"
    if not python.is_file():
        venv.create(path, with_pip=True)
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis", "pandas<3"], check=True
        )
    return python


def enlarge(raw: bytes, copies: int, out: Path) -> None:
    """Write the trace with its complete and flow events repeated; each copy is later in time and has new ids."""
    trace = json.loads(raw)
    events = [e for e in trace["traceEvents"] if e["ph"] in "Xsf"]
    rest = [e for e in trace["traceEvents"] if e["ph"] not in "Xsf"]
    stamps = [e["ts"] for e in events]
    period = max(stamps) - min(stamps) + 1_000_000
    ids = 1 + max(int(e.get("args", {}).get("External id", 0)) for e in events)
    with out.open("w") as file:
        head = {key: value for key, value in trace.items() if key != "traceEvents"}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        file.write(",\n".join(json.dumps(e) for e in rest))
        for copy in range(copies):
            for event in events:
                file.write(",\n" + json.dumps(shifted(event, copy * period, copy * ids)))
        file.write("\n]}")


def shifted(event: dict[str, Any], later: int, ids: int) -> dict[str, Any]:
    """One event, moved to a later time and with new ids."""
    args = event.get("args")
    moved = {**event, "ts": event["ts"] + later}
    if "id" in event:
        moved["id"] = event["id"] + ids
    if args:
        moved["args"] = {
            k: v + ids if k in ("External id", "correlation") else v for k, v in args.items()
        }
    return moved
