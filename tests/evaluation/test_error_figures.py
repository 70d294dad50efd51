"""Every figure of a checkout is drawn from small tables, the same on every run, or its absence has a reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from evaluation.checks import error_parts as parts
from evaluation.checks.lin2022_steps import CNN_LOOP, DLRM_LOOP, command, question_of
from evaluation.figures import accuracy_data as tables
from evaluation.figures.accuracy_gallery import ENTRIES
from evaluation.pages.grid_accuracy import published_steps
from evaluation.published.published_lin2022 import read_cnn, read_dlrm
from pipeline.flow import key_of
from pipeline.paths import project_dir
from pipeline.prediction_parts import SeveralGpus
from pipeline.show.figures import board
from pipeline.show.figures.board import NARROW, WIDE, Page
from pipeline.show.figures.gallery import INDEX, Artifacts, category_of, draw, draw_all
from pipeline.summary_rows import predictions_of, summary_row
from tests.predictions import predicted
from tests.show.figure_texts import problems

PUBLISHED = ("published_steps", "published_errors", "published_busy", "published_networks")
"""Figures of steps that a paper measured, which a small grid has not."""

SCALING = "scaling"
"""Figure of several GPUs, which the small grid has not."""

DRAWN = [entry for entry in ENTRIES if entry.name not in (*PUBLISHED, SCALING)]


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few dots per inch: the pixels are not what is tested."""
    monkeypatch.setattr(board, "PNG_DPI", 30)


def test_every_figure_is_drawn_from_a_small_grid_the_same_on_a_second_run(
    artifacts: Artifacts, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert list(draw_all(artifacts, one, ENTRIES)) == [SCALING, *PUBLISHED]
    for entry in DRAWN:
        for picture in (one / f"{entry.name}.svg", one / "narrow" / f"{entry.name}.svg"):
            ElementTree.parse(picture)
        assert (one / f"{entry.name}.png").read_bytes().startswith(b"\x89PNG")
        assert len(pd.read_csv(one / f"{entry.name}.csv").dropna(how="all")) >= 1
    assert list(json.loads((one / INDEX).read_text())["drawn"]) == [entry.name for entry in DRAWN]
    two.mkdir()
    for entry in DRAWN[::8]:
        board.save(draw(entry, artifacts, entry.table(artifacts), WIDE), two, entry.name)
    for path in two.iterdir():
        assert path.read_bytes() == (one / path.name).read_bytes(), path.name


@pytest.mark.parametrize("page", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_text_overlaps_another_or_leaves_the_canvas(artifacts: Artifacts, page: Page) -> None:
    long = {"V100": "A100-SXM4-80GB-overclocked", "dlrm_default": "dlrm_of_a_very_long_name"}
    found = dataclasses.replace(artifacts, summary=artifacts.summary.replace(long))
    for entry in DRAWN:
        if entry.name != "cost":
            assert problems(draw(entry, found, entry.table(found), page)) == [], entry.name


@pytest.fixture(scope="module")
def paper_grid() -> Artifacts:
    """Every published step in its loop, predicted 10 % too long; and one of them in today's loop."""
    points = [
        (row.measured_us, *key_of(question_of(command(row.gpu, row.model, row.batch_size, loop))))
        for table, loop in ((read_dlrm(), DLRM_LOOP), (read_cnn(), CNN_LOOP))
        for row in table.itertuples()
    ]
    points.append((9e9, "V100", "dlrm_ddp", "default", 512))
    rows = [
        summary_row(
            predicted(
                1.1 * us,
                gpu=gpu,
                model=model,
                variant=variant,
                batch_size=batch,
                active_us=0.5 * us,
                evidence={"pack": 1.0},
                host_evidence={"shared": 1.0},
                families_us={"gemm": 0.5 * us},
            )
        )
        for us, gpu, model, variant, batch in points
    ]
    return Artifacts(pd.concat(rows, ignore_index=True))


@pytest.mark.parametrize("page", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_grid_with_published_steps_shows_them_beside_its_own(
    name: str, page: Page, paper_grid: Artifacts
) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == name)
    table = entry.table(paper_grid)
    errors = table[tables.OURS] / 100 if name == "published_errors" else table["error"]
    rows = {"published_errors": 4, "published_networks": 18}.get(name, 36)
    assert errors.tolist() == pytest.approx([0.1] * rows)
    assert problems(draw(entry, paper_grid, table, page)) == []


@pytest.mark.parametrize("page", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_grid_over_numbers_of_gpus_shows_how_they_scale(
    page: Page, summary: pd.DataFrame
) -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == SCALING)
    points = predictions_of(summary)[:1]
    for n, share in ((2, 0.96), (8, 0.9)):
        several = SeveralGpus(n, 1, "dgx1-v100", 900.0, 100.0, share)
        points.append(dataclasses.replace(points[0], several=several))
    grid = Artifacts(pd.concat(map(summary_row, points), ignore_index=True))
    table = entry.table(grid)
    assert table["devices"].tolist() == [1, 2, 8]
    assert (table["samples_per_s"] / table["ideal"]).tolist() == pytest.approx([1.0, 0.96, 0.9])
    assert (table["low"] < table["samples_per_s"]).all()
    figure = draw(entry, grid, table, page)
    title = " ".join(figure.axes[0].get_title(loc="left").split())
    assert "90 % on 8 GPUs" in title and problems(figure) == []
    assert entry.table(Artifacts(summary)).empty


def test_the_account_of_a_grid_has_its_published_steps(paper_grid: Artifacts) -> None:
    published = published_steps(predictions_of(paper_grid.summary))
    assert len(published) == 54 and published["Lin et al."].notna().all()
    assert published["error"].tolist() == pytest.approx([0.1] * 54)


def test_a_figure_without_data_is_listed_with_the_reason(
    summary: pd.DataFrame, tmp_path: Path
) -> None:
    unmeasured = Artifacts(summary.assign(measured_us=None, error=None))
    entries = [e for e in ENTRIES if e.name in ("predicted_against_measured", "step_times")]
    absent = draw_all(unmeasured, tmp_path, entries)
    assert list(absent) == ["predicted_against_measured"]
    assert "measured step" in absent["predicted_against_measured"]
    assert not list(tmp_path.glob("predicted*")) and (tmp_path / "step_times.svg").exists()
    assert json.loads((tmp_path / INDEX).read_text())["not_drawn"] == absent


def test_every_figure_has_a_caption_in_the_report() -> None:
    captions = (project_dir() / "workflow/report/figures.rst").read_text(encoding="utf-8")
    for entry in ENTRIES:
        assert f'figure == "{entry.name}"' in captions
        assert category_of(entry.name, ENTRIES) == entry.category


def test_errors_count_measured_points_alone(summary: pd.DataFrame) -> None:
    errors = tables.errors_by_part(tables.error_parts(summary)).set_index("method")
    assert errors.loc[parts.OWN_OVERHEADS, "points"] == 2
    assert errors.loc[parts.OWN_OVERHEADS, "gmae"] == pytest.approx(1 - 1 / 1.05)
