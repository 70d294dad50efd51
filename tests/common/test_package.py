"""`import steptime` and `import pipeline`: what they hand on, whatever was imported before or lies in the folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pipeline
import steptime
from tests.commands import python


def test_the_function_is_there_again_after_its_own_modules_were_imported() -> None:
    program = """
import pipeline.answers.predict
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
    run = python(program)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("batch_size=0: give a whole number") == 2 and run.stdout.endswith(
        "True\n"
    )


def test_type_checkers_of_users_are_told_that_the_package_is_typed() -> None:
    assert (Path(pipeline.__file__).parent / "py.typed").is_file()


def test_steptime_hands_on_the_public_names_of_the_code() -> None:
    assert set(steptime.__all__) == {*pipeline.__all__, "Step"}
    assert all(getattr(steptime, name) is getattr(pipeline, name) for name in pipeline.__all__)
    assert steptime.Step.__module__ == "pipeline.workloads.training_step"
    with pytest.raises(ImportError, match="cannot import name 'predct' from 'steptime'"):
        from steptime import predct  # noqa: F401


def test_importing_it_loads_no_libraries() -> None:
    program = (
        "import steptime, sys; print({'torch', 'mlflow', 'pandas', 'pipeline'} & set(sys.modules))"
    )
    assert python(program).stdout == "set()\n"


@pytest.mark.parametrize(
    ("hiding", "words"),
    [
        ("pipeline.py", ["-m", "steptime", "predict"]),
        ("pipeline/__init__.py", ["-c", "from steptime import predict"]),
        ("pipeline.py", ["-c", "import pipeline, steptime; steptime.predict"]),
    ],
)
def test_another_module_of_that_name_is_named_in_one_line_and_not_run(
    tmp_path: Path, hiding: str, words: list[str]
) -> None:
    file = tmp_path / hiding
    file.parent.mkdir(exist_ok=True)
    file.write_text("print('mine')\n")
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    *above, said = done.stderr.strip().splitlines()
    assert done.returncode == 1 and bool(above) == (words[0] == "-c")
    assert f"steptime: {file} hides Steptime's own package" in said and "rename that file" in said
    assert ("mine" in done.stdout) == ("import pipeline" in words[-1])
