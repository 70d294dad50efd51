"""README and docs/accuracy.md are made of artifacts: their tables equal what the artifacts say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from pipeline.errors import TableError
from pipeline.evaluation.language_passes import measured_passes
from pipeline.evaluation.replayed_traces import FULL, KERNEL_SUM, mean_errors
from pipeline.paths import project_dir, transfer_dir
from pipeline.report.accuracy_tables import Evidence, kernel_table, left_out_errors, long, outdated, short
from pipeline.report.figures import evidence_shares as evidence
from pipeline.report.figures import figure_data as tables
from pipeline.report.figures.gallery import Artifacts
from pipeline.report.grid_inputs import read_any
from pipeline.report.markdown import markdown, replaced
from pipeline.report.readme_tables import PLACES, gather, shipped_families


@pytest.fixture
def found(artifacts: Artifacts) -> Evidence:
    left_out = pd.DataFrame({"family": ["gemm", "gemm"], "gpu": ["V100", "T4"], "mape": [10.0, 20.0], "gmae": 5.0})
    wave = pd.concat([artifacts.transfer, artifacts.transfer.assign(method="wave", mape=47.0)])
    errors = tables.kernel_errors(artifacts.models)
    return Evidence(errors, artifacts.replays, artifacts.passes, left_out, wave, artifacts.models_moved)


def test_the_error_of_a_trace_is_the_mean_over_its_iterations(found: Evidence) -> None:
    errors = mean_errors(found.spans).set_index("method")
    assert errors.loc[FULL, "mean_error"] == pytest.approx(0.15)
    assert errors.loc[KERNEL_SUM, "evaluated"] == 2


def test_every_stage_stands_beside_baseline_published_figure_and_bar(found: Evidence) -> None:
    text = short(found)
    for row in (
        "| V100 | 2.00 (2) | 2.00 (0.6) |",
        "| published, Lin et al., HiPC 2022 | < 10 | < 10 |",
        "| step, kernel times given | `v100_ddp` | 15.0 | sum of kernels 50.0 | 7.96 | 0.5 |",
        "| whole language model | V100, 2 passes | 5.0 (worst 10.0) |  |  | 10 |",
        "| gemm, from one GPU to another | five GPUs, each left out in turn | 15.0 | wave scaling 47.0 |  | 20 |",
        "| whole model, from one GPU to another | 2 pairs of passes | 15.0 | wave scaling 50.0 | 11.8 | 8 |",
    ):
        assert row in text, row
    assert "| V100 | bert_large | inference | 512 | 8 | 200.0 | 220.0 | +10.0 |" in long(found)


def test_errors_between_gpus_of_other_models_are_noticed(found: Evidence) -> None:
    assert outdated(found) == []
    assert outdated(dataclasses.replace(found, left_out=found.left_out.assign(mape=30.0))) == ["gemm"]


def test_only_the_text_between_the_markers_changes() -> None:
    text = "before\n<!-- here -->\nold\n<!-- /here -->\nafter\n"
    assert replaced(text, "here", "new") == text.replace("old", "new")
    with pytest.raises(KeyError):
        replaced(text, "elsewhere", "new")


def test_readme_and_docs_hold_what_the_packs_say() -> None:
    # fails where packs were rebuilt and `make readme` was not run
    ours = kernel_table(tables.kernel_errors(shipped_families()))
    for name, marker, _ in PLACES:
        text = (project_dir() / name).read_text(encoding="utf-8")
        assert ours in text, f"{name}: run `make readme`"
        assert replaced(text, marker, "").count("%") < text.count("%")


def test_left_out_errors_come_with_the_shipped_models() -> None:
    errors = left_out_errors(transfer_dir())
    assert set(errors["family"]) >= {"gemm", "elementwise"}
    assert errors.groupby("family")["gpu"].nunique().min() >= 4


def test_without_checks_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="STEPTIME_DATASETS"):
        gather(tmp_path)


def test_the_picture_shows_all_three_parts(found: Evidence) -> None:
    figure = evidence.result(found.kernels, found.passes, mean_errors(found.spans))
    assert [bool(axes.get_title(loc="left")) for axes in figure.axes] == [True] * 3
    assert all(axes.get_xlabel() for axes in figure.axes)


def test_a_table_has_a_line_per_row() -> None:
    assert markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert json.dumps(markdown(["a"], [])) == json.dumps("| a |\n| --- |")


@pytest.mark.parametrize("name", ["replays.parquet", "pair_errors.csv"])
def test_a_damaged_table_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(TableError, match="rebuild") as caught:
        read_any([str(tmp_path / name)])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_public_table_of_passes_that_is_missing_or_of_another_form_is_named(tmp_path: Path) -> None:
    file = tmp_path / "neusight" / "model_latency.parquet"
    with pytest.raises(TableError, match=r"model_latency\.parquet: no such file; download the public data"):
        measured_passes(tmp_path)
    file.parent.mkdir()
    file.write_bytes(b"PAR1")
    with pytest.raises(TableError, match="not a readable parquet file"):
        measured_passes(tmp_path)
    pd.DataFrame({"gpu": ["V100"], "model": ["opt_13"]}).to_parquet(file)
    with pytest.raises(TableError, match="misses column mode, seq_len"):
        measured_passes(tmp_path)
