"""`make` unlocks the folder of a run that was killed, and leaves the lock of a run that is alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.report import unlock

SLOW = 'rule all:\n    output: "made"\n    shell: "sleep 600; touch made"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(unlock, "run_snakemake", lambda target, config, *options: 7)  # stands for: unlocked
    unlock.LOCKS.mkdir(parents=True)
    return tmp_path


def test_locks_without_a_process_are_removed(folder: Path) -> None:
    assert unlock.main() == 0, "nothing is locked"
    (unlock.LOCKS / "0.input.lock").touch()
    assert unlock.main() == 7


def test_a_run_that_is_alive_keeps_its_lock(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (unlock.LOCKS / "0.input.lock").touch()
    (folder / "Snakefile").write_text(SLOW)
    run = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1"], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        for _ in range(3000):
            if unlock.running_snakemake(folder) == run.pid:
                break
            time.sleep(0.1)
        assert unlock.main() == 0
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    assert f"process {run.pid} runs Snakemake" in capsys.readouterr().err
