"""`pipeline.simulate` predicts, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pipeline


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import pipeline.simulate.replay",
        "from pipeline.simulate.critical_path import simulate",
        "import pipeline; pipeline.predict(batch_size=64, model='dlrm_small')",
    ],
)
def test_the_function_is_there_again_after_its_own_modules_were_imported(before: str) -> None:
    program = f"""
{before}
import pipeline
from pipeline import predict
from pipeline.errors import InputError
for function in (predict, pipeline.predict):
    try:
        function(gpu="V100", batch_size=0)
    except InputError as error:
        print(error)
import pipeline.simulate.replay
print(callable(pipeline.simulate.replay.replay))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("batch_size=0: give a whole number") == 2 and run.stdout.endswith("True\n")


def test_type_checkers_of_users_are_told_that_the_package_is_typed() -> None:
    assert (Path(pipeline.__file__).parent / "py.typed").is_file()
