"""Compares steptime with HolisticTraceAnalysis (HTA): reading and linking a trace, and its critical path.

    python benchmarks/trace/hta.py [--env build/hta-env] [--copies 10] [--out build/benchmarks/hta.json]

Each tool runs in its own process. Time is processor time without imports, the shortest of several runs. Peak memory
includes everything. Both tools keep linked events in memory: steptime as columns, HTA as the data frame of its
`TraceAnalysis`. HTA needs pandas < 3; this script creates a virtual environment for it on first use. The larger trace
is the public one with its events repeated at later times and with new ids. Critical paths are those of the second
iteration. The share in common is a share of kernel time.
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

BUSY_S = 0.5
"""Time for which both tools compute before they are measured. A core that was idle takes that long to reach its full speed:
without this, the 35 MB trace took 0.17 s instead of 0.115 s, and a tool that runs longer lost less."""

_MEASURE = """
import json, re, sys, time
{imports}
def memory(key):  # of this process since its start; ru_maxrss would include the parent's peak
    return int(re.search(key + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024
before = memory("VmHWM")
full_speed = time.perf_counter() + BUSY_S
while time.perf_counter() < full_speed:
    pass
wall, begin = time.perf_counter(), time.process_time()
{work}
seconds, wall, peak = time.process_time() - begin, time.perf_counter() - wall, memory("VmHWM")
{facts}
print("RESULT", json.dumps({{"seconds": seconds, "wall_seconds": wall, "peak_mb": peak, "imports_mb": before,
                             "facts": facts}}))
""".replace("BUSY_S", str(BUSY_S))

OURS = {
    "convert": _MEASURE.format(
        imports="from pipeline.trace.load import load_trace",
        work="trace = load_trace(sys.argv[1])",
        facts="facts = len(trace)",
    ),
    "command": _MEASURE.format(
        imports="",
        work="""from pipeline.cli import app
app(["trace", sys.argv[1], "--out", sys.argv[1] + ".parquet"], standalone_mode=False)""",
        facts="facts = None",
    ),
    "critical_path": _MEASURE.format(
        imports=(
            "from pipeline.simulate.replay import replay\nfrom pipeline.trace.host_activity import"
            " activity"
        ),
        work="""result = replay(sys.argv[1])
one = next(r for r in result.replayed if r.iteration.number == 1)
path = one.timeline.critical.calls""",
        facts="""calls = activity(result.trace).call_event[one.iteration.calls][path]
facts = dict(zip(result.trace.columns["correlation"][calls].tolist(),
                 (result.trace.columns["dur_ns"][calls] / 1000).tolist()))""",
    ),
}
HTA = {
    "convert": _MEASURE.format(
        imports="from hta.common.trace import Trace",
        work="""trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.load_traces(use_multiprocessing=False, use_memory_profiling=False)""",
        facts="facts = len(trace.get_trace(0))",
    ),
    "critical_path": _MEASURE.format(
        imports="from hta.trace_analysis import TraceAnalysis",
        work="""analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
graph, ok = analysis.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=1)""",
        facts="""frame = analysis.t.get_trace(0)
frame = frame[frame["index"].isin(graph.critical_path_events_set) & (frame["stream"] >= 0) & (frame["dur"] > 0)]
facts = {int(c): float(d) for c, d in zip(frame["correlation"], frame["dur"])}""",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", type=Path, default=ROOT / "build" / "hta-env")
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
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
        for task, path, repeats in (
            ("convert", small, options.repeats),
            ("convert", large, 1),
            ("command", small, 1),
            ("command", large, 1),
            ("critical_path", small, 1),
        ):
            rows.append(compare(task, path, str(python), repeats))
            show(rows[-1])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(rows, indent=1))
    return 0


def compare(task: str, path: Path, python: str, repeats: int) -> dict[str, Any]:
    """Run one task with both tools. HTA has no counterpart to `command` (read, link and write parquet, start to end)."""
    rounds = []
    for _ in range(repeats):  # alternating, so that other work on the machine slows both
        rounds.append(
            (measured(sys.executable, OURS[task], path), measured(python, HTA.get(task), path))
        )
    ours, theirs = (fastest([pair[tool] for pair in rounds]) for tool in (0, 1))
    row = {"task": task, "megabytes": path.stat().st_size / 1e6, "steptime": ours, "hta": theirs}
    if theirs:
        row["throughput_ratio"] = theirs["seconds"] / ours["seconds"]
        row["memory_ratio"] = ours["peak_mb"] / theirs["peak_mb"]
    if task == "critical_path" and theirs:
        mine, other = ours.pop("facts"), theirs.pop("facts")
        row["kernel_us"] = {"steptime": sum(mine.values()), "hta": sum(other.values())}
        row["in_common"] = sum(us for key, us in mine.items() if key in other) / sum(
            {**mine, **other}.values()
        )
    return row


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


def measured(python: str, code: str | None, path: Path) -> dict[str, Any]:
    """Result of one run; empty if the tool fails or does not have the task."""
    if code is None:
        return {}
    run = subprocess.run(
        [python, "-c", code, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    found = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    if not found:
        print(run.stderr.strip().splitlines()[-1:] or "no result", file=sys.stderr)
        return {}
    result: dict[str, Any] = json.loads(found[0].removeprefix("RESULT "))
    return result


def fastest(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The run with the least processor time; empty if all failed."""
    return min(filter(None, results), key=lambda r: float(r["seconds"]), default={})


def show(row: dict[str, Any]) -> None:
    """Print one comparison."""
    for tool in ("steptime", "hta"):
        if row[tool]:
            rate = row["megabytes"] / row[tool]["seconds"]
            print(
                f"{row['task']:14s} {row['megabytes']:7.1f} MB {tool:9s}"
                f" {row[tool]['seconds']:7.2f} s {rate:7.1f} MB/s  peak {row[tool]['peak_mb']:7.0f}"
                f" MB (imports {row[tool]['imports_mb']:.0f})"
            )
    if "in_common" in row:
        on_path = ", ".join(f"{tool} {us / 1e3:.1f} ms" for tool, us in row["kernel_us"].items())
        print(f"{'':14s} kernels on the path: {on_path}; {row['in_common']:.0%} in common")
    if "throughput_ratio" in row:
        print(
            f"{'':14s} throughput {row['throughput_ratio']:.1f} x, memory"
            f" {row['memory_ratio']:.2f} x"
        )


if __name__ == "__main__":
    sys.exit(main())
