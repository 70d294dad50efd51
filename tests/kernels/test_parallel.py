"""Processes of a fit leave Ctrl-C to the process that the user sees, and end when that is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil

from pipeline.kernels.parallel import _interrupts_are_for_this_process


def test_a_process_of_a_fit_ignores_the_interrupt_and_this_one_does_not() -> None:
    ask = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"]
    before = signal.getsignal(signal.SIGINT)
    with _interrupts_are_for_this_process():
        assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is before


PARENT = """
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from pipeline.kernels.parallel import end_with_parent

pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=end_with_parent)
print(pool.submit(os.getpid).result(), flush=True)
pool.submit(time.sleep, 60).result()
"""


def test_a_process_of_a_fit_ends_when_the_one_that_started_it_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert psutil.pid_exists(worker)
        parent.kill()
    until = time.monotonic() + 20
    while _runs(worker) and time.monotonic() < until:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
