"""CPU time and peak memory of a process, and tables of them. Every part of the page on speed measures with this module."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from evaluation.pages.markdown import markdown
from pipeline.paths import project_dir

IMPORTS = {
    '`python -c "import torch"`': "import torch",
    '`python -c "import pandas, pyarrow"`': "import pandas, pyarrow",
}
"""Processes that other costs are compared with."""


LAUNCHER = """
import os, sys
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(child, 0)
open(sys.argv[1], "w").write(f"{used.ru_utime + used.ru_stime} {used.ru_maxrss}")
sys.exit(abs(os.waitstatus_to_exitcode(status)))
"""
"""Runs a command and writes its CPU time and peak memory. The kernel counts the memory of the process that starts another one
as memory of the latter, so a process without any library starts it."""


@dataclass(frozen=True)
class Cost:
    """CPU time of a process in seconds, user and system, and its peak memory in MB."""

    cpu_s: float
    peak_mb: float


def python(code: str) -> list[str]:
    """The command that runs Python code."""
    return [sys.executable, "-c", code]


def steptime(*words: str, out: str = "/dev/null") -> list[str]:
    """The command that runs `steptime` of this code and writes its output to a file."""
    return python(
        f"import sys; sys.argv = ['steptime', *{list(words)!r}]; sys.stdout = open({out!r}, 'w'); "
        "from steptime.__main__ import main; main()"
    )


@cache
def _compile_modules() -> None:
    """Compile our modules, as `pip` does with those that it installs. Without this, some processes would compile them."""
    for folder in ("pipeline", "benchmarks"):
        compileall.compile_dir(project_dir() / folder, quiet=1)


def measured(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Cost of a process with one BLAS thread. The processes that it starts and waits for are included."""
    _compile_modules()
    given = os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {})
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "used"
        code = subprocess.run(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(told), *command], env=given
        ).returncode
        if code:
            raise SystemExit(
                f"a part of the benchmark failed with exit code {code}: {' '.join(command)[:200]}"
            )
        cpu_s, peak_kb = map(float, told.read_text().split())
    return Cost(cpu_s, peak_kb / 1024)


def median_costs(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, Cost]:
    """Median cost of each command; a round runs each of them once, in turn."""
    found = [{name: measured(command) for name, command in commands.items()} for _ in range(rounds)]
    return {
        name: Cost(
            median(each[name].cpu_s for each in found), median(each[name].peak_mb for each in found)
        )
        for name in commands
    }


def cost_table(found: Mapping[str, Cost]) -> str:
    """The costs as a Markdown table; ratios are to the first one."""
    base = next(iter(found.values()))
    rows = [
        (
            name,
            f"{cost.cpu_s:.2f}",
            f"{cost.cpu_s / base.cpu_s:.2f}",
            f"{cost.peak_mb:.0f}",
            f"{cost.peak_mb / base.peak_mb:.2f}",
        )
        for name, cost in found.items()
    ]
    return markdown(("what", "CPU time (s)", "ratio", "peak memory (MB)", "ratio"), rows)
