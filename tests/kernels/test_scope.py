"""What samples covered: sizes outside are moved inside, and a tensor of memory's size stays one."""

import numpy as np
import pandas as pd
import pytest

from pipeline.families import family
from pipeline.kernels.features import Scope

RANGES = {"B": (1.0, 1000.0), "H": (1.0, 500.0)}
CACHE = 200_000
"""Bytes: 25,000 elements of fp32 read, and as many written."""


def scope(name: str = "elementwise") -> Scope:
    return Scope(("add",), ("fp32",), ("forward",), RANGES, name=name)


def clamped(batch: float, width: float, name: str = "elementwise") -> tuple[float, float, float]:
    calls = pd.DataFrame({"family": name, "op": "add", "B": [batch], "H": [width]})
    moved, octaves = scope(name).clamp(calls, CACHE)
    return float(moved["B"].iloc[0]), float(moved["H"].iloc[0]), float(octaves[0])


@pytest.mark.parametrize(("batch", "width"), [(40_000, 10), (8, 40_000), (16_384, 14)])
def test_a_tall_or_wide_tensor_keeps_its_elements(batch: float, width: float) -> None:
    b, h, octaves = clamped(batch, width)
    assert b * h == pytest.approx(batch * width)
    assert 1 <= b <= 1000 and 1 <= h <= 500 and octaves == 0


def test_of_more_elements_than_any_sample_the_largest_sample_is_the_nearest() -> None:
    b, h, octaves = clamped(4_000_000, 10)
    assert (b, h) == (1000, 500) and octaves == pytest.approx(np.log2(80))


def test_what_is_no_cached_tensor_inside_the_range_is_cut_as_before() -> None:
    assert clamped(4000, 100)[:2] == (1000, 100)
    assert clamped(400, 300) == (400, 300, 0)


def test_rows_of_other_families_are_no_elements_in_a_row() -> None:
    assert clamped(40_000, 10, "softmax")[:2] == (1000, 10)


def test_bytes_that_a_call_does_not_state_are_not_those_of_the_smallest_sample() -> None:
    """A softmax of more rows than any sample: its time grows with its rows, whether or not samples stated bytes."""
    samples = pd.DataFrame(
        {
            "op": "softmax",
            "dtype": "fp32",
            "phase": "forward",
            "B": [4.0, 1024.0],
            "H": [64.0, 512.0],
            "inputs": [1024.0, None],
            "outputs": [1024.0, None],
        }
    )
    scope = Scope.of("softmax", samples, ("B", "H", "inputs", "outputs"))
    call = pd.DataFrame(
        {"op": ["softmax"], "dtype": "fp32", "phase": "forward", "B": [4096.0], "H": [512.0]}
    )
    assert scope.covers(call).all()
    clamped, octaves = scope.clamp(call)
    assert (clamped["B"].item(), octaves.item()) == (1024.0, 2.0) and clamped[
        ["inputs", "outputs"]
    ].isna().all(axis=None)


@pytest.mark.parametrize(
    ("batch", "channels", "rows", "share"),
    [(640, 64, 320, 0.5), (320, 512, 80, 0.25), (320, 64, 320, 1.0)],
    ids=["more rows", "bytes alone", "inside"],
)
def test_stated_bytes_follow_the_sizes_of_a_clipped_call(
    batch: float, channels: float, rows: float, share: float
) -> None:
    """Twice the rows of any sample, or sizes that are in their ranges and together move more bytes than any sample."""
    most = 4.0 * 320 * 128 * 49
    ranges = {"B": (4.0, 320.0), "C": (16.0, 1024.0), "HW": (1.0, 4096.0)}
    ranges |= {"inputs": (1e3, 2.0 * most), "outputs": (1e3, most)}
    bn = Scope(("batch_norm",), ("fp32",), ("forward",), ranges, name="batch_norm")
    elements = batch * channels * 49.0
    sizes = {"B": batch, "C": channels, "HW": 49.0}
    stated = {"inputs": 8.0 * elements, "outputs": 4.0 * elements}
    call = pd.DataFrame(
        [{"op": "batch_norm", "dtype": "fp32", "phase": "forward"} | sizes | stated]
    )
    moved, octaves = bn.clamp(call)
    found = moved[["B", "C", "inputs", "outputs"]].iloc[0].tolist()
    assert found == pytest.approx([rows, channels, *(share * b for b in stated.values())])
    assert octaves.item() == pytest.approx(-np.log2(share))


def test_a_square_convolution_is_covered_where_some_samples_are_oblong() -> None:
    """The sides of oblong samples say nothing of square images, which may be larger."""
    dims = {"B": 8.0, "in_channels": 16.0, "out_channels": 16.0, "kernel_size": 3.0, "padding": 1.0}
    square = {
        **dims,
        "input_size": [224.0, 17.0],
        "kernel_size_w": [None, 1.0],
        "input_size_w": [None, 9.0],
    }
    samples = pd.DataFrame({"op": "conv", "dtype": "fp32", "phase": "forward", **square})
    scope = Scope.of("conv2d_forward", samples, family("conv2d_forward").dims)
    call = pd.DataFrame(
        {"op": ["conv"], "dtype": "fp32", "phase": "forward", **dims, "input_size": 112.0}
    )
    assert scope.covers(call).all() and scope.clamp(call)[1].item() == 0.0
    assert scope.covers(call.assign(kernel_size_w=3.0, input_size_w=112.0)).all()
    assert not scope.covers(call.assign(kernel_size_w=1.0)).any()


@pytest.mark.parametrize(
    ("rows", "dtypes"),
    [((50, 5), ("fp32",)), ((50, 20), ("bf16", "fp32")), ((2, 2), ("bf16", "fp32"))],
)
def test_a_dtype_of_few_samples_is_left_to_other_models(
    rows: tuple[int, int], dtypes: tuple[str, ...]
) -> None:
    names = ["fp32"] * rows[0] + ["bf16"] * rows[1]
    samples = pd.DataFrame(
        {"op": "linear", "dtype": names, "phase": "forward", "M": 64.0, "N": 64.0, "K": 64.0}
    )
    assert Scope.of("gemm", samples, ("M", "N", "K")).dtypes == dtypes
