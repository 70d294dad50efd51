"""The short suite of one environment: prints a JSON object with the outcome of each check, and the numbers to compare.

    python short_suite.py        # with the Python of the environment, in an empty folder

A check is `ok`, or the error as one line. `numbers` are times in µs that must be the same in every environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

WORKLOADS = {
    "DLRM": ("dlrm_small", 256),
    "CNN": ("resnet50", 8),
    "transformer": ("transformer", 256),
    "LSTM": ("gnmt", 64),
}
"""Workloads in plain PyTorch, with a batch size."""

REPORTED = ("torch", "numpy", "pandas", "pyarrow", "scikit-learn", "snakemake", "typer")

Numbers = dict[str, float]


def imported() -> Numbers:
    import torch

    import pipeline

    assert callable(pipeline.predict) and torch.zeros(2).sum() == 0
    command = [sys.executable, "-m", "pipeline", "compare", "--help"]
    page = subprocess.run(command, capture_output=True, text=True, check=False)
    assert page.returncode == 0 and "Examples:" in page.stdout, page.stderr[-200:]
    return {}


def predicted(name: str) -> Callable[[], Numbers]:
    """A check that captures a workload, maps its calls and predicts them."""

    def check() -> Numbers:
        from pipeline import predict

        model, batch = WORKLOADS[name]
        found = predict(gpu="V100", model=model, batch_size=batch)
        return {
            f"{model} {key}": getattr(found, key)
            for key in ("predicted_us", "active_us", "p10_us", "p90_us")
        }

    return check


def traced() -> Numbers:
    """Trace three CPU steps with this PyTorch, and read the trace."""
    import torch

    from pipeline.collect.profiling import profile_steps
    from pipeline.question.question import ask
    from pipeline.trace.load import load_trace
    from pipeline.workloads import make_step

    step = make_step(ask(["model=dlrm_small", "batch_size=64"]).section("model"), 64, "cpu")
    path = Path("own.json")
    profile_steps(step.run, torch.device("cpu"), 3, path)
    trace = load_trace(path)
    assert len(trace.opens) == 3 and len(trace) > 300, (len(trace.opens), len(trace))
    return {}


def replayed() -> Numbers:
    """Replay a recorded trace, whose file comes with the suite."""
    from pipeline.simulate.replay import replay

    found = replay(Path(os.environ["SUITE_TRACE"]), []).as_dict()
    return {"replayed predicted_us": float(found["predicted_us"])}


def stored() -> Numbers:
    """Write and read a table with its provenance."""
    from pipeline.answers.engine import engine
    from pipeline.question.question import ask
    from pipeline.schemas import read_provenance, read_table, write_table
    from pipeline.summary_rows import summary_row

    found = engine().predict_one(ask(["model=dlrm_small", "batch_size=256"])).whole()
    write_table(summary_row(found), Path("summary.parquet"), "summary", {"made_by": "suite"})
    assert read_provenance(Path("summary.parquet"))["made_by"] == "suite"
    return {
        "stored predicted_us": float(
            read_table(Path("summary.parquet"), "summary").iloc[0]["predicted_us"]
        )
    }


def run_pipeline() -> Numbers:
    """All stages of a point as Snakemake's jobs, with the fit of host overheads and its MLflow run."""
    words = ["run", "gpu=V100", "model=dlrm_small", "batch_size=256", "--cores", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stderr.strip().splitlines() or ["no message"])[-1]
    shown = subprocess.run(
        [sys.executable, "-m", "pipeline", "summary", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {"pipeline predicted_us": json.loads(shown.stdout)["predictions"][0]["predicted_us"]}


CHECKS: dict[str, Callable[[], Numbers]] = {
    "import": imported,
    **{name: predicted(name) for name in WORKLOADS},
    "trace": traced,
    "replay": replayed,
    "tables": stored,
    "pipeline": run_pipeline,
}


def main() -> None:
    os.environ.update(STEPTIME_CACHE="none", STEPTIME_DATASETS="none", KINETO_LOG_LEVEL="99")
    outcomes: dict[str, str] = {}
    numbers: Numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, check in CHECKS.items():
            try:
                numbers |= check()
                outcomes[name] = "ok"
            except Exception as error:  # every kind is an outcome of this environment
                outcomes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        os.chdir("/")
    found = {name: importlib.metadata.version(name) for name in REPORTED}
    print(
        json.dumps(
            {
                "python": platform.python_version(),
                "versions": found,
                "outcomes": outcomes,
                "numbers": numbers,
            }
        )
    )


if __name__ == "__main__":
    main()
