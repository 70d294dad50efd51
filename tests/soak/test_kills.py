"""Processes that are killed while they write leave whole files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pandas as pd

from pipeline.paths import project_dir
from pipeline.schemas import read_table
from soak.kills import half_written

WRITER = """
import sys
import pandas as pd
from pipeline.model_files import write_json
from pipeline.schemas import write_table
rows = pd.read_parquet(sys.argv[1])
number = 0
print("ready", flush=True)
while True:
    number += 1
    for i in range(5):
        write_table(rows.assign(count=number), f"{sys.argv[2]}/results/{i}/overheads.parquet", "overheads", {"number": number})
    write_json(__import__("pathlib").Path(sys.argv[2]) / "results" / "line.json", {"number": number}, sealed=True)
"""


def test_a_writer_that_is_killed_leaves_every_table_whole(tmp_path: Path) -> None:
    rows = pd.DataFrame({"op": [f"aten::op{i}" for i in range(20_000)]})
    rows = rows.assign(type="T1", mean_us=3.0, std_us=1.0, median_us=2.5, count=7, workloads="x")
    rows.to_parquet(tmp_path / "rows.parquet")
    rng, written = Random(0), set()
    command = [sys.executable, "-c", WRITER, tmp_path / "rows.parquet", tmp_path]
    for _ in range(2):
        with subprocess.Popen(
            command, cwd=project_dir(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            try:
                process.wait(rng.uniform(0.2, 0.6))
            except subprocess.TimeoutExpired:
                process.kill()
        assert half_written(tmp_path) == []
        for path in (tmp_path / "results").rglob("overheads.parquet"):
            table = read_table(path, "overheads")
            assert len(table) == len(rows) and table["count"].nunique() == 1
            written.add(path)
    assert written, "no table was written before the kills"


def test_a_file_that_is_cut_off_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    for name in ("summary.parquet", "timeline.json.gz", "timeline.html"):
        (tmp_path / "results" / name).write_bytes(b"\x1f\x8b half")
    assert len(half_written(tmp_path)) == 3
