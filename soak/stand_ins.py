"""Workers that stand in for the real one, in the tests of the runner."""

from __future__ import annotations

import time
from collections.abc import Iterable
from multiprocessing.connection import Connection

from soak.verdicts import Verdict


def sleeping(pipe: Connection, seed: int, numbers: Iterable[int]) -> None:
    """A worker whose cases with an odd number hang."""
    for number in numbers:
        pipe.send(("ready", number, "traces"))
        time.sleep(60 * (number % 2))
        pipe.send(("done", number, "traces", "none", Verdict("refused"), 0.0, 1))
    pipe.send(("end",))


def dying(pipe: Connection, seed: int, numbers: Iterable[int]) -> None:
    """A worker that ends in the middle of its second case."""
    for number in list(numbers)[:1]:
        pipe.send(("done", number, "traces", "none", Verdict("accepted"), 0.0, 1))
        pipe.send(("ready", number + 1, "traces"))
