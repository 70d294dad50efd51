"""A prediction is the same whichever vector instructions the processor has.

A process of its own predicts with slower code paths of PyTorch, OpenBLAS or NumPy, whose results differ in their last digits.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from pipeline import predict
from tests.commands import python

POINTS = [("V100", "dlrm_default"), ("P100", "dcgan"), ("H100", "gnmt")]
SAME = 1e-3
"""Largest relative difference of a step's time, p10 and p90 between two processors."""

SCRIPT = """
import json, sys
from pipeline import predict
found = [predict(gpu, model=model, predict__draws=64) for gpu, model in json.loads(sys.argv[1])]
print(json.dumps([[each.predicted_us, each.p10_us, each.p90_us] for each in found]))
"""


def numpy_features() -> str:
    """Vector instructions that NumPy found on this processor beyond those that it always needs."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    return " ".join(found)


def predicted(folder: Path, **environment: str) -> list[list[float]]:
    """Step time, p10 and p90 of every point, in µs, from a process with these variables in its environment."""
    done = python(
        SCRIPT,
        json.dumps(POINTS),
        cwd=folder,
        env={**os.environ, "STEPTIME_DATASETS": "none", **environment},
    )
    assert done.returncode == 0, done.stderr
    found: list[list[float]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def usual() -> list[list[float]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPTIME_DATASETS", "none")
        found = [predict(gpu, model=model, predict__draws=64) for gpu, model in POINTS]
    return [[each.predicted_us, each.p10_us, each.p90_us] for each in found]


@pytest.mark.parametrize(
    "variable",
    [
        "ATEN_CPU_CAPABILITY",
        pytest.param("OPENBLAS_CORETYPE", marks=pytest.mark.nightly),
        pytest.param("NPY_DISABLE_CPU_FEATURES", marks=pytest.mark.nightly),
    ],
)
def test_intervals_do_not_depend_on_the_processor(
    variable: str, usual: list[list[float]], tmp_path: Path
) -> None:
    value = {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}.get(
        variable
    ) or numpy_features()
    if not value:
        pytest.skip(
            "NumPy found no vector instructions on this processor that could be switched off"
        )
    for point, found, expected in zip(
        POINTS, predicted(tmp_path, **{variable: value}), usual, strict=True
    ):
        assert found == pytest.approx(expected, rel=SAME), point
