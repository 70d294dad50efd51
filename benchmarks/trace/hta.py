"""Converting and linking a trace, and its critical path: steptime against HolisticTraceAnalysis, in one run.

    python benchmarks/trace/hta.py [--env build/hta-env] [--copies 10] [--out build/benchmarks/hta.json]

Each tool runs in a process of its own, imports excluded from the time, everything included in the peak memory. HTA
needs pandas < 3 and gets a virtual environment of its own, made here on first use. The larger trace is the public one
with its events repeated at later times under new ids.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from pipeline.paths import datasets_dir

LARGEST = "a100x8_dlrm"
ROOT = Path(__file__).resolve().parents[2]

_MEASURE = """
import json, re, sys, time
{imports}
def memory(key):  # of this process since it began; ru_maxrss would carry over the parent's peak
    return int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
before = memory("VmHWM")
begin = time.perf_counter()
{work}
seconds = time.perf_counter() - begin
print("RESULT", json.dumps({{"seconds": seconds, "peak_mb": memory("VmHWM"), "imports_mb": before, "facts": facts}}))
"""

OURS = {
    "convert": _MEASURE.format(
        imports="from pipeline.trace.load import load_trace",
        work="trace = load_trace(sys.argv[1]); table = trace.events; facts = len(table)",
    ),
    "critical_path": _MEASURE.format(
        imports="from pipeline.predict.replay import replay",
        work="""result = replay(sys.argv[1])
facts = sum(int(r.timeline.critical[1].sum()) for r in result.replayed)""",
    ),
}
HTA = {
    "convert": _MEASURE.format(
        imports="from hta.common.trace import Trace",
        work="""trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
trace.align_and_filter_trace()
trace.decode_symbol_ids()
facts = len(trace.get_trace(0))""",
    ),
    "critical_path": _MEASURE.format(
        imports="from hta.trace_analysis import TraceAnalysis",
        work="""analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
graph, ok = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)
facts = bool(ok)""",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=ROOT / "build" / "hta-env")
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "benchmarks" / "hta.json")
    options = parser.parse_args()
    data = datasets_dir()
    if data is None:
        print("no public traces here: set STEPTIME_DATASETS", file=sys.stderr)
        return 2
    python = environment(options.env)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        raw = gzip.decompress((data / "traces" / LARGEST / "kineto.json.gz").read_bytes())
        small, large = Path(folder) / "trace.json", Path(folder) / "trace_large.json"
        small.write_bytes(raw)
        enlarge(raw, options.copies, large)
        for task, path in (("convert", small), ("convert", large), ("critical_path", small)):
            megabytes = path.stat().st_size / 1e6
            ours = best(sys.executable, OURS[task], path, options.repeats)
            theirs = best(str(python), HTA[task], path, options.repeats)
            rows.append({
                "task": task, "megabytes": megabytes, "steptime": ours, "hta": theirs,
                "throughput_ratio": theirs["seconds"] / ours["seconds"] if theirs else None,
                "memory_ratio": ours["peak_mb"] / theirs["peak_mb"] if theirs else None,
            })  # fmt: skip
            show(rows[-1])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1))
    return 0


def environment(path: Path) -> Path:
    """The Python of HTA's virtual environment, made on first use."""
    python = path / "bin" / "python"
    if not python.is_file():
        venv.create(path, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "HolisticTraceAnalysis", "pandas<3"], check=True)
    return python


def enlarge(raw: bytes, copies: int, out: Path) -> None:
    """The trace with its complete and flow events repeated, each copy later in time and with ids of its own."""
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
    """One event at a later time under new ids."""
    args = event.get("args")
    moved = {**event, "ts": event["ts"] + later}
    if "id" in event:
        moved["id"] = event["id"] + ids
    if args:
        moved["args"] = {k: v + ids if k in ("External id", "correlation") else v for k, v in args.items()}
    return moved


def best(python: str, code: str, path: Path, repeats: int) -> dict[str, Any]:
    """The fastest of some runs; empty where the tool fails."""
    results = []
    for _ in range(repeats):
        run = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT, check=False)
        found = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
        if not found:
            print(run.stderr.strip().splitlines()[-1:] or "no result", file=sys.stderr)
            return {}
        results.append(json.loads(found[0].removeprefix("RESULT ")))
    return min(results, key=lambda r: r["seconds"])


def show(row: dict[str, Any]) -> None:
    """One line per comparison."""
    for tool in ("steptime", "hta"):
        if row[tool]:
            rate = row["megabytes"] / row[tool]["seconds"]
            print(f"{row['task']:14s} {row['megabytes']:7.1f} MB {tool:9s} {row[tool]['seconds']:7.2f} s "
                  f"{rate:7.1f} MB/s  peak {row[tool]['peak_mb']:7.0f} MB (imports {row[tool]['imports_mb']:.0f})")  # fmt: skip
    if row["throughput_ratio"]:
        print(f"{'':14s} throughput {row['throughput_ratio']:.1f} x, memory {row['memory_ratio']:.2f} x")


if __name__ == "__main__":
    sys.exit(main())
