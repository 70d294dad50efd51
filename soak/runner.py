"""Runs thousands of cases in one worker at a time, keeps a state file, and goes on where it was stopped."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.schemas import atomic_path
from soak.kinds import KINDS
from soak.verdicts import Verdict
from soak.worker import work

CASES_PER_WORKER = 800
"""Cases after which a worker is replaced: what one case leaves behind does not pile up."""

CASE_SECONDS = 60.0
"""Time after which a case counts as a hang. The slowest takes 5 s on an idle core."""

SETUP_SECONDS = 300.0
"""Time to start a worker and to make the undamaged input of a kind."""

SAVED_EVERY = 50
"""Cases between two writes of the state file."""


@dataclass
class State:
    """What has run so far. `counts` has by kind the number of each outcome."""

    seed: int
    cases: int
    done: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    slowest_s: float = 0.0
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, number: int, kind: str, mutation: str, verdict: Verdict) -> None:
        """Count a case; failures are kept with their number, which makes them again."""
        counts = self.counts.setdefault(kind, {})
        counts[verdict.outcome] = counts.get(verdict.outcome, 0) + 1
        if verdict.failed:
            self.failures.append(
                {"case": number, "kind": kind, "mutation": mutation[:200], **asdict(verdict)}
            )
        self.done = number + 1

    def save(self, path: Path) -> None:
        """Write the state file, completely or not at all."""
        with atomic_path(path) as part:
            part.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def load(cls, path: Path) -> State:
        """Read a state file."""
        return cls(**json.loads(path.read_text()))


def soak(state: State, path: Path | None, tell: Callable[[str], object]) -> State:
    """Run the cases that are left.

    Args:
        state: what has run.
        path: the state file; None keeps none.
        tell: gets a line for each failure, and one now and then.
    """
    while state.done < state.cases:
        _one_worker(
            state, range(state.done, min(state.cases, state.done + CASES_PER_WORKER)), path, tell
        )
        if path is not None:
            state.save(path)
        tell(
            f"{state.done:,} of {state.cases:,} cases, {len(state.failures)} failures,"
            f" {state.seconds / 60:.1f} min, at most {state.peak_bytes / 2**20:.0f} MB"
        )
    return state


def _one_worker(
    state: State, numbers: range, path: Path | None, tell: Callable[[str], object]
) -> None:
    """Run cases in a new process until it ends, hangs or dies."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(theirs, state.seed, numbers), daemon=True)
    process.start()
    theirs.close()
    number, kind, limit, since = numbers.start, "", SETUP_SECONDS, time.perf_counter()
    try:
        while True:
            if not ours.poll(limit):
                _failed(
                    state, number, kind, Verdict("hang", f"did not end within {limit:.0f} s"), tell
                )
                return
            try:
                what, *message = ours.recv()
            except EOFError:
                process.join(10)
                _failed(
                    state,
                    number,
                    kind,
                    Verdict("died", f"the process ended with {process.exitcode}"),
                    tell,
                )
                return
            now = time.perf_counter()
            state.seconds, since = state.seconds + now - since, now
            if what == "end":
                return
            number, kind = message[:2]
            limit = CASE_SECONDS if what == "ready" else SETUP_SECONDS
            if what == "done":
                mutation, verdict, seconds, peak = message[2:]
                state.slowest_s, state.peak_bytes = (
                    max(state.slowest_s, seconds),
                    max(state.peak_bytes, peak),
                )
                state.add(number, kind, mutation, verdict)
                if verdict.failed:
                    tell(
                        f"case {number} ({kind}, {mutation[:80]}): {verdict.outcome}:"
                        f" {verdict.detail[:300]}"
                    )
                if path is not None and state.done % SAVED_EVERY == 0:
                    state.save(path)
    finally:
        process.kill()
        process.join()


def _failed(
    state: State, number: int, kind: str, verdict: Verdict, tell: Callable[[str], object]
) -> None:
    state.add(number, kind, "", verdict)
    tell(f"case {number} ({kind}): {verdict.outcome}: {verdict.detail}")


def table(state: State) -> str:
    """The table of what ran, as Markdown."""
    rows = [
        "| input | cases | refused in one line | read, and right | failures |",
        "|---|---|---|---|---|",
    ]
    sums = [0, 0, 0, 0]
    for name, kind in KINDS.items():
        counts = state.counts.get(name, {})
        refused, accepted, every = (
            counts.get("refused", 0),
            counts.get("accepted", 0),
            sum(counts.values()),
        )
        row = [every, refused, accepted, every - refused - accepted]
        sums = [a + b for a, b in zip(sums, row, strict=True)]
        rows.append(f"| {kind.what} | " + " | ".join(f"{each:,}" for each in row) + " |")
    return "\n".join([*rows, "| all | " + " | ".join(f"{each:,}" for each in sums) + " |"])
