"""README and docs/accuracy.md are made of artifacts: their tables equal what the artifacts say."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.method_names import FULL, KERNEL_SUM, TRAIN_MEAN
from evaluation.compare_published import right_order
from evaluation.figures.accuracy_inputs import MODEL_ERRORS, PAIR_ERRORS, read_any
from evaluation.figures.kernel_errors import kernel_errors
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
from evaluation.pages.markdown import block, rewrite, table_rows, whole_text
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
    moved = error_tables["transfer"]
    left_out = moved[["family", "mape", "gmae"]].assign(gpu=moved["origin"], gmae=5.0)
    entry = {"inside": [0.9, 0.7], "inside_without": [0.79, 0.5], "rows": [100, 50], "level": -0.06}
    return Evidence(
        kernel_errors(models),
        error_tables["replays"],
        error_tables["passes"],
        left_out,
        pd.concat([moved, moved.assign(method="wave", mape=47.0)]),
        error_tables["models_moved"],
        {"V100": {"gemm": entry}, "other cards": {"gemm": {"low": 0.1, "high": 0.1}}},
    )


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


def test_a_block_is_written_in_the_file_of_a_page_that_has_its_markers(tmp_path: Path) -> None:
    page, part = tmp_path / "page.md", tmp_path / "page" / "part.md"
    part.parent.mkdir()
    page.write_text("<!-- a -->\n<!-- /a -->\n")
    part.write_text("<!-- b -->\nold\n<!-- /b -->\n")
    rewrite(page, {"a": "1", "b": "2"})
    assert (block(page.read_text(), "a"), block(part.read_text(), "b")) == ("1", "2")
    part.with_name("twin.md").write_text(part.read_text())
    before = whole_text(page)
    for name in ("b", "c"):  # twice; nowhere
        with pytest.raises(InputError, match=f"<!-- {name} --> .* exactly once"):
            rewrite(page, {"a": "3", name: "3"})
    assert whole_text(page) == before, "nothing is half written"


def test_without_checks_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="STEPTIME_DATASETS"):
        gather(tmp_path)


@pytest.mark.parametrize("name", ["replays.parquet", "pair_errors.csv"])
def test_a_damaged_table_is_one_line_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(TableError, match="rebuild") as caught:
        read_any([str(tmp_path / name)])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_close_pairs_of_gpus_count_alone() -> None:
    rows = pd.DataFrame({"gpu": list("ABC"), "measured_us": [100.0, 110.0, 300.0], "step": "s"})
    rows = rows.assign(predicted_us=[100.0, 90.0, 300.0], precision="fp32", batch_size=1)
    said = (
        "Of 3 pairs of GPUs in training, 2 are predicted in the right order; of the 1 that are less"
        " than 1.25 times apart, 0."
    )
    assert right_order(rows) == said and held_sentence(f"Errors. {said} All fit.") == said


def test_the_trivial_baseline_stands_beside_ours_with_its_ties() -> None:
    errors = {FULL: [0.02, 0.10], TRAIN_MEAN: [0.028, 0.3], KERNEL_SUM: [0.4, 0.6]}
    said = simple_methods(pd.DataFrame(errors), FULL)
    assert said.endswith("50.0; mean of other iterations 16.4 (as good as ours on 1 of 2)")
