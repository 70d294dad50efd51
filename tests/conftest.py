"""Shared by all tests: fixed seeds, public data where it is at hand."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# the same examples on every run: a change is judged by itself, not by luck; `--hypothesis-profile=explore` draws new ones
settings.register_profile("repeatable", derandomize=True)
settings.register_profile("explore", max_examples=2000, deadline=None)
settings.load_profile("repeatable")

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder of public measurements; tests that need it skip where there is none."""
    from pipeline.paths import datasets_dir

    found = datasets_dir()
    if found is None:
        pytest.skip("public data not at hand (set $STEPTIME_DATASETS)")
    return found
