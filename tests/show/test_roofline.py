"""The roofline of a step: where its kernels are, which roof limits them, and what a mark says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from pipeline.errors import InputError
from pipeline.prediction import Prediction
from pipeline.prediction_parts import Arithmetic
from pipeline.show.figures.board import NARROW, headline_of, save_as
from pipeline.show.figures.roofline import draw_roofline, kernels_of
from pipeline.summary_rows import predictions_of, summary_row
from steptime import predict
from tests.predictions import predicted
from tests.show.figure_texts import problems


def call(
    family: str, us: float, flops: float, moved: float, evidence: str = "pack", dtype: str = "fp32"
) -> dict[str, object]:
    return {
        "family": family,
        "op": family,
        "dtype": dtype,
        "evidence": evidence,
        "flops": flops,
        "bytes_read": moved / 2,
        "bytes_written": moved / 2,
        "kernel_us": us,
        "device_start_us": 0.0,
        "device_end_us": us,
    }


CALLS = [
    call("gemm", 100.0, 1e9, 1e7),  # 100 FLOPs per byte, 10 TFLOP/s
    call("gemm", 100.0, 1e9, 1e7),
    call("elementwise", 50.0, 1e7, 4e7, "transferred"),  # 0.25 FLOPs per byte, 0.2 TFLOP/s of 0.25
    call("softmax", 100.0, 1e7, 2e7, "roofline", "fp16"),  # 0.5 FLOPs per byte, 0.1 TFLOP/s of 0.5
    call("copy", 50.0, 0.0, 4e7),
    call("memcpy_h2d", 900.0, 0.0, 4e7),
]
"""On a GPU with 1,000 GB/s and 20 TFLOP/s in fp32, whose roofs meet at 20 FLOPs per byte."""


def step(calls: list[dict[str, object]] = CALLS) -> Prediction:
    return predicted(
        1e3,
        gpu="GPU",
        batch_size=1,
        calls=pd.DataFrame(calls),
        arithmetic=Arithmetic(2e9, "fp32", {"fp32": 20.0, "fp16": 100.0}, 1000.0),
    )


def test_equal_kernels_are_one_with_their_time_and_the_roof_above_them() -> None:
    table = kernels_of(step()).set_index("family")
    assert "memcpy_h2d" not in table.index and list(table["calls"][["gemm", "copy"]]) == [2, 1]
    gemm, elementwise = table.loc["gemm"], table.loc["elementwise"]
    assert (
        gemm["us"],
        gemm["intensity"],
        gemm["tflop_per_s"],
        gemm["roof_tflop_per_s"],
    ) == pytest.approx((200, 100, 10, 20))
    assert (
        elementwise["intensity"],
        elementwise["tflop_per_s"],
        elementwise["roof_tflop_per_s"],
    ) == pytest.approx((0.25, 0.2, 0.25))
    assert not gemm["memory"] and table["memory"][["elementwise", "softmax", "copy"]].all()


def test_title_and_notes_are_computed_from_the_kernels() -> None:
    """Memory limits all but 200 of 400 µs; the softmax reaches a fifth of its roof, and the copy computes nothing."""
    figure = draw_roofline(step())
    assert (
        headline_of(figure) == "50 % of the kernels' time is limited by memory, 50 % by arithmetic"
    )
    note = " ".join(figure.get_supxlabel().split())
    assert "25 % of it is in kernels that reach less than a quarter of their roof" in note
    assert "hardly any arithmetic and very short ones, 12 % of the time" in note


def marks(figure: Figure) -> list[PathCollection]:
    return [one for one in figure.axes[0].collections if isinstance(one, PathCollection)]


def test_area_is_time() -> None:
    gemm, softmax, elementwise = marks(draw_roofline(step()))
    areas = [float(mark.get_sizes()[0]) for mark in (gemm, softmax, elementwise)]
    assert np.array(areas) / areas[0] == pytest.approx([1, 100 / 200, 50 / 200])


def test_texts_do_not_overlap_on_a_phone_either() -> None:
    assert problems(predict("V100", "dlrm_default").plot("roofline")) == []
    assert problems(draw_roofline(step(), NARROW)) == []


def test_the_same_step_gives_the_same_file_and_other_predictions_say_why_not(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        save_as(draw_roofline(step()), tmp_path / name / "roofline.svg")
    assert (tmp_path / "a/roofline.svg").read_bytes() == (tmp_path / "b/roofline.svg").read_bytes()
    (back,) = predictions_of(summary_row(step()))
    with pytest.raises(InputError, match="roofline: the step was traced, read from a table"):
        back.plot("roofline")
