"""Run fits in several processes, results in the order of their completion."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
    # the longest first, so that none is left to run alone at the end
    ordered = sorted(jobs, key=lambda job: -len(job[0]))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
        for done in as_completed([pool.submit(run_job, job) for job in ordered]):
            yield done.result()
