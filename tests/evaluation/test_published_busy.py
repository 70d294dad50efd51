"""Busy shares that follow from published errors: a drawn notebook in the published form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evaluation.published.published_busy import FILE, read_busy
from pipeline.errors import TableError

CELL = """# # Manually input all the stats
# batch_sizes = [512, 1024]
# errors = {
#     "V100": {"DLRM_default": [[25.0, 0.0, -37.5], [0.0, 20.0, -10.0]]},
#     "Titan XP": {"DLRM_DDP": [[-20.0, 5.0, -60.0], [10.0, -12.0, -12.0]]},
# }"""

COMPUTED = "batch_sizes = [512, 1024]\nerrors = {}\nfor gpu in gpus:\n    errors[gpu] = {}\n"


def notebook(folder: Path, *sources: str) -> Path:
    path = folder / FILE
    path.parent.mkdir()
    path.write_text(json.dumps({"cells": [{"source": source.splitlines(keepends=True)} for source in sources]}))
    return folder


def test_shares_are_quotients_of_the_stated_errors(tmp_path):
    rows = read_busy(notebook(tmp_path, "### DLRM", COMPUTED, CELL))
    assert rows["gpu"].tolist() == ["V100", "V100", "Xp", "Xp"]
    assert rows["model"].tolist() == ["dlrm_default"] * 2 + ["dlrm_ddp"] * 2
    assert rows["batch_size"].tolist() == [512, 1024] * 2
    assert rows["busy"].tolist() == pytest.approx([0.5, 0.9, 0.5, 0.8])
    assert rows["published_busy"].tolist() == pytest.approx([0.625, 0.75, 0.4 / 1.05, 1.0])
    assert rows["published_error"].tolist() == pytest.approx([0.0, 0.2, 0.05, -0.12])


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (COMPUTED, "no cell assigns"),
        (CELL.replace("Titan XP", "Titan X"), "has an unknown GPU or model"),
        (CELL.replace("-37.5", "237.5"), "busy for longer"),
        (CELL.replace("512, 1024", "512"), "expected three errors"),
        (CELL.replace("-37.5", "'?'"), "expected three errors"),
        (CELL.replace("25.0", "-100.0"), "expected three errors"),
        ("batch_sizes = [512]\nerrors = [[25.0, 0.0, -37.5]]", "by GPU and model"),
        (CELL.replace("512, 1024", "512, {'a': 1}"), "no list of positive whole numbers"),
        ("batch_sizes = [512]\nerrors = {[1]: 2}", "no cell assigns"),
    ],
)
def test_a_file_with_other_contents_is_refused(tmp_path, cell, message):
    with pytest.raises(TableError, match=message):
        read_busy(notebook(tmp_path, cell))


def test_a_missing_or_damaged_notebook_is_named(tmp_path):
    with pytest.raises(TableError, match="no such file"):
        read_busy(tmp_path)
    path = notebook(tmp_path, CELL) / FILE
    path.write_text(path.read_text()[:50])
    with pytest.raises(TableError, match="not a readable notebook"):
        read_busy(tmp_path)
