"""The accuracy page of a grid is written from the grid's tables only."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from evaluation.figures.accuracy_data import error_parts, errors_by_part
from evaluation.figures.kernel_errors import kernel_errors
from evaluation.pages import grid_accuracy as accuracy
from evaluation.pages.grid_accuracy import missing_evidence
from pipeline.flow import Flow
from pipeline.kernels.error_metrics import DECILES
from pipeline.paths import Artifacts as Paths
from pipeline.question.question import expand
from pipeline.show.figures import step_times as step_table
from pipeline.show.figures.gallery import Artifacts
from pipeline.summary_rows import predictions_of

Models = tuple[tuple[str, Path], ...]


def account(found: Artifacts, missing: list[str], models: Models = ()) -> str:
    steps = step_table.steps(predictions_of(found.summary))
    by_part = error_parts(found.summary)
    errors, kernels = errors_by_part(by_part), kernel_errors(models)
    parts = accuracy.sections(steps, errors, by_part, kernels, missing)
    text = accuracy.markdown("A grid", parts)
    assert accuracy.html("A grid", parts).count("<table>") == text.count("\n| --- ")
    return text


def test_it_shows_steps_errors_kernels_and_gaps(artifacts: Artifacts, models: Models) -> None:
    text = account(artifacts, ["P100: no trace of its host."], models)
    for words in (
        "| V100 | dlrm_default | 2,048 | 6.34 |",
        "-4.8 %",
        "shipped fits 90%, formulas 10%",
        "| gemm | V100 |",
        "2.0 %",
        "| V100 | dlrm_default b2048 | step, overheads of this workload | 6.34 | 6.66 | -4.8 % |",
        "held-out shapes",
        "published",
        "P100: no trace",
    ):
        assert words.lower() in text.lower(), words


def test_errors_by_size_have_a_table_where_a_model_keeps_them(
    summary: pd.DataFrame, tmp_path: Path
) -> None:
    facts = {"family": "gemm", "variant": "auto", "evidence": "fitted", "metrics": {"gmae": 0.02}}
    (tmp_path / "family.json").write_text(json.dumps(facts))
    metrics = {"gmae": 0.02, **{name: 0.01 * place for place, name in enumerate(DECILES, 1)}}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    text = account(Artifacts(summary), [], (("V100", tmp_path),))
    assert "| gemm | V100 | 1.0 % | 2.0 % | 3.0 % |" in text


def test_without_measurements_it_says_so(summary: pd.DataFrame) -> None:
    text = account(Artifacts(summary.assign(measured_us=None, error=None)), [])
    assert "No point of this grid has a measured step." in text
    assert "measured (ms)" not in text


def test_gaps_of_evidence_are_named(monkeypatch: object) -> None:
    flow = Flow(tuple(expand(["gpu=V100,Xp", "model=dlrm_default"])), Paths())
    lines = missing_evidence(flow)
    assert any(line.startswith("Xp: no kernel samples") for line in lines)
    assert any(line.startswith("V100: no measured steps") for line in lines)
