"""Every table fits the terminal, and what people copy from it stays in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.answers import advice
from tests.answers.test_advice import FEW
from tests.commands import Steptime
from tests.simulate.test_trace_commands import steps

SMALL = "model=dlrm_small batch_size=64 predict.draws=10"
SLOW = "model.read_loss=before_backward model.foreach=false"
ADVISED = f"model=dlrm_small batch_size=256 predict.draws=10 {SLOW}"
"""The step of `tests/answers/test_advice.py`, whose changes are captured once."""

LONG = "gpu=A100-SXM4-80GB,H100-PCIe"
OPTIONS = "model.interaction=by_parts,fused predict.cuda_graph=false,true model.dtype=default,fp16"

COMMANDS = [
    "gpus",
    "hosts",
    "clusters",
    "models",
    "models dlrm_default",
    f"predict gpu=A100-SXM4-80GB {SMALL}",
    f"predict gpu=A100-SXM4-80GB {SMALL} --by module",
    f"compare {LONG} model=dlrm_small,dlrm_default batch_size=64 predict.draws=10",
    f"compare {LONG} {SMALL} {OPTIONS}",
    f"compare gpu=A100-SXM4-80GB {SMALL} devices=1,2,4",
    f"diff gpu=A100-SXM4-80GB gpu=H100-PCIe {SMALL}",
    f"diff gpu=A100-SXM4-80GB {SMALL} batch_size=128",
    f"advise gpu=V100 {ADVISED} --same-results",
    f"plan samples_per_dollar {LONG} {SMALL} {OPTIONS}",
    "replay {trace}",
    "replay {trace} --rank {other}",
    "advise --trace {trace} gpu=A100-SXM4-80GB",
]

COPIED = re.compile(r"   steptime ")
"""Beginning of a line that is copied, and so longer than a narrow terminal."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    return {"trace": steps(folder / "a"), "other": steps(folder / "b")}


@pytest.mark.parametrize(
    ("command", "width"),
    [*((command, 80) for command in COMMANDS), *((command, 120) for command in COMMANDS[7:9])],
)
def test_no_line_is_longer_than_the_terminal(
    command: str,
    width: int,
    places: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    steptime: Steptime,
) -> None:
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(advice, "CANDIDATES", FEW)
    code, out, err = steptime(*command.format(**places).split())
    lines = re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()
    assert code == 0, err
    assert len(lines) >= 2
    assert not [line for line in lines if len(line) > width and not COPIED.match(line)]
