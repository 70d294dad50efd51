"""Output that a pipe can take: no colours or progress, any encoding, a reader that stops early, a disk that is full."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SMALL = ("model=dlrm_small", "batch_size=64", "predict.draws=10")
COMMANDS = [("predict", *SMALL), ("predict", *SMALL, "--json")]
WITHOUT_UTF8 = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
PLAIN = {
    key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHON"))
}
"""The environment without the settings of an encoding."""


def steptime(*words: str) -> list[str]:
    return [sys.executable, "-m", "pipeline", *words]


@pytest.mark.parametrize(
    ("words", "forced"), [(COMMANDS[0], {}), *((words, WITHOUT_UTF8) for words in COMMANDS)]
)
def test_a_pipe_gets_plain_text_in_any_locale(
    words: tuple[str, ...], forced: dict[str, str]
) -> None:
    environment = {**PLAIN, "LANG": "C", "LC_ALL": "C", "TERM": "xterm-256color", **forced}
    done = subprocess.run(steptime(*words), env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout and b"\r" not in done.stdout and done.stdout
    text = done.stdout.decode("ascii" if forced else "utf-8")
    if "--json" in words:
        assert isinstance(json.loads(text), dict)
    else:
        assert len({len(line) for line in text.splitlines()}) == 1, "the frame is straight"
        assert ("##" in text) == bool(forced) and "?" not in text


def test_a_reader_that_stops_early_ends_the_command_without_a_word() -> None:
    with subprocess.Popen(
        steptime("--help"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")  # noqa: PTH110
def test_a_full_disk_behind_the_output_is_one_line_and_exit_code_1() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            steptime("--version"), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (
        done.returncode == 1
        and done.stderr.startswith("steptime: ")
        and done.stderr.count("\n") == 1
    )
