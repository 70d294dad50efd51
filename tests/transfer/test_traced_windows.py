"""How a traced convolution's window moves: recorded by PyTorch from 2.1 on, taken as usual before."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import load_trace
from pipeline.answers.traced_step import TrackedTrace
from tests.trace import trace_drawing as draw

SHAPES = [[8, 64, 56, 56], [128, 64, 3, 3], [], [], [], []]
CUDNN = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]  # padding first
NEUTRAL = ["", "", "", "[2, 1]", "[0, 1]", "[3, 3]"]


def traced(folder: Path, op: str, values: list[str] | None) -> TrackedTrace:
    said = {"Input Dims": SHAPES, "Input type": ["float", "float", *[""] * 4]}
    said |= {} if values is None else {"Concrete Inputs": values}
    shape = {
        "grid": [98, 1, 1],
        "block": [256, 1, 1],
        "registers per thread": 64,
        "shared memory": 0,
    }
    kernel = draw.kernel("implicit_convolve_sgemm", 20, 220, 1, **shape)
    events = [draw.op(op, 0, 100, **said), draw.launch(10, 15, 1), kernel]
    device = {**draw.PROPERTIES[0], "name": "Tesla V100-SXM2-16GB"}
    return TrackedTrace.of(load_trace(draw.write(folder, events, deviceProperties=[device])))


@pytest.mark.parametrize(
    "op, values, stride, padding, dilation",
    [
        ("aten::cudnn_convolution", CUDNN, (2, 2), (1, 1), 1),
        ("aten::conv2d", NEUTRAL, (2, 1), (0, 1), 3),
        ("aten::convolution", ["", "", "", "[2]", "[0]", "[1]"], (2, 2), (0, 0), 1),
        ("aten::cudnn_convolution", None, (1, 1), (1, 1), 1),
        ("aten::cudnn_convolution", ["", ""], (1, 1), (1, 1), 1),
        ("aten::cudnn_convolution", ["", "", "?", "[2, 2]", "[1, 1]"], (1, 1), (1, 1), 1),
    ],
)
def test_the_window_moves_as_the_trace_says(
    tmp_path: Path,
    op: str,
    values: list[str] | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: int,
) -> None:
    call = traced(tmp_path, op, values).calls("T4").iloc[0]
    assert call["family"] == "conv2d_forward" and call["dilation"] == dilation
    assert (call["stride"], call["stride_w"]) == stride and (
        call["padding"],
        call["padding_w"],
    ) == padding


def test_a_convolution_that_skips_pixels_is_moved_as_one(tmp_path: Path) -> None:
    """Taken for one of stride 1, it had four times its arithmetic."""
    told, untold = (
        traced(tmp_path, "aten::cudnn_convolution", values).to("T4") for values in (CUDNN, None)
    )
    assert told.predicted_us != untold.predicted_us
