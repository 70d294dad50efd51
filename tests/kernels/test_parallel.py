"""Processes of a fit leave Ctrl-C to the process that the user sees."""

from __future__ import annotations

import signal
import subprocess
import sys

from pipeline.kernels.parallel import _interrupts_are_for_this_process


def test_a_process_of_a_fit_ignores_the_interrupt_and_this_one_does_not() -> None:
    ask = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"]
    before = signal.getsignal(signal.SIGINT)
    with _interrupts_are_for_this_process():
        assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "True\n"
    assert signal.getsignal(signal.SIGINT) is before
