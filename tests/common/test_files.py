"""Files that users name: a path that is not a file is refused by name, and no existing file is changed."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from pipeline.answers.kernel_commands import predict_command
from pipeline.errors import InputError, TableError
from pipeline.kernels.samples import read_table as read_calls
from pipeline.schemas import atomic_path, read_table
from pipeline.transfer.transfer_command import read_measured, transfer_command

CALLS = pd.DataFrame(
    {
        "op": ["linear", "softmax", "linear"],
        "B": [1, 64, 1],
        "M": [512, None, 64],
        "N": [256, None, 64],
        "K": [1024, None, 128],
        "H": [None, 512, None],
        "latency_us": [100.0, 40.0, 70.0],
    }
)


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    path = tmp_path / "calls.parquet"
    CALLS.to_parquet(path)
    return path


def test_a_folder_is_never_read_as_a_table(tmp_path: Path, calls: Path) -> None:
    for read in (read_calls, read_measured, lambda path: read_table(path, "summary")):
        with pytest.raises(
            TableError, match="is a folder; give the path of the parquet file in it"
        ):
            read(calls.parent)


def test_a_folder_or_a_device_is_never_written_over(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    for target, reason in (
        (tmp_path, "is a folder"),
        (fifo, "not a regular file"),
        (Path(os.devnull), "not a regular file"),
    ):
        with pytest.raises(InputError, match=reason), atomic_path(target) as part:
            part.write_text("x")
    assert fifo.is_fifo() and Path(os.devnull).is_char_device()
    assert not list(tmp_path.glob(".*"))


def test_a_link_keeps_pointing_where_it_does(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_path(link) as part:
        part.write_text("new")
    assert link.is_symlink() and target.read_text() == "new"


def test_models_of_another_gpu_or_none_at_all_are_refused(tmp_path: Path, calls: Path) -> None:
    from pipeline.paths import packs_dir

    with pytest.raises(InputError, match="has no fitted family"):
        predict_command("V100", tmp_path, calls, tmp_path / "out.parquet")
    with pytest.raises(InputError, match="was fitted on P100, but --gpu is V100"):
        predict_command("V100", packs_dir() / "P100" / "kernels", calls, tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


def test_numbers_written_as_text_are_numbers(tmp_path: Path, calls: Path) -> None:
    text = tmp_path / "text.parquet"
    CALLS.assign(latency_us=CALLS["latency_us"].astype(str), M=["512", None, "64"]).to_parquet(text)
    answers = []
    for source in (calls, text):
        facts = transfer_command("V100", "T4", "auto", source, tmp_path / "out.parquet")
        answers.append(
            (facts["median_ratio"], *pd.read_parquet(tmp_path / "out.parquet")["predicted_us"])
        )
    assert answers[0] == pytest.approx(answers[1])


def test_probes_of_another_gpu_are_refused(tmp_path: Path, calls: Path) -> None:
    probes = tmp_path / "probes.parquet"
    CALLS.assign(gpu="V100").to_parquet(probes)
    with pytest.raises(InputError, match=r"probes are rows of V100, but --to is T4"):
        transfer_command("V100", "T4", "auto", calls, tmp_path / "out.parquet", probes)
    CALLS.assign(gpu="Voodoo").to_parquet(probes)
    with pytest.raises(InputError, match=r"holds rows of Voodoo, but --from is V100"):
        transfer_command("V100", "T4", "auto", probes, tmp_path / "out.parquet")


def test_a_tracked_device_is_the_one_that_runs_here() -> None:
    from pipeline import track

    with pytest.raises(InputError, match="give 'cuda' or 'cpu'"), track("V100"):
        pass


def test_a_table_is_never_written_over(calls: Path) -> None:
    before = calls.read_bytes()
    with pytest.raises(InputError, match="give another"):
        transfer_command("V100", "T4", "auto", calls, calls)
    assert calls.read_bytes() == before
