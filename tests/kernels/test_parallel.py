"""Processes of a fit answer as this one would, leave Ctrl-C to the process that the user sees, and end when that is gone."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor
from pathlib import Path

import pandas as pd
import psutil
import pytest

from pipeline.errors import InputError, SteptimeError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fit_gpu import fit_gpu
from pipeline.kernels.fit_workers import TrainingPool, _children_ignore_interrupts, run_jobs
from pipeline.kernels.samples import with_families


def test_jobs_share_processes_and_each_gets_its_own_answers_in_order() -> None:
    def job(factor: int, pool: Executor | None) -> tuple[list[int], set[int]]:
        training_pool = TrainingPool(pool)
        products = training_pool.all(operator.mul, [(factor, number) for number in range(5)])
        return products, set(training_pool.all(os.getpid, [()] * 3))

    jobs = [lambda pool, factor=factor: job(factor, pool) for factor in (1, 10, 100)]
    shared = sorted(run_jobs(jobs, 2))
    assert [products for products, _ in shared] == [[factor * n for n in range(5)] for factor in (1, 10, 100)]
    processes = set().union(*(found for _, found in shared))
    assert 1 <= len(processes) <= 2 and os.getpid() not in processes
    alone = list(run_jobs(jobs, 1))
    assert [products for products, _ in alone] == [products for products, _ in shared]
    assert all(found == {os.getpid()} for _, found in alone)


def test_a_crew_counts_what_its_processes_spent() -> None:
    def job(pool: Executor | None) -> float:
        training_pool = TrainingPool(pool)
        training_pool.all(sum, [(range(3_000_000),)] * 2)
        return training_pool.spent_s

    assert next(run_jobs([job], 2)) > 0.01
    assert next(run_jobs([job], 1)) == 0.0, "this thread's own time"


def test_an_error_of_one_job_ends_the_others_at_once() -> None:
    def failing(pool: Executor | None) -> None:
        raise InputError("no sample is left")

    def long(pool: Executor | None) -> None:
        TrainingPool(pool).all(time.sleep, [(600,)] * 4)

    started = time.monotonic()
    with pytest.raises(InputError, match="no sample is left"):
        list(run_jobs([long, long, failing], 2))
    assert time.monotonic() - started < 300, "the long ones sleep for 600 s"
    assert not [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]


def test_a_process_that_is_killed_ends_the_fit_with_one_line() -> None:
    with pytest.raises(SteptimeError, match="fewer workers"):
        list(run_jobs([lambda pool: TrainingPool(pool).start(os._exit, 9)()], 2))


def test_a_fit_in_two_processes_is_the_fit_in_one_byte_for_byte(gemm_samples: pd.DataFrame, tmp_path: Path) -> None:
    samples, v100 = with_families(gemm_samples, "t").head(120), load_gpu("V100")
    for workers in (1, 2):
        fit_gpu(samples, v100, tmp_path / str(workers), variants=("auto", "trees"), workers=workers)
    folders = [tmp_path / str(workers) / "gemm" for workers in (1, 2)]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    for name in names[0]:
        one, two = ((folder / name).read_bytes() for folder in folders)
        assert one == two, name


def test_a_process_of_a_fit_ignores_the_interrupt_and_this_one_does_not() -> None:
    ask = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"]
    before = signal.getsignal(signal.SIGINT)
    with _children_ignore_interrupts():
        assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is before


PARENT = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from pipeline.kernels.fit_workers import end_with_parent

pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(time.sleep, 600).result()
"""


def test_a_process_of_a_fit_ends_when_the_one_that_started_it_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert psutil.pid_exists(worker)
        parent.kill()
    until = time.monotonic() + 300
    while _runs(worker) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
