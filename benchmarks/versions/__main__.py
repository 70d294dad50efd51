"""Install the wheel beside several versions of Python and PyTorch, run a short suite in each, and write docs/trust.md.

    python -m benchmarks.versions [ENVIRONMENT ...] [--results results/versions] [--page docs/trust.md]

It needs `uv` and `hatchling`, and Pythons that uv finds. PyTorch's CUDA builds take 6 GB each: environments are made one
after another, without uv's cache, and deleted. An environment that has a result is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.versions.short_suite import CHECKS
from evaluation.pages.markdown import rewrite
from pipeline.paths import project_dir

ROOT = project_dir()
TRACE = ROOT / "tests/trace/golden/drawn_gpu/input/kineto.json.gz"

TOLERANCE = 1e-9
"""Largest relative difference of a number from that of the tested versions."""

TESTED, NEWEST, OLDEST = "tested together", "newest allowed", "oldest allowed"


@dataclass(frozen=True)
class Environment:
    """Versions to install: of Python and PyTorch, how the others are chosen, and further requirements."""

    python: str
    torch: str
    others: str = NEWEST
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        parts = f"py{self.python}", f"torch{self.torch}", self.others.split()[0], *self.also
        return "-".join(parts).replace("<", "below")


ENVIRONMENTS = (
    Environment("3.11", "2.13.0", TESTED),
    Environment("3.13", "2.13.0", TESTED),
    Environment("3.11", "2.6.0", OLDEST),
    Environment("3.12", "2.8.0", NEWEST, ("pandas<3",)),
    Environment("3.13", "2.10.0"),
    Environment("3.12", "2.12.0"),
)
"""The first is the reference of all numbers."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {each.name: each for each in ENVIRONMENTS}
    parser.add_argument(
        "names", nargs="*", metavar="ENVIRONMENT", help=f"one of {', '.join(known)}; default: all"
    )
    parser.add_argument("--results", type=Path, default=Path("results/versions"))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "trust.md")
    given = parser.parse_args()
    if unknown := set(given.names) - set(known):
        parser.error(f"no environment {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    given.results.mkdir(parents=True, exist_ok=True)
    for name in given.names or known:
        place = given.results / f"{name}.json"
        if not place.is_file():
            place.write_text(json.dumps(run(known[name]), indent=1) + "\n", encoding="utf-8")
        print(name, json.loads(place.read_text(encoding="utf-8")).get("outcomes"), flush=True)
    found = {
        name: json.loads(place.read_text(encoding="utf-8"))
        for name in known
        if (place := given.results / f"{name}.json").is_file()
    }
    rewrite(given.page, {"versions": table([(known[name], each) for name, each in found.items()])})


def run(environment: Environment) -> dict[str, Any]:
    """The result of the short suite in a new environment, which is deleted afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        _call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
        (wheel,) = place.glob("*.whl")
        python = place / "venv" / "bin" / "python"
        _call("uv", "venv", "--python", environment.python, str(python.parents[1]))
        command = [
            "uv",
            "pip",
            "install",
            "--no-cache",
            "--python",
            str(python),
            str(wheel),
            f"torch=={environment.torch}",
            *environment.also,
        ]
        if environment.others == TESTED:
            command += ["--constraints", str(ROOT / "constraints.txt")]
        elif environment.others == OLDEST:
            stated = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
                "project"
            ]["dependencies"]
            command += [
                *(each for each in stated if not each.startswith("torch")),
                "--resolution",
                "lowest-direct",
            ]
        try:
            _call(*command)
        except subprocess.CalledProcessError as error:
            return {
                "outcomes": {"install": " ".join(error.stderr.split())[-300:]},
                "numbers": {},
                "versions": {},
            }
        suite = Path(__file__).with_name("short_suite.py")
        told = _call(str(python), str(suite), cwd=folder, env={"SUITE_TRACE": str(TRACE)})
    return dict(json.loads(told.splitlines()[-1]))


def _call(
    *command: str, cwd: str | Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def table(results: Sequence[tuple[Environment, Mapping[str, Any]]]) -> str:
    """A row for each environment: its versions, and the checks that failed."""
    reference = results[0][1]["numbers"]
    columns = (
        "Python",
        "PyTorch",
        "other packages",
        "pandas",
        "NumPy",
        "what works",
        "largest difference",
    )
    rows = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for environment, result in results:
        versions, outcomes = result["versions"], result["outcomes"]
        if "install" in outcomes:
            rows.append(
                f"| {environment.python} | {environment.torch} | not installable:"
                f" {outcomes['install']} |"
            )
            continue
        failed = "; ".join(f"not {name}: {said}" for name, said in outcomes.items() if said != "ok")
        facts = [
            result["python"],
            versions["torch"],
            environment.others,
            versions["pandas"],
            versions["numpy"],
        ]
        facts += [failed or f"all {len(CHECKS)} checks", _difference(result["numbers"], reference)]
        rows.append(f"| {' | '.join(facts)} |")
    return "\n".join(rows)


def _difference(numbers: Mapping[str, float], reference: Mapping[str, float]) -> str:
    """The largest relative difference from the reference, and where it is if it is above `TOLERANCE`."""
    off = {key: abs(numbers[key] / reference[key] - 1) for key in reference if key in numbers}
    worst = max(off, key=lambda key: off[key], default=None)
    if worst is None or not math.isfinite(off[worst]):
        return "no numbers"
    return (
        "0"
        if off[worst] == 0
        else f"{off[worst]:.1g}" + (f" ({worst})" if off[worst] > TOLERANCE else "")
    )


if __name__ == "__main__":
    main()
