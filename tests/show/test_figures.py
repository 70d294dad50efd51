"""Every figure is drawn from small tables, the same on every run, or its absence has a reason."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from pipeline.families import COLOURS
from pipeline.palette import luminance
from pipeline.paths import project_dir
from pipeline.show.figures import figure_data as tables
from pipeline.show.figures import step_times as drawn_steps
from pipeline.show.figures.costs import value_for_money
from pipeline.show.figures.gallery import GALLERY, INDEX, Artifacts, draw_all
from pipeline.show.grid_inputs import price_table
from pipeline.show.sentences import step_sentence
from pipeline.summary_rows import predictions_of


def test_without_a_checkout_the_figures_of_the_product_are_drawn_or_absent(
    summary: pd.DataFrame, tmp_path: Path
) -> None:
    absent = draw_all(Artifacts(summary), tmp_path)
    drawn = list(json.loads((tmp_path / INDEX).read_text())["drawn"])
    assert sorted([*drawn, *absent]) == sorted(entry.name for entry in GALLERY)
    assert "step_times" in drawn and "difference" in absent


def steps(**points: float) -> pd.DataFrame:
    """A step in µs by GPU, of one model at one batch size; device-bound from 3 ms."""
    rows = [
        {
            "gpu": gpu,
            "workload": "m b8",
            "model_variant": "m",
            "batch_size": 8,
            "predicted_us": us,
            "p10_us": 0.9 * us,
            "p90_us": 1.1 * us,
            "active_us": 0.5 * us,
            "measured_us": float("nan"),
            "samples_per_s": 8e6 / us,
            "fits": True,
            "bound": "device" if us >= 3000 else "host",
        }
        for gpu, us in points.items()
    ]
    return pd.DataFrame(rows)


def test_models_have_panels_of_their_own_so_that_none_vanishes_beside_another() -> None:
    both = pd.concat(
        [steps(V100=1000.0), steps(V100=1e6).assign(model_variant="n")], ignore_index=True
    )
    short, long = drawn_steps.step_times(both).axes
    assert long.get_xlim()[1] > 500 > short.get_xlim()[1] / 1000
    assert [axes.get_title(loc="left").partition(",")[0] for axes in (short, long)] == ["m", "n"]


def test_the_hatched_tail_of_a_bar_is_the_idle_time() -> None:
    (axes,) = drawn_steps.step_times(steps(V100=4000.0)).axes
    active, idle = axes.patches
    assert (active.get_width(), idle.get_x(), idle.get_width()) == pytest.approx((2.0, 2.0, 2.0))
    assert luminance(to_hex(idle.get_facecolor())) > 2 * luminance(to_hex(active.get_facecolor()))
    assert idle.get_hatch() and not active.get_hatch()


def test_a_kernel_family_has_the_same_colour_in_every_panel() -> None:
    rows = [
        ("V100", "m", "gemm", 90.0),
        ("V100", "m", "softmax", 10.0),
        ("V100", "n", "softmax", 60.0),
        ("V100", "n", "gemm", 40.0),
    ]
    table = pd.DataFrame(rows, columns=["gpu", "model_variant", "family", "device_us"]).assign(
        workload="w", batch_size=8
    )
    first, second = drawn_steps.breakdown(table).axes
    colours = [
        [to_hex(bar.get_facecolor()).upper() for bar in axes.patches][:2]
        for axes in (first, second)
    ]
    assert colours == [
        [COLOURS["gemm"], COLOURS["softmax"]],
        [COLOURS["softmax"], COLOURS["gemm"]],
    ]
    assert [text.get_text() for text in first.texts if text.get_text()] == [
        "gemm 90",
        "10",
        "100 µs",
    ]


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ({"V100": 2000.0, "H100": 1950.0}, "V100 and H100 tie: the host limits them"),
        ({f"G{number}": 2000.0 for number in range(9)}, "9 GPUs tie: the host limits them"),
        (
            {"V100": 9000.0, "H100": 8900.0},
            "V100 and H100 tie: the errors of kernel times are larger than the difference",
        ),
        (
            {"T4": 2800.0, "V100": 2000.0, "H100": 1950.0},
            "V100 and H100 tie (the host limits them), 1.4 times as fast as T4",
        ),
        ({"T4": 9000.0, "V100": 6000.0, "H100": 3000.0}, "H100 is 3.0 times as fast as T4"),
        ({"V100": 4000.0}, "V100 is busy 50 % of the step, device-bound"),
    ],
)
def test_the_title_of_steps_is_computed(points: dict[str, float], says: str) -> None:
    assert step_sentence(steps(**points)) == says


def test_a_small_difference_that_is_sure_is_said_in_percent() -> None:
    """With intervals of 1 %, a difference of 5 % is no tie."""
    exact = steps(V100=2100.0, H100=2000.0)
    exact[["p10_us", "p90_us"]] = exact[["predicted_us"]].to_numpy() * [0.99, 1.01]
    assert step_sentence(exact) == "H100 is 5.0 % faster than V100"


def test_a_title_names_the_batch_sizes_at_which_gpus_tie() -> None:
    small = steps(V100=2000.0, H100=1990.0).assign(batch_size=4)
    large = steps(V100=9000.0, H100=3000.0)
    says = (
        "V100 and H100 tie at batch 4: the host limits them; H100 is 3.0 times as fast as V100 at"
        " batch 8"
    )
    assert step_sentence(pd.concat([small, large])) == says


def test_throughput_and_throughput_per_cost_are_relative_to_the_first_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4 at half the throughput of the V100 and a fifth of its price: 0.5 and 2.5. The P4 has no price."""
    entries = [
        f"{{gpu: {gpu}, per_hour: {price}, date: 2026-01-15, source: mine}}"
        for gpu, price in (("V100", 5), ("T4", 1))
    ]
    (tmp_path / "prices.yaml").write_text(
        "currency: EUR\nprices:\n  - " + "\n  - ".join(entries) + "\n"
    )
    monkeypatch.setenv("STEPTIME_PRICES", str(tmp_path / "prices.yaml"))
    points = steps(V100=1000.0, T4=2000.0, P4=4000.0)
    smaller_batch = points[points["gpu"] == "T4"].assign(
        batch_size=4, predicted_us=1500.0, samples_per_s=4e6 / 1500
    )
    table = tables.value_for_money(pd.concat([smaller_batch, points], ignore_index=True))
    assert dict(zip(table["gpu"], table["batch_size"], strict=True)) == {
        "V100": 8,
        "T4": 8,
        "P4": 8,
    }
    figure = value_for_money(table)
    speed, money = figure.axes
    assert [bar.get_width() for bar in speed.patches] == pytest.approx([1.0, 0.5, 0.25])
    assert [bar.get_width() for bar in money.patches] == pytest.approx([1.0, 2.5])
    assert money.get_title(loc="left") == "T4 gives most per EUR" and "no price" in [
        text.get_text().strip() for text in money.texts
    ]
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    assert tables.value_for_money(points).empty


def test_a_point_is_named_by_its_overrides_and_not_by_their_hash(summary: pd.DataFrame) -> None:
    point = dataclasses.replace(
        predictions_of(summary)[0], variant="v0123456789", overrides=("model.rows=[10,20]",)
    )
    assert point.label == "dlrm_default rows=[10,20] b512"
    long = dataclasses.replace(point, overrides=("model.rows=" + "9" * 80,))
    assert long.label == "dlrm_default v0123456789 b512"


def test_the_price_list_in_use_is_an_input_of_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert price_table() == [str(project_dir() / "config/prices.yaml")]
    (tmp_path / "prices.yaml").touch()
    assert price_table() == ["prices.yaml"]
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    assert price_table() == []
    rule = (project_dir() / "workflow/rules/report.smk").read_text(encoding="utf-8")
    assert "prices=GRID.price_table()" in rule.partition("rule figures:")[2].partition("output:")[0]
