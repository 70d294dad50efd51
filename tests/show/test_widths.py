"""Every table fits the terminal, and what people copy from it stays in one line."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from pipeline.schemas import write_table
from pipeline.summary_rows import summary_row
from tests.commands import Steptime
from tests.predictions import predicted
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
    "summary results={folder}",
    "replay {trace}",
    "replay {trace} --rank {other}",
    "advise --trace {trace} gpu=A100-SXM4-80GB",
    "kernels fit --samples {samples} --gpu T4 --out {folder}/models",
]

COPIED = re.compile(r"   steptime ")
"""Beginning of a line that is copied, and so longer than a narrow terminal."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tables")
    step = predicted(
        8000.0,
        gpu="A100-SXM4-80GB",
        model="dlrm_open_source",
        variant="v0123456789",
        batch_size=2048,
        active_us=6000.0,
        host_us=3000.0,
        p10_us=7500.0,
        p90_us=9000.0,
        memory_bytes=2 << 30,
        evidence={"pack": 0.9, "roofline": 0.1},
        host_evidence={"shared": 1.0},
        host="typical-2020",
        overrides=("model.target=my_module:make_step", "model.options.width=512"),
    )
    write_table(summary_row(step), folder / "summary.parquet", "summary", {})
    rows = [
        {
            "gpu": "T4",
            "op": "linear",
            "latency_us": 5.0 + m * n * 512 / 1e7,
            "B": 1,
            "M": m,
            "N": n,
            "K": 512,
        }
        for m in range(64, 1024, 64)
        for n in (64, 256, 512)
    ]
    pd.DataFrame(rows).to_parquet(folder / "samples.parquet")
    return {
        "folder": folder,
        "trace": steps(folder / "a"),
        "other": steps(folder / "b"),
        "samples": folder / "samples.parquet",
    }


@pytest.mark.parametrize(
    ("command", "width"),
    [(c, w) for c in COMMANDS for w in (80, 120) if w == 80 or not c.startswith("advise gpu")],
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
    code, out, err = steptime(*command.format(**places).split())
    lines = re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()
    assert code == 0, err
    assert len(lines) >= 2
    assert not [line for line in lines if len(line) > width and not COPIED.match(line)]
    options = [
        option
        for option in ("interaction=fused", "dtype=fp16")
        if option in command.replace("by_parts,", "")
    ]
    assert all(any(option in line for line in lines) for option in options), (
        "no option is broken over two lines"
    )
