"""Predictions as tables and rows."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pipeline.prediction import Prediction
from pipeline.prediction_parts import UNMEASURED
from pipeline.schemas import to_arrow
from pipeline.show.comparison import Comparison, show
from pipeline.show.tables import Catalogue, console, one
from pipeline.summary_rows import predictions_of, summary_row
from tests.predictions import predicted


@pytest.fixture
def prediction() -> Prediction:
    return predicted(
        8000.0,
        model="dlrm_default",
        batch_size=2048,
        active_us=6000.0,
        host_us=3000.0,
        p10_us=7500.0,
        p90_us=9000.0,
        memory_bytes=2 << 30,
        evidence={"pack": 0.9, "roofline": 0.1},
        host_evidence={"shared": 1.0},
        unmodelled_share=0.01,
        families_us={"gemm": 4000.0, "bmm": 2000.0},
        unmodelled_us={"aten::odd": 60.0},
    )


def text_of(renderable: object) -> str:
    stream = io.StringIO()
    Console(file=stream, width=160).print(renderable)
    return stream.getvalue()


def test_brackets_of_names_and_paths_are_text(
    prediction: Prediction, capsys: pytest.CaptureFixture[str]
) -> None:
    console().print(Catalogue([{"file": "runs[/b].parquet", "says": "[Errno 2] :cat:"}]))
    other = dataclasses.replace(
        prediction, variant="v0123456789", overrides=("model.sizes=[a,b]", f"model.x={'1' * 60}")
    )
    show([other], {"timeline": "runs[red]/t.json"})
    shown = capsys.readouterr().out
    for text in (
        "runs[/b].parquet",
        "[Errno 2] :cat:",
        "sizes=[a,b]",
        "timeline: runs[red]/t.json",
    ):
        assert text in shown


@pytest.mark.parametrize(
    "changes",
    [
        {"measured_us": 8200.0},
        {"tight": True, "warnings": ("V100 has no TF32",)},
        {"fits": False, "largest_batch": 1700, "fitting_gpus": ("L40S", "A100")},
    ],
)
def test_a_summary_row_comes_back_as_the_same_prediction(
    prediction: Prediction, changes: dict[str, Any]
) -> None:
    told = dataclasses.replace(prediction, **changes)
    table = to_arrow(summary_row(told), "summary").to_pandas()
    assert predictions_of(table) == [told]
    error = None if told.measured_us is None else pytest.approx(8000 / 8200 - 1)
    assert table["error"].replace(np.nan, None).tolist() == [error]


def test_the_table_says_what_matters(prediction: Prediction) -> None:
    shown = text_of(one(prediction))
    assert "shipped fits 90%" not in shown
    assert "shipped fits 90%" in text_of(one(prediction, why=True))
    for words in (
        "8.00 ms",
        "7.50 ms to 9.00 ms",
        "75% busy",
        "the GPU   (75% busy)",
        "gemm",
        "guess: operators without a model",
        "2.0 GiB",
        "1.0% of device time",
    ):
        assert words in shown, words


def test_a_prediction_prints_as_one_line_and_shows_as_a_table(prediction: Prediction) -> None:
    line = (
        "dlrm_default on V100, batch 2048: at least 8.00 ms (p10-p90: 7.50 ms to 9.00 ms),"
        " device-bound, 2.0 GiB"
    )
    assert str(prediction) == line and repr([prediction]) == f"[<Prediction: {line}>]"
    assert str(dataclasses.replace(prediction, fits=False)) == f"{line}, does not fit"
    odd = dataclasses.replace(prediction, model="a<b>")
    html = odd._repr_html_()
    assert html.startswith("<table>") and "a&lt;b&gt; on V100" in html and "a<b>" not in html
    for label, value in prediction.rows():
        assert label in html and value.split("(")[0].strip() in html


def test_a_host_bound_step_names_the_host_and_the_break_even(prediction: Prediction) -> None:
    host = dataclasses.replace(prediction, bound="host", host="v100-traces", device_bound_from=1.6)
    shown = text_of(one(host))
    assert "v100-traces" in shown and "the GPU is the limit from a host 1.60 times as fast" in shown
    never = text_of(one(dataclasses.replace(host, device_bound_from=None)))
    assert "whatever the host" in never
    assert "times as fast" not in text_of(one(dataclasses.replace(host, bound="device")))


def test_one_word_says_how_sure_a_step_is_by_the_error_of_its_interval() -> None:
    for p90_us, word in ((1.3, "good"), (1.8, "fair"), (2.0, "guess")):
        assert predicted(1.2, p10_us=1.0, p90_us=p90_us).sureness == word
    assert predicted(1.2, p10_us=1.0, p90_us=2.0, evidence={"measured": 0.9}).sureness == "measured"
    note = f"{UNMEASURED} the times of it"
    assert predicted(1.2, p10_us=1.0, p90_us=1.3, notes=(note,)).sureness == "guess"


def test_a_step_that_fits_tightly_says_so_wherever_it_is_shown(prediction: Prediction) -> None:
    tight = dataclasses.replace(prediction, tight=True)
    assert "2.0 GiB, tight" in text_of(one(tight)) and str(tight).endswith("2.0 GiB, tight")
    assert tight.as_dict()["fits"] is tight.as_dict()["tight"] is True


def test_a_step_that_does_not_fit_names_what_does(prediction: Prediction) -> None:
    gpus = ("L40S", "A100", "H100", "H200", "B200")
    large = dataclasses.replace(prediction, fits=False, largest_batch=1700, fitting_gpus=gpus)
    shown = text_of(one(large))
    assert "a batch of 1,700 on this GPU; this batch on L40S, A100, H100 and 2 more" in shown


def test_a_summary_of_an_earlier_version_is_read(prediction: Prediction) -> None:
    lacking = ["host", "device_bound_from", "fitting_gpus", "warnings", "unmodelled", "families"]
    table = to_arrow(summary_row(prediction), "summary").to_pandas().drop(columns=lacking)
    earlier = dataclasses.replace(prediction, unmodelled_us={}, families_us={})
    assert predictions_of(table) == [earlier]


def test_a_hashed_variant_is_shown_by_its_options(prediction: Prediction) -> None:
    hashed = dataclasses.replace(
        prediction,
        variant="v82811cac9c",
        overrides=("model.tables=[4,24]", "+model.options.width=512"),
    )
    for shown in (text_of(one(hashed)), text_of(Comparison([hashed, prediction]))):
        assert "tables=[4,24] options.width=512" in shown and "v82811cac9c" not in shown
