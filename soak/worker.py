"""The process in which cases run. It is replaced often, is killed when a case hangs, and may take so much memory."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

from soak.kinds import KINDS, kind_of
from soak.verdicts import Verdict, judge

MAX_RSS_BYTES = 2 << 30
"""Most memory that a worker may ever hold, bytes. PyTorch, pandas and the models of all kinds take 0.7 GB."""

MAX_ADDRESS_BYTES = 24 << 30
"""Limit of a worker's address space, so that a bomb ends in a MemoryError and not in the machine's swap."""


class Cases:
    """Runs cases by number; a kind's undamaged input is made when it is first needed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder, self.bases = seed, folder, dict[str, Any]()

    def base(self, kind: str) -> Any:
        """The undamaged input of a kind."""
        if kind not in self.bases:
            (place := self.folder / kind).mkdir(parents=True)
            self.bases[kind] = KINDS[kind].prepare(place)
        return self.bases[kind]

    def run(self, number: int) -> tuple[str, str, Verdict]:
        """(kind, mutation, verdict) of a case."""
        rng = Random(f"{self.seed}/{number}")
        kind = kind_of(rng)
        base = self.base(kind)
        (place := self.folder / "case").mkdir()
        try:
            case = KINDS[kind].case(base, place, rng)
            return kind, case.mutation, judge(case)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def work(pipe: Connection, seed: int, numbers: Iterable[int]) -> None:
    """Run cases and send what came of each. A message before a case tells which one it is, in case it never ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {"STEPTIME_DATASETS": "none", "KINETO_LOG_LEVEL": "99"}
    with tempfile.TemporaryDirectory(prefix="steptime-soak-") as folder:
        os.environ["STEPTIME_CACHE"] = f"{folder}/cache"
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        cases = Cases(seed, Path(folder) / "work")
        for number in numbers:
            kind = kind_of(Random(f"{seed}/{number}"))
            pipe.send(("begin", number, kind))
            cases.base(kind)
            pipe.send(("ready", number, kind))
            start = time.perf_counter()
            try:
                _, mutation, verdict = cases.run(number)
            except Exception as error:  # a fault of the soak itself
                mutation, verdict = (
                    "",
                    Verdict("fault of the soak", f"{type(error).__name__}: {error}"),
                )
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if peak > MAX_RSS_BYTES and not verdict.failed:
                verdict = Verdict("memory", f"the process has held {peak:,} bytes")
            pipe.send(("done", number, kind, mutation, verdict, time.perf_counter() - start, peak))
            if verdict.outcome == "memory":
                break
    pipe.send(("end",))
