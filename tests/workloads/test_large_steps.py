"""A step of 140,000 device calls: memory and CPU time of its first question."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.paths import project_dir

MAX_GB, MAX_CPU_S = 3.0, 60.0


@pytest.mark.nightly
def test_deepseek_v3_with_all_layers_takes_little_memory_and_time(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    asked = [
        "gpu=H100",
        "model=transformers",
        "model.config=DeepseekV3Config",
        "batch_size=1",
        "model.seq_len=512",
        "model.dtype=bf16",
    ]
    env = {**os.environ, "PYTHONPATH": str(project_dir()), "STEPTIME_CACHE": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "pipeline", "predict", *asked, "--json"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    answer = json.loads(process.stdout.read())
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert used.ru_maxrss * 1024 / 1e9 < MAX_GB
    assert used.ru_utime + used.ru_stime < MAX_CPU_S
    # 671 billion parameters, of which each is 16 bytes of weight, gradient and two states in fp32
    assert 0.9 < answer["memory_bytes"] / (16 * 671e9) < 1.3
