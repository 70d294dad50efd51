"""Members of kernel models are trained in several processes, whatever family they belong to.

A family's fit is a thread of this process, which prepares, waits and judges; what takes long (trees, networks and settings of
its folds, which do not depend on each other) goes to processes that all families share. So a fit is as fast as the
processors allow, and the longest family is not waited for alone.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.errors import SteptimeError

T = TypeVar("T")
Job = Callable[[Executor | None], T]
"""Work of a thread, given the processes to train in; none: it trains where it is."""

AHEAD = 1
"""Families that are begun beyond one for each process, so that there is always something to train."""


@dataclass
class Crew:
    """What trains the members of one fit: the processes of `pool`, or this thread.

    Attributes:
        pool: None for this thread.
        spent_s: processor seconds that processes of the pool spent for this crew.
    """

    pool: Executor | None = None
    spent_s: float = 0.0

    def start(self, function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Begin a call of a function that a fresh process can import; what comes back waits for its answer."""
        if self.pool is None:
            answer = function(*arguments)
            return lambda: answer
        running = self.pool.submit(_timed, function, arguments)

        def wait() -> T:
            found, spent_s = running.result()
            self.spent_s += spent_s
            return found

        return wait

    def all(self, function: Callable[..., T], calls: Iterable[Sequence[Any]]) -> list[T]:
        """Answers of one function to several lists of arguments, in their order."""
        waiting = [self.start(function, *arguments) for arguments in calls]
        return [wait() for wait in waiting]


def _timed(function: Callable[..., T], arguments: Sequence[Any]) -> tuple[T, float]:
    """A call's answer, and the processor seconds that it took."""
    started = time.thread_time()
    answer = function(*arguments)
    return answer, time.thread_time() - started


def run_jobs(jobs: Sequence[Job[T]], workers: int) -> Iterator[T]:
    """Run jobs, which begin in this order, and yield their results as they end.

    Args:
        jobs: each is given the pool of processes that all share.
        workers: processes; with one, jobs run one after the other, here and without a pool.

    Raises:
        SteptimeError: a process was ended from outside, most likely for memory.
    """
    if workers <= 1:
        yield from (job(None) for job in jobs)
        return
    # fresh processes: torch does not survive a fork
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    with _interrupts_are_for_this_process():  # these are started by the first calls that find no idle one
        for _ in range(workers):
            pool.submit(os.getpid)
    threads = ThreadPoolExecutor(workers + AHEAD, thread_name_prefix="fit")
    try:
        for done in as_completed([threads.submit(job, pool) for job in jobs]):
            yield done.result()
    except BaseException as error:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:  # what they train is of no use any more
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise SteptimeError(
                "a process of the fit was ended from outside, most likely because memory ran out; fit with fewer workers"
            ) from None
        raise
    finally:
        threads.shutdown()
        pool.shutdown()


def end_with_parent() -> None:
    """End this process when the one that started it is gone, however that ended.

    A parent that is killed (by a scheduler, for memory) tells its workers nothing: they would fit to the end and then wait
    for ever for more.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


@contextmanager
def _interrupts_are_for_this_process() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C, which a terminal sends to all: else each prints its own traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
