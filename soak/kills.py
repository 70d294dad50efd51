"""Kills runs of a small grid with SIGKILL at random moments, and runs them again in the same folder.

The whole run is killed (as by a power cut), or Snakemake alone, whose jobs then write beside those of the next run. After
each kill every artifact is whole. A run that ends has artifacts equal to the byte to those of a run that nothing disturbed,
where two undisturbed runs are equal.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import pyarrow.parquet as pq

from pipeline.errors import SteptimeError
from pipeline.paths import project_dir
from pipeline.schemas import PROVENANCE_KEY, SCHEMAS, read_table

GRID = ("gpu=V100", "model=dlrm_small", "batch_size=64,256")
"""A grid of 10 jobs, two of them at a time."""

FINISHED_S = 900.0
"""Time in which an undisturbed run must end."""


def command(folder: Path, *options: str) -> list[str]:
    """The command of a run with artifacts under `folder`."""
    return [
        sys.executable,
        "-m",
        "snakemake",
        "--snakefile",
        str(project_dir() / "Snakefile"),
        "--directory",
        str(folder),
        "--cores",
        "2",
        *options,
        "--config",
        *GRID,
    ]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run: no public data, and a cache of its own beside the results."""
    return {
        **os.environ,
        "STEPTIME_DATASETS": "none",
        "STEPTIME_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run to its end."""
    return subprocess.run(
        command(folder, *options),
        cwd=project_dir(),
        env=environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=FINISHED_S,
    )


def kill_after(
    folder: Path, seconds: float, everything: bool
) -> subprocess.CompletedProcess[str] | None:
    """Start a run and kill it; None if it was killed, else what came of it."""
    with (
        (folder / "run.log").open("w") as log,
        subprocess.Popen(
            command(folder),
            cwd=project_dir(),
            env=environment(folder),
            start_new_session=True,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(seconds)
            return subprocess.CompletedProcess([], code, "", (folder / "run.log").read_text())
        jobs = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
        for job in jobs if everything else ():
            with suppress(psutil.NoSuchProcess):
                job.kill()
    return None


def artifacts(folder: Path) -> dict[str, bytes]:
    """Content of every artifact of a run by its path; logs and MLflow's database hold times of day."""
    root = folder / "results"
    files = (
        path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.startswith(".")
    )
    named = {path.relative_to(root).as_posix(): path for path in files}
    return {
        name: path.read_bytes()
        for name, path in named.items()
        if "logs" not in name and "mlflow" not in name
    }


def half_written(folder: Path) -> list[str]:
    """Artifacts that cannot be read."""
    found = []
    for name in artifacts(folder):
        path = folder / "results" / name
        try:
            if path.suffix == ".parquet":
                schema = next(
                    (each for each in (path.stem, path.stem.partition("-")[0]) if each in SCHEMAS),
                    "",
                )
                read_table(path, schema)
            elif path.suffix == ".gz":
                json.loads(gzip.decompress(path.read_bytes()))
            elif path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
                raise ValueError("cut off")
        except (SteptimeError, OSError, EOFError, ValueError, KeyError) as error:
            found.append(f"{name}: {error}")
    return found


@dataclass
class Kills:
    """What came of the kills."""

    kills: int = 0
    ended: int = 0
    parts: int = 0
    faults: list[str] = field(default_factory=list)


def differing(folder: Path, reference: Mapping[str, bytes], fixed: set[str]) -> list[str]:
    """Artifacts of a finished run that are missing, are too many, or differ from the reference."""
    found = artifacts(folder)
    changed = [name for name in sorted(fixed & {*found}) if found[name] != reference[name]]
    return sorted({*found} ^ {*reference}) + [
        f"{name}{_how(found[name], reference[name])}" for name in changed
    ]


def _how(found: bytes, reference: bytes) -> str:
    """How a table differs: in its provenance, in its rows, or in the file alone."""
    if not found.startswith(b"PAR1"):
        return ""
    tables = [pq.read_table(io.BytesIO(content)) for content in (found, reference)]
    origins = [
        json.loads((table.schema.metadata or {}).get(PROVENANCE_KEY, b"{}")) for table in tables
    ]
    keys = sorted(
        key for key in {*origins[0], *origins[1]} if origins[0].get(key) != origins[1].get(key)
    )
    seen = "; ".join(f"{key}: {origins[0].get(key)} / {origins[1].get(key)}" for key in keys)
    return (
        f" (rows {'equal' if tables[0].equals(tables[1]) else 'differ'}; provenance:"
        f" {seen or 'equal'})"
    )


def unlocked(folder: Path) -> None:
    """Remove the lock of a run that was killed, which is what `snakemake --unlock` does."""
    for lock in (folder / ".snakemake" / "locks").glob("*"):
        lock.unlink()


def undisturbed(place: Path) -> tuple[dict[str, bytes], set[str], float]:
    """Artifacts of a run, those that are equal in another run, and the time of a run in s."""
    made: list[dict[str, bytes]] = []
    start = time.perf_counter()
    for folder in (place / "first", place / "second"):
        folder.mkdir()
        done = run(folder)
        assert done.returncode == 0, done.stderr[-2000:]
        made.append(artifacts(folder))
    seconds = (time.perf_counter() - start) / 2
    reference, again = made
    fixed = {name for name in reference if again.get(name) == reference[name]}
    print(
        f"{len(reference)} artifacts, {len(fixed)} equal in two undisturbed runs, which took"
        f" {seconds:.0f} s each; not equal: {', '.join(sorted({*reference} - fixed)) or 'none'}",
        flush=True,
    )
    return reference, fixed, seconds


def main(times: int, seed: int) -> int:
    """Kill runs so many times; returns the exit code."""
    rng, seen = Random(seed), Kills()
    with tempfile.TemporaryDirectory(prefix="steptime-kills-") as place:
        reference, fixed, seconds = undisturbed(Path(place))
        folder = Path(place) / "run"
        folder.mkdir()
        while seen.kills < times:
            unlocked(folder)
            at, everything = rng.uniform(0.5, 0.3 * seconds), rng.random() < 0.7
            done = kill_after(folder, at, everything)
            if done is None:
                seen.kills += 1
                when = f"kill {seen.kills} after {at:.1f} s"
                seen.faults += [f"{when}: {fault}" for fault in half_written(folder)]
                if seen.kills % 10 == 0:
                    print(f"{seen.kills} kills, {seen.ended} ended, {len(seen.faults)} faults")
                continue
            faults = _ended(done, folder, reference, fixed, seen)
            print(f"run {seen.ended} ended after {seen.kills} kills: {faults or 'equal'}")
            seen.parts += sum(1 for _ in (folder / "results").rglob(".*.part"))
            shutil.rmtree(folder)
            folder.mkdir()
        unlocked(folder)
        _ended(run(folder), folder, reference, fixed, seen)
        seen.parts += sum(1 for _ in (folder / "results").rglob(".*.part"))
    print(
        f"{seen.kills} kills, {seen.ended} runs to their end, {seen.parts} temporary files left,"
        f" {len(seen.faults)} faults"
    )
    print("\n".join(seen.faults))
    return 1 if seen.faults else 0


def _ended(
    done: subprocess.CompletedProcess[str],
    folder: Path,
    reference: Mapping[str, bytes],
    fixed: set[str],
    seen: Kills,
) -> list[str]:
    """Count a run that ended; returns its faults."""
    seen.ended += 1
    faults = [f"{name} differs" for name in differing(folder, reference, fixed)]
    if done.returncode:
        faults = [f"exit {done.returncode}: {done.stderr[-1500:]}"]
    faults = [f"after {seen.kills} kills: {fault}" for fault in faults]
    seen.faults += faults
    return faults
