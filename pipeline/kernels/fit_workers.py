"""Train members of kernel models in several processes that all families share.

The fit of a family is a thread of this process, which prepares data, waits for results and evaluates them. The long
tasks are the trees, networks and settings of its folds. They do not depend on each other, and run in processes that all
families share. All processors are used until the end, because the tasks of the longest family are shared out too.
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

from threadpoolctl import threadpool_limits

from pipeline.errors import SteptimeError

T = TypeVar("T")
Job = Callable[[Executor | None], T]
"""Work of a thread. Its argument is the pool of processes to train in; with None, it trains in its own thread."""

EXTRA_FAMILIES_IN_FLIGHT = 1
"""Number of extra families kept in flight beyond one per process, so that no worker idles."""


@dataclass
class TrainingPool:
    """Trains the members of one fit, in the processes of `pool` or in this thread.

    Attributes:
        pool: None for this thread.
        spent_s: processor seconds that processes of the pool spent for this fit.
    """

    pool: Executor | None = None
    spent_s: float = 0.0

    def start(self, function: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Start a call of a function that a new process can import; the returned function waits for the result."""
        if self.pool is None:
            answer = _on_one_thread(function, arguments)
            return lambda: answer
        running = self.pool.submit(_timed, function, arguments)

        def wait() -> T:
            found, spent_s = running.result()
            self.spent_s += spent_s
            return found

        return wait

    def all(self, function: Callable[..., T], calls: Iterable[Sequence[Any]]) -> list[T]:
        """Results of one function for several lists of arguments, in their order."""
        waiting = [self.start(function, *arguments) for arguments in calls]
        return [wait() for wait in waiting]


def _timed(function: Callable[..., T], arguments: Sequence[Any]) -> tuple[T, float]:
    """The result of a call, and its processor time in seconds."""
    started = time.thread_time()
    answer = _on_one_thread(function, arguments)
    return answer, time.thread_time() - started


def _on_one_thread(function: Callable[..., T], arguments: Sequence[Any]) -> T:
    """The result of a call whose matrix products use one thread, because the processes already use all processors.

    Thus neither the number of processors nor that of the processes changes the last digits of a model.
    """
    with threadpool_limits(limits=1):
        return function(*arguments)


def run_jobs(jobs: Sequence[Job[T]], workers: int) -> Iterator[T]:
    """Start jobs in this order, and yield their results as they end.

    Args:
        jobs: each receives the pool of processes that all jobs share.
        workers: number of processes; with one, jobs run one after the other in this process, without a pool.

    Raises:
        SteptimeError: a process was killed from outside, most likely because memory ran out.
    """
    if workers <= 1:
        yield from (job(None) for job in jobs)
        return
    # new processes by spawn: torch does not work after a fork
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    with _children_ignore_interrupts():  # a call that finds no idle process starts one
        for _ in range(workers):
            pool.submit(os.getpid)
    threads = ThreadPoolExecutor(workers + EXTRA_FAMILIES_IN_FLIGHT, thread_name_prefix="fit")
    try:
        for done in as_completed([threads.submit(job, pool) for job in jobs]):
            yield done.result()
    except BaseException as error:
        threads.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:  # their results are not needed any more
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise SteptimeError(
                "a process of the fit was killed, most likely because memory ran out; fit with fewer workers"
            ) from None
        raise
    finally:
        threads.shutdown()
        pool.shutdown()


def end_with_parent() -> None:
    """End this process when its parent process has ended, for any reason.

    A parent that is killed (by a scheduler, or because memory ran out) sends its workers no message. Without this
    function they would finish their tasks and then wait for ever.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


@contextmanager
def _children_ignore_interrupts() -> Iterator[None]:
    """Let processes started inside ignore Ctrl-C; a terminal sends it to all, and each would print a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
