"""README and docs/accuracy.md are made of artifacts: their tables equal what the artifacts say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.language_passes import read_passes
from evaluation.checks.method_names import FULL, KERNEL_SUM, TRAIN_MEAN
from evaluation.compare_published import right_order
from evaluation.figures.accuracy_data import mean_errors
from evaluation.figures.accuracy_inputs import MODEL_ERRORS, PAIR_ERRORS, read_any
from evaluation.figures.kernel_errors import kernel_errors
from evaluation.pages import pictures
from evaluation.pages.accuracy_means import (
    carried_over_rows,
    kernel_rows,
    mean_table,
    readme_rows,
    simple_methods,
)
from evaluation.pages.accuracy_tables import (
    Evidence,
    kernel_table,
    left_out_errors,
    outdated_families,
    page_tables,
)
from evaluation.pages.markdown import block, markdown, rewrite, table_rows, whole_text
from evaluation.pages.published_rows import held_sentence, published_rows
from evaluation.pages.readme_tables import (
    MEANS_MARKER,
    PAGE,
    PAGE_MARKER,
    README,
    README_MARKER,
    gather,
    shipped_families,
)
from pipeline.errors import InputError, TableError
from pipeline.paths import project_dir, transfer_dir


@pytest.fixture
def found(error_tables: dict[str, pd.DataFrame], models: tuple[tuple[str, Path], ...]) -> Evidence:
    errors_of = error_tables
    left_out = pd.DataFrame(
        {"family": ["gemm", "gemm"], "gpu": ["V100", "T4"], "mape": [10.0, 20.0], "gmae": 5.0}
    )
    wave = pd.concat(
        [errors_of["transfer"], errors_of["transfer"].assign(method="wave", mape=47.0)]
    )
    kernels = kernel_errors(models)
    entry = {"inside": [0.9, 0.7], "inside_without": [0.79, 0.5], "rows": [100, 50], "level": -0.06}
    sessions = {"V100": {"gemm": entry}, "other cards": {"gemm": {"low": 0.1, "high": 0.1}}}
    return Evidence(
        kernels,
        errors_of["replays"],
        errors_of["passes"],
        left_out,
        wave,
        errors_of["models_moved"],
        sessions,
    )


def test_the_error_of_a_trace_is_the_mean_over_its_iterations(found: Evidence) -> None:
    errors = mean_errors(found.spans).set_index("method")
    assert errors.loc[FULL, "mean_error"] == pytest.approx(0.15)
    assert errors.loc[KERNEL_SUM, "evaluated"] == 2


STEPS = """
<!-- published -->
Mean absolute error of training steps in %: GPUs not used for tuning 9.1 (fp32, TF32, 27 rows), 16.8 (fp16, 24 rows); used for \
tuning 6.0 (fp32, TF32, 18 rows), 8.5 (fp16, 18 rows). Of 3 pairs of GPUs, 2 are right.
<!-- /published -->
<!-- translation -->
Mean absolute error of GNMT steps in %: GPUs not used for tuning 13.1 (fp32, TF32, 11 rows), 13.4 (fp16, 11 rows).
<!-- /translation -->
<!-- dlrm -->
Mean absolute error of DLRM training steps in %: GPUs used for other constants 11.8 (fp32, TF32, 2 rows), 10.2 (fp16, 2 rows); \
used for tuning 6.5 (fp32, TF32, 3 rows), 13.8 (fp16, 3 rows).
<!-- /dlrm -->
<!-- busy -->
| busy share predicted by | mean absolute |
| --- | --- |
| Lin et al., profiled overheads | 10.1 |
| Steptime, their loop | 7.9 |
<!-- /busy -->
<!-- lin2022 dlrm -->
| 36 DLRM steps, predicted by | GMAE % | mean absolute % |
| --- | --- | --- |
| Steptime | 4.93 | 8.2 |
| Lin et al., overheads profiled on those hosts | 7.96 | 10.7 |
<!-- /lin2022 dlrm -->
<!-- lin2022 cnn -->
| 18 steps, mean absolute error % | all |
| --- | --- |
| Steptime | 12.4 |
| Lin et al. | 9.8 |
| Habitat | 15.3 |
| MLPredict | 29.4 |
<!-- /lin2022 cnn -->
"""


def test_the_page_shows_errors_beside_baselines_published_figures_and_bars(found: Evidence) -> None:
    text = page_tables(found)
    for row in (
        "| V100 | 2.00 (2) of 80 | 2.00 (0.6) of 80 |",
        "| published, Lin et al., HiPC 2022 | < 10 | < 10 |",
        "| `v100_ddp` | V100 | 2 | 15.0 (0.5) | 50.0 |",
        "| gemm | 2 | 60 | 15.0 | 15.0 | 47.0 |",
        "| V100 | gemm | 100 | 50 | -5.8 % | 79 | 50 | 90 | 70 | 80 |",
        "all 2 of 3; T4 1 of 1; V100 1 of 2",
        "| V100 | bert_large | inference | 512 | 8 | 200.0 | 220.0 | +10.0 |",
    ):
        assert row in text, row


def test_the_small_table_has_the_mean_of_every_stage_and_of_published_steps(
    found: Evidence,
) -> None:
    text = mean_table(found, STEPS)
    for row in (
        (
            "| kernel: matrix product | held-out shapes, 1 GPU | 2.0 (worst 2.0) | Lin et al. state"
            " < 10 for theirs | 10 |"
        ),
        (
            "| kernel: other families | held-out shapes, 1 GPU | 2.0 (worst 2.0) | Lin et al. state"
            " < 10 for theirs | 10 |"
        ),
        (
            "| step of a trace, kernel times given | 1 public trace | 15.0 (worst 15.0) | queued"
            " work and kernels 50.0; Lin et al., GMAE of their DLRM steps 7.96 | 0.5 |"
        ),
        "| whole language model | 3 passes on 2 GPUs | 6.7 (worst 10.0) |  | 10 |",
        (
            "| kernel on a GPU without samples, from its spec | 1 family, 2 GPUs held out in turn |"
            " 15.0 | wave scaling 47.0, from another GPU's measurement | 20 |"
        ),
        (
            "| whole language model carried to another GPU | 2 pairs of passes | 15.0 | wave"
            " scaling 50.0; Habitat, on its models 11.8 | 8 |"
        ),
        (
            "| published training step | 51 steps, GPUs not used for tuning | 9.1 (fp32, TF32),"
            " 16.8 (fp16) |  |  |"
        ),
        (
            "| published training step | 36 steps, used for tuning | 6.0 (fp32, TF32), 8.5 (fp16) |"
            "  |  |"
        ),
        (
            "| published GNMT training step | 22 steps, GPUs not used for tuning | 13.1 (fp32,"
            " TF32), 13.4 (fp16) |  |  |"
        ),
        (
            "| published DLRM training step | 6 steps, used for tuning | 6.5 (fp32, TF32),"
            " 13.8 (fp16) |  |  |"
        ),
        (
            "| busy share of a DLRM step (percentage points) | 36 steps of Lin et al. | 7.9 | Lin"
            " et al. 10.1 |  |"
        ),
        (
            "| whole DLRM step | 36 steps of Lin et al. | GMAE 4.9, mean 8.2 | Lin et al. GMAE 7.96"
            " |  |"
        ),
        (
            "| whole step of a convolutional network | 18 steps of Lin et al. | 12.4 | Lin et al."
            " 9.8; Habitat 15.3; MLPredict 29.4 |  |"
        ),
    ):
        assert row in text, row


@pytest.mark.parametrize(
    "lost",
    [
        "<!-- busy -->",
        "<!-- /dlrm -->",
        "GPUs not used for tuning 13.1",
        "| Lin et al., profiled overheads | 10.1 |",
    ],
)
def test_a_page_without_a_published_table_is_refused_in_one_line(lost: str) -> None:
    with pytest.raises(InputError, match=r"docs/accuracy\.md: .*missing") as caught:
        published_rows(STEPS.replace(lost, ""))
    assert "\n" not in str(caught.value)


def test_errors_between_gpus_of_other_models_are_noticed(found: Evidence) -> None:
    assert outdated_families(found) == []
    assert outdated_families(
        dataclasses.replace(found, left_out=found.left_out.assign(mape=30.0))
    ) == ["gemm"]


def test_readme_and_docs_hold_what_the_packs_say() -> None:
    # fails where packs were rebuilt and `make readme` was not run
    kernels = kernel_errors(shipped_families())
    pairs, models = (read_any([str(transfer_dir() / name)]) for name in (PAIR_ERRORS, MODEL_ERRORS))
    nothing = pd.DataFrame()
    shipped = Evidence(kernels, nothing, nothing, left_out_errors(transfer_dir()), pairs, models)
    page = whole_text(project_dir() / PAGE)
    assert kernel_table(kernels) in block(page, PAGE_MARKER), f"{PAGE}: run `make readme`"
    told = [list(row.values()) for row in table_rows(block(page, MEANS_MARKER))]
    readme = block((project_dir() / README).read_text(encoding="utf-8"), README_MARKER)
    assert readme == readme_rows(block(page, MEANS_MARKER)) and len(table_rows(readme)) == 5, (
        f"{README}: run `make readme`"
    )
    for row in (*kernel_rows(kernels), *carried_over_rows(shipped), *published_rows(page)):
        assert row in told, f"{README}: run `make readme`"
    assert len(told) <= 17


def test_the_table_of_means_repeats_those_of_the_tables_below() -> None:
    """Replayed traces and passes need public data; their rows follow from the tables of docs/accuracy.md."""
    text = whole_text(project_dir() / PAGE)
    page = block(text, PAGE_MARKER)
    told = {row["what"]: row["our error (%)"] for row in table_rows(block(text, MEANS_MARKER))}
    replayed = next(
        row
        for row in table_rows(page[page.index("## Replayed traces") :])
        if row["trace"] == "mean"
    )
    shared = replayed["overheads of other hosts"].partition(" (")[0]
    assert told["step of a trace, kernel times given"].startswith(
        f"{replayed['critical path']} (worst"
    )
    assert told["the same, overheads of other hosts"].startswith(f"{shared} (worst")
    errors = [
        abs(float(row["error (%)"])) for row in table_rows(page[page.index("## Whole models") :])
    ]
    assert (
        told["whole language model"] == f"{sum(errors) / len(errors):.1f} (worst {max(errors):.1f})"
    )


def test_a_markdown_table_is_read_back() -> None:
    rows = [["1", ""], ["2", "x y"]]
    text = f"words\n\n{markdown(['a', 'b'], rows)}\n\nmore\n| other |"
    assert table_rows(text) == [{"a": "1", "b": ""}, {"a": "2", "b": "x y"}]
    assert table_rows("no table") == []


def test_a_block_is_written_in_the_file_of_a_page_that_has_its_markers(tmp_path: Path) -> None:
    page, part = tmp_path / "page.md", tmp_path / "page" / "part.md"
    part.parent.mkdir()
    page.write_text("<!-- a -->\n<!-- /a -->\n")
    part.write_text("<!-- b -->\nold\n<!-- /b -->\n")
    rewrite(page, {"a": "1", "b": "2"})
    assert (block(page.read_text(), "a"), block(part.read_text(), "b")) == ("1", "2")
    assert whole_text(page) == f"{page.read_text()}\n{part.read_text()}"
    before = whole_text(page)
    part.with_name("twin.md").write_text("<!-- b -->\n<!-- /b -->\n")
    for name in ("b", "c"):  # twice; nowhere
        with pytest.raises(InputError, match=f"<!-- {name} --> .* exactly once"):
            rewrite(page, {"a": "3", name: "3"})
    assert before in whole_text(page), "nothing is half written"


def test_left_out_errors_come_with_the_shipped_models() -> None:
    errors = left_out_errors(transfer_dir())
    assert set(errors["family"]) >= {"gemm", "elementwise"}
    assert errors.groupby("family")["gpu"].nunique().min() >= 4


def test_without_checks_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="STEPTIME_DATASETS"):
        gather(tmp_path)


def test_the_picture_shows_all_three_parts(found: Evidence) -> None:
    figure = pictures.result(found.kernels, found.passes, mean_errors(found.spans))
    assert [bool(axes.get_title(loc="left")) for axes in figure.axes] == [True] * 3
    assert all(axes.get_xlabel() for axes in figure.axes)


@pytest.mark.parametrize("name", ["replays.parquet", "pair_errors.csv"])
def test_a_damaged_table_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(TableError, match="rebuild") as caught:
        read_any([str(tmp_path / name)])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_public_table_of_passes_that_is_missing_or_of_another_form_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "neusight" / "model_latency.parquet"
    with pytest.raises(
        TableError, match=r"model_latency\.parquet: no such file; download the public data"
    ):
        read_passes(tmp_path)
    file.parent.mkdir()
    file.write_bytes(b"PAR1")
    with pytest.raises(TableError, match="not a readable parquet file"):
        read_passes(tmp_path)
    pd.DataFrame({"gpu": ["V100"], "model": ["opt_13"]}).to_parquet(file)
    with pytest.raises(TableError, match=r"column mode, seq_len, .* is missing"):
        read_passes(tmp_path)


def test_close_pairs_of_gpus_count_alone() -> None:
    rows = pd.DataFrame({"gpu": ["A", "B", "C"], "measured_us": [100.0, 110.0, 300.0]})
    rows = rows.assign(predicted_us=[100.0, 90.0, 300.0], step="s", precision="fp32", batch_size=1)
    said = (
        "Of 3 pairs of GPUs in training, 2 are predicted in the right order; of the 1 that are less"
        " than 1.25 times apart, 0."
    )
    assert right_order(rows) == said and held_sentence(f"Errors. {said} All fit.") == said


def test_the_trivial_baseline_stands_beside_ours_with_its_ties() -> None:
    errors = {FULL: [0.02, 0.10], TRAIN_MEAN: [0.028, 0.3], KERNEL_SUM: [0.4, 0.6]}
    said = simple_methods(pd.DataFrame(errors), FULL)
    assert said.endswith("50.0; mean of other iterations 16.4 (as good as ours on 1 of 2)")
