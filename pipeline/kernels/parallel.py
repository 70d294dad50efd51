"""Run fits in several processes, results in the order of their completion."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.kernels.fit import FittedFamily

Job = tuple[Any, Any, str, str, int, dict[str, Any]]


def run_job(job: Job) -> FittedFamily:
    """One `fit_family` call; a function of the module, so that a fresh process can import it."""
    from pipeline.kernels.fit import fit_family

    samples, gpu, name, variant, seed, options = job
    return fit_family(samples, gpu, name, variant, seed, **options)


def run_jobs(jobs: Sequence[Job], workers: int) -> Iterator[FittedFamily]:
    """Fit jobs; with one worker in this process, else in fresh ones (torch does not survive a fork)."""
    if workers <= 1 or len(jobs) < 2:
        yield from map(run_job, jobs)
        return
    from pipeline.kernels.fit import CHOSEN_BY_AUTO

    # the longest first, so that none is left to run alone at the end: those that learn which kernel will run, too
    ordered = sorted(jobs, key=lambda job: (job[2] not in CHOSEN_BY_AUTO, -len(job[0])))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=end_with_parent) as pool:
        with _interrupts_are_for_this_process():
            running = [pool.submit(run_job, job) for job in ordered]
        try:
            for done in as_completed(running):
                yield done.result()
        except KeyboardInterrupt:
            for process in list(pool._processes.values()):  # what they fit is of no use any more
                process.terminate()
            raise


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
