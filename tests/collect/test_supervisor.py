"""When a campaign's process dies, the next one continues; no process outlives the one that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.collect import campaign
from pipeline.collect import campaign_supervisor as supervisor

ROOT = Path(__file__).parents[2]
PROCESSES = """
import json, os, signal, sys, time
from pathlib import Path
manifest = Path(sys.argv[sys.argv.index("--out") + 1]) / "manifest.json"
manifest.parent.mkdir(exist_ok=True)
first = {"schema": 2, "device": {}, "units": {"a": {"status": "done"}}, "runs": []}
told = json.loads(manifest.read_text()) if manifest.exists() else first
number = len(told["runs"])
told["runs"].append({"status": "running"})
told["units"]["bcd"[number]] = {"status": "started"}
manifest.write_text(json.dumps(told))
if number == 0:
    time.sleep(600)
if number == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
"""
"""One process hangs, the next one crashes, the third one ends well."""


def test_a_hang_and_a_crash_cost_one_process_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    monkeypatch.setattr(supervisor, "STALL_SECONDS", 4.0)
    monkeypatch.setattr(supervisor, "STALL_SHARE", 0.0)
    command = [sys.executable, "-c", PROCESSES]
    assert supervisor.supervise(["--out", str(out)], out, 5, time.monotonic(), command) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    statuses = ["done", "error", "started", "started"]
    assert [unit["status"] for unit in manifest["units"].values()] == statuses
    assert manifest["units"]["b"]["error"].startswith("hung: no progress for")
    assert manifest["runs"][0]["status"].startswith("hung:")
    said = capfd.readouterr().err
    assert "b: skipped, because it hung (no progress for" in said
    assert "the process was lost (signal 11); continuing in a new process" in said


def test_a_device_that_is_gone_is_given_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "manifest.json").write_text("{}")
    log = tmp_path / "log"
    code = (
        f"import sys; open({str(log)!r}, 'a').write(' '.join(sys.argv[2:]) + chr(10)); sys.exit(4)"
    )
    command = [sys.executable, "-c", code]
    given = ["--out", str(out)]
    assert supervisor.supervise(given, out, 10, time.monotonic(), command) == 4
    asked = log.read_text().splitlines()
    assert len(asked) == supervisor.MAX_PROCESSES
    assert all(f"--out {out} --minutes " in each for each in asked)
    assert 9 < float(asked[-1].split()[-1]) < float(asked[0].split()[-1]) <= 10
    assert "device lost" in capfd.readouterr().err


def test_what_another_process_would_do_again_is_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    script = f"import sys; print('x', file=open({str(tmp_path / 'log')!r}, 'a')); sys.exit(3)"
    command = [sys.executable, "-c", script]
    assert supervisor.supervise([], tmp_path, 10, time.monotonic(), command) == 3
    assert (tmp_path / "log").read_text() == "x\n"


def test_no_process_begins_that_has_no_time(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / ".samples.parquet.x1.part").write_text("cut off")
    command = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    assert (
        supervisor.supervise([], tmp_path, 0.5, time.monotonic(), command) == 128 + signal.SIGSEGV
    )
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]


def test_a_process_that_ignores_its_limit_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "LAST_WAIT_SECONDS", 0.0)
    begin = time.monotonic()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert supervisor.supervise([], tmp_path, 0.01, begin, command) == supervisor.EXIT_HUNG
    assert time.monotonic() - begin < 300, "the process sleeps for 600 s"
    assert "exceeded the time limit" in capfd.readouterr().err


CHILD = """
import sys, time
from pipeline.collect.campaign_supervisor import end_with_parent
end_with_parent(int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
PARENT = """
import sys, time
from pathlib import Path
from pipeline.collect.campaign_supervisor import supervise
supervise([], Path("none"), 5, time.monotonic(), [sys.executable, "-c", sys.argv[1]])
"""


def test_the_campaign_ends_with_who_asked_for_it() -> None:
    """`timeout -s KILL` and a lent machine's limit reach the first process alone."""
    command = [sys.executable, "-c", PARENT, CHILD]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None and parent.stdout.readline() == "ready\n"
    (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    for _ in range(6000):
        if (
            not Path(f"/proc/{child}").exists()
            or "\nState:\tZ" in Path(f"/proc/{child}/status").read_text()
        ):
            return
        time.sleep(0.05)
    pytest.fail("the campaign runs on")


def test_an_unforeseen_error_ends_one_process_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise ValueError(f"poisoned: {arguments}")

    monkeypatch.setattr(campaign, "main", fail)
    monkeypatch.setattr(
        campaign, "end_with_parent", lambda parent: None
    )  # this process goes on after the test
    assert campaign.run_child(["1", "--out", "x"]) == supervisor.EXIT_UNEXPECTED
    assert "poisoned: ['--out', 'x']" in capsys.readouterr().err
