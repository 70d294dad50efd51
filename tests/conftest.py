"""Shared by all tests: fixed seeds, one thread per process, public data where it is at hand."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Before NumPy and torch are imported, and passed on to every process that a test starts. `make test` runs one worker per
# core: with more threads the workers wait for each other, and sums depend on the number of cores.
for _library in ("OMP", "MKL", "OPENBLAS"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from tests.commands import Steptime  # noqa: E402

# the same examples on every run: a change is judged by itself, not by luck; `--hypothesis-profile=explore` draws new ones
# no example fails for its time: the machine may be busy
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("repeatable")

# a worker holds millions of objects of PyTorch, which collections search: two large files take a fifth less time with fewer
gc.set_threshold(50_000, 20, 20)

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# the workers of a run share a cache, which holds nothing of an earlier run; the process that starts them makes and deletes it
OWN_CACHE = (
    "" if "STEPTIME_TEST_CACHE" in os.environ else tempfile.mkdtemp(prefix="steptime-test-cache-")
)
os.environ["STEPTIME_CACHE"] = os.environ.setdefault("STEPTIME_TEST_CACHE", OWN_CACHE)


def pytest_unconfigure() -> None:
    """Delete the cache that this process made."""
    if OWN_CACHE:
        shutil.rmtree(OWN_CACHE, ignore_errors=True)


@pytest.fixture(autouse=True, scope="module")
def _left_out_of_collections() -> None:
    """Collections of this module do not search what is there before it, such as the objects of PyTorch."""
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def _large_blocks_are_given_back() -> Iterator[None]:
    """Undo `keep_memory_mapped` of a test that measures: the heap of a worker would grow until it cannot be forked."""
    yield
    mmap_max, default = -4, 65_536  # glibc's malloc.h
    if sys.platform == "linux":
        ctypes.CDLL(None).mallopt(mmap_max, default)


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder of public measurements; tests that need it skip where there is none."""
    from pipeline.paths import datasets_dir

    found = datasets_dir()
    if found is None:
        pytest.skip("public data not at hand (set $STEPTIME_DATASETS)")
    return found


@pytest.fixture
def steptime(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Steptime:
    """Runs a command line in this process."""
    from pipeline import cli

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["steptime", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        shown = capsys.readouterr()
        return int(end.value.code or 0), shown.out, shown.err

    return run
