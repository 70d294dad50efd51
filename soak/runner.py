"""Runs thousands of cases, one after the other, in a process that is replaced often, and killed when a case hangs."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from soak.kinds import KINDS, kind_of
from soak.verdicts import Done, Verdict, judge

CASES_PER_WORKER = 800
"""Cases after which a worker is replaced: what one case leaves behind does not pile up."""

CASE_SECONDS = 60
"""Time after which a case counts as a hang. The slowest takes 5 s on an idle core."""

SETUP_SECONDS = 300
"""Time to start a worker and to make the undamaged input of a kind."""

MAX_RSS_BYTES = 2 << 30
"""Most memory that a worker may ever hold, bytes. PyTorch, pandas and the models of all kinds take 0.7 GB."""

MAX_ADDRESS_BYTES = 24 << 30
"""Limit of a worker's address space, so that a bomb ends in a MemoryError and not in the machine's swap."""

SPAWN = multiprocessing.get_context("spawn")
"""How a worker is started: nothing of this process is in it."""

Work = Callable[[int, int], Done]
"""Runs the case of a seed and a number."""


class HangError(BaseException):
    """A case that takes too long; no reader that catches its own errors may catch it."""


@cache
def folder() -> Path:
    """A worker's own folder, with its cache and what a case writes; the worker's limits are set with it."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    place = tempfile.mkdtemp(prefix="worker-")
    os.environ |= {"STEPTIME_DATASETS": "none", "KINETO_LOG_LEVEL": "99"}
    os.environ["STEPTIME_CACHE"] = f"{place}/cache"
    os.environ["TMPDIR"] = tempfile.tempdir = place
    return Path(place)


@cache
def base(kind: str) -> Any:
    """The undamaged input of a kind, made when it is first needed."""
    (place := folder() / kind).mkdir()
    return KINDS[kind].prepare(place)


def work(seed: int, number: int) -> Done:
    """Run a case in a worker."""
    kind = kind_of(rng := Random(f"{seed}/{number}"))
    undamaged = base(kind)
    (place := folder() / "case").mkdir()
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(CASE_SECONDS)
    mutation = ""
    try:
        case = KINDS[kind].case(undamaged, place, rng)
        mutation, verdict = case.mutation, judge(case)
    except HangError:
        verdict = Verdict("hang", f"did not end within {CASE_SECONDS} s")
    except Exception as error:
        verdict = Verdict("fault of the soak", f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        shutil.rmtree(place, ignore_errors=True)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peak > MAX_RSS_BYTES and not verdict.failed:
        verdict = Verdict("memory", f"the process has held {peak:,} bytes")
    return Done(kind, mutation, verdict, peak)


def _hang(*_: object) -> None:
    raise HangError


@dataclass
class Tally:
    """What has run: by kind the number of each outcome, failures as text, and the most memory of a worker."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    peak_bytes: int = 0

    def add(self, number: int, done: Done) -> None:
        """Count a case; a failure is kept with its number, which makes it again."""
        self.counts.setdefault(done.kind, Counter())[done.verdict.outcome] += 1
        self.peak_bytes = max(self.peak_bytes, done.peak_bytes)
        if done.verdict.failed:
            what = f"{done.verdict.outcome}: {done.verdict.detail[:300]}"
            self.failures.append(f"case {number} ({done.kind}, {done.mutation[:80]}): {what}")


def soak(
    seed: int, numbers: Iterable[int], tell: Callable[[str], object], work: Work = work
) -> Tally:
    """Run cases.

    Args:
        seed: the same seed makes the same cases.
        numbers: the cases that run.
        tell: gets a line for each failure, and one now and then.
        work: runs a case in a worker.
    """
    tally, workers, begun = Tally(), None, time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="steptime-soak-") as place,
        patch.dict(os.environ, TMPDIR=place),  # workers put their temporary files there
    ):
        for count, number in enumerate(numbers, 1):
            workers = workers or _workers()
            done = _done(workers, work, seed, number)
            tally.add(number, done)
            if done.verdict.failed:
                tell(tally.failures[-1])
                _stop(workers)
                workers = None
            if count % CASES_PER_WORKER == 0:
                minutes = (time.monotonic() - begun) / 60
                tell(f"up to case {number}: {len(tally.failures)} failures, {minutes:.1f} min")
        if workers:
            _stop(workers)
    return tally


def _workers() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, SPAWN, max_tasks_per_child=CASES_PER_WORKER)


def _done(workers: ProcessPoolExecutor, work: Work, seed: int, number: int) -> Done:
    """A case that has run, or whose worker does not answer or died."""
    limit, kind = SETUP_SECONDS + CASE_SECONDS, kind_of(Random(f"{seed}/{number}"))
    try:
        return workers.submit(work, seed, number).result(limit)
    except TimeoutError:
        return Done(kind, "", Verdict("hang", f"did not end within {limit} s"))
    except BrokenProcessPool:
        return Done(kind, "", Verdict("died", "the process ended"))


def _stop(workers: ProcessPoolExecutor) -> None:
    """End the processes of a pool, whatever they do. Those of other pools, as joblib's, go on."""
    for process in multiprocessing.active_children():
        if isinstance(process, SPAWN.Process):
            process.kill()
    workers.shutdown(cancel_futures=True)


def table(tally: Tally) -> str:
    """The table of what ran, as Markdown."""
    rows = [
        "| input | cases | refused in one line | read, and right | failures |",
        "|---|---|---|---|---|",
    ]
    kinds = {kind.what: tally.counts.get(name, Counter()) for name, kind in KINDS.items()}
    kinds["all"] = sum(kinds.values(), Counter[str]())
    for what, counts in kinds.items():
        good = [counts["refused"], counts["accepted"]]
        cells = [counts.total(), *good, counts.total() - sum(good)]
        rows.append(f"| {what} | " + " | ".join(f"{each:,}" for each in cells) + " |")
    return "\n".join(rows)
