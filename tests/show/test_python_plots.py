"""Plots from Python: the bars have the values of the predictions, and add up to the step."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure

from pipeline import compare, draw_steps
from pipeline.errors import SteptimeError, SteptimeWarning
from tests.predictions import predicted
from tests.show.figure_texts import problems

STEP = predicted(
    10_000.0,
    variant="dtype-fp16",
    active_us=6_000.0,
    host_us=9_000.0,
    p90_us=12_000.0,
    families_us={"gemm": 4_000.0, "concat": 2_000.0},
    bound="host",
    overrides=("model.dtype=fp16",),
)


def bars(figure: Figure) -> dict[str, float]:
    """Length of each bar in ms, by its name in the legend."""
    return {
        box.get_label(): box.patches[0].get_width()
        for box in figure.axes[0].containers
        if isinstance(box, BarContainer)
    }


def test_the_parts_of_a_step_are_its_bars() -> None:
    figure = STEP.plot()
    assert isinstance(figure, Figure)
    assert bars(figure) == pytest.approx(
        {"step": 10.0, "gemm": 4.0, "concat": 2.0, "idle": 4.0, "host": 9.0}
    )
    assert " ".join(figure.axes[0].get_title(loc="left").split()) == (
        "m on V100, batch 64 (dtype=fp16): 10.0 ms, host-bound, the device idles 40% of it"
    )
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["10.0 ms", "4.00 ms, 40 %", "2.00 ms, 20 %", "4.00 ms, 40 %", "9.00 ms"]
    (interval,) = (box for box in figure.axes[0].containers if isinstance(box, ErrorbarContainer))
    ends = interval.lines[2][0].get_segments()[0][:, 0]
    assert list(ends) == pytest.approx([9.0, 12.0])


def test_overlapping_kernels_and_small_families_still_add_up_to_the_step() -> None:
    families = {f"family{number}": 1_000.0 * (10 - number) for number in range(10)}
    shown = bars(dataclasses.replace(STEP, families_us=families).plot())
    assert "other families" in shown and len(shown) == 6 + 4
    assert sum(us for name, us in shown.items() if name not in ("step", "host")) == pytest.approx(
        10.0
    )
    assert shown["family0"] / shown["family5"] == pytest.approx(2.0)


def test_a_comparison_is_a_table_a_figure_and_a_best() -> None:
    grid = compare(gpu="V100,T4", model="dlrm_small", batch_size="64,128")
    assert grid.table["gpu"].tolist() == ["V100", "V100", "T4", "T4"]
    assert grid.table["batch_size"].tolist() == [64, 128, 64, 128]
    assert {"families_us.gemm", "samples_per_dollar", "unpredicted"} <= set(grid.table)
    best = grid.best["dlrm_small"]
    assert best.samples_per_s == grid.table["samples_per_s"].max()
    figure = grid.plot()
    bars_of = [[bar.get_width() for bar in axes.patches] for axes in figure.axes]
    drawn = sorted(
        active + idle
        for widths in bars_of
        for active, idle in zip(widths[:4], widths[4:], strict=True)
    )
    assert drawn == pytest.approx(sorted(grid.table["predicted_us"] / 1000))
    assert "V100" in grid._repr_html_()


def test_a_point_that_cannot_be_predicted_is_a_row_with_its_reason_and_alone_an_error() -> None:
    with pytest.warns(SteptimeWarning, match="V100 has no bf16"):
        grid = compare(gpu="V100,P100", model="dlrm_small", batch_size=64, model__dtype="bf16")
    lost = grid.table.set_index("gpu")["unpredicted"]
    assert "bf16" in lost["P100"] and len(grid.predictions) == int(lost.isna().sum()) == 1
    with pytest.raises(SteptimeError, match="bf16"):
        compare(gpu="P100,P4", model="dlrm_small", batch_size=64, model__dtype="bf16")


def test_no_text_of_a_plot_overlaps_another_or_leaves_it() -> None:
    name = "a_model_with_a_very_long_name_" * 3
    families = {f"embedding_backward_{number}": 1_000.0 * (10 - number) for number in range(10)}
    steps = [
        dataclasses.replace(STEP, model=name, families_us=families, batch_size=64 * 4**place)
        for place in range(5)
    ]
    assert problems(steps[0].plot()) == [] and problems(draw_steps(steps)) == []
