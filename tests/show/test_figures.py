"""Every figure is drawn from small tables, the same on every run, or its absence has a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from pipeline.palette import luminance
from pipeline.show.figures import figure_data as tables
from pipeline.show.figures import step_times as drawn_steps
from pipeline.show.figures.costs import value_for_money
from pipeline.show.figures.gallery import GALLERY, INDEX, Artifacts, draw_all
from pipeline.show.sentences import HOSTS_DIFFER, on_one_host, step_sentence


def test_without_a_checkout_the_figures_of_the_product_are_drawn_or_absent(
    summary: pd.DataFrame, tmp_path: Path
) -> None:
    absent = draw_all(Artifacts(summary), tmp_path)
    drawn = list(json.loads((tmp_path / INDEX).read_text())["drawn"])
    assert sorted([*drawn, *absent]) == sorted(entry.name for entry in GALLERY)
    assert "step_times" in drawn and "difference" in absent


def steps(**points: float) -> pd.DataFrame:
    """A step in µs by GPU, of one model at one batch size; device-bound from 3 ms."""
    us = pd.Series([*points.values()])
    table = pd.DataFrame({"gpu": [*points], "predicted_us": us, "samples_per_s": 8e6 / us})
    table = table.assign(p10_us=0.9 * us, p90_us=1.1 * us, active_us=0.5 * us, fits=True)
    table["bound"] = ["device" if each >= 3000 else "host" for each in us]
    table = table.assign(host="typical-2020", measured_us=float("nan"))
    return table.assign(workload="m b8", model_variant="m", batch_size=8)


def test_the_hatched_tail_of_a_bar_is_the_idle_time() -> None:
    (axes,) = drawn_steps.step_times(steps(V100=4000.0)).axes
    active, idle = axes.patches
    assert (active.get_width(), idle.get_x(), idle.get_width()) == pytest.approx((2.0, 2.0, 2.0))
    assert luminance(to_hex(idle.get_facecolor())) > 2 * luminance(to_hex(active.get_facecolor()))
    assert idle.get_hatch() and not active.get_hatch()


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ({"V100": 2000.0, "H100": 1950.0}, "V100 and H100 tie: the host limits them"),
        (
            {"V100": 9000.0, "H100": 8900.0},
            "V100 and H100 tie: the errors of kernel times are larger than the difference",
        ),
        ({"T4": 9000.0, "V100": 6000.0, "H100": 3000.0}, "H100 is 3.0 times as fast as T4"),
        ({"V100": 4000.0}, "V100 is busy 50 % of the step, device-bound"),
    ],
)
def test_the_title_of_steps_is_computed(points: dict[str, float], says: str) -> None:
    assert step_sentence(steps(**points)) == says


def test_titles_do_not_compare_gpus_whose_hosts_differ() -> None:
    points = steps(V100=2000.0, H100=1000.0)
    assert on_one_host(points, step_sentence).endswith("times as fast as V100, on typical-2020")
    (axes,) = drawn_steps.step_times(points.assign(host=["typical-2017", "typical-2022"])).axes
    assert axes.get_title(loc="left") == f"m, batch 8: {HOSTS_DIFFER}"
    local = points.assign(host=["typical-2017", ""])
    assert "times as fast" in on_one_host(local, step_sentence)


def test_throughput_and_throughput_per_cost_are_relative_to_the_first_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4 at half the throughput of the V100 and a fifth of its price: 0.5 and 2.5. The P4 has no price."""
    entries = [
        f"  - {{gpu: {gpu}, per_hour: {price}, date: 2026-01-15, source: mine}}\n"
        for gpu, price in (("V100", 5), ("T4", 1))
    ]
    (tmp_path / "prices.yaml").write_text("currency: EUR\nprices:\n" + "".join(entries))
    monkeypatch.setenv("STEPTIME_PRICES", str(tmp_path / "prices.yaml"))
    points = steps(V100=1000.0, T4=2000.0, P4=4000.0)
    speed, money = value_for_money(tables.value_for_money(points)).axes
    assert [bar.get_width() for bar in speed.patches] == pytest.approx([1.0, 0.5, 0.25])
    assert [bar.get_width() for bar in money.patches] == pytest.approx([1.0, 2.5])
    assert " ".join(money.get_title(loc="left").split()) == "T4 gives most per EUR, on typical-2020"
    assert "no price" in [text.get_text().strip() for text in money.texts]
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    assert tables.value_for_money(points).empty
