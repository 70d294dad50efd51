"""What samples covered: sizes outside are moved inside, and a tensor of memory's size stays one."""

import numpy as np
import pandas as pd
import pytest

from pipeline.kernels.features import Scope

FACTS = {"op": "add", "dtype": "fp32", "phase": "forward"}
RANGES = {"B": (1.0, 1000.0), "H": (1.0, 500.0)}
CACHE = 200_000
"""Bytes: 25,000 elements of fp32 read, and as many written."""


def clamped(batch: float, width: float, name: str = "elementwise") -> tuple[float, float, float]:
    calls = pd.DataFrame({"family": name, "op": "add", "B": [batch], "H": [width]})
    scope = Scope(("add",), ("fp32",), ("forward",), RANGES, name=name)
    moved, octaves = scope.clamp(calls, CACHE)
    return moved["B"].item(), moved["H"].item(), octaves.item()


@pytest.mark.parametrize(("batch", "width"), [(40_000, 10), (8, 40_000), (16_384, 14)])
def test_a_tall_or_wide_tensor_keeps_its_elements(batch: float, width: float) -> None:
    b, h, octaves = clamped(batch, width)
    assert b * h == pytest.approx(batch * width)
    assert 1 <= b <= 1000 and 1 <= h <= 500 and octaves == 0


def test_of_more_elements_than_any_sample_or_other_families_each_size_is_cut() -> None:
    assert clamped(4_000_000, 10) == (1000, 500, pytest.approx(np.log2(80)))
    assert clamped(4000, 100)[:2] == (1000, 100), "no tensor of the cache's size"
    assert clamped(400, 300) == (400, 300, 0)
    assert clamped(40_000, 10, "softmax")[:2] == (1000, 10)


@pytest.mark.parametrize(
    ("batch", "channels", "rows", "share"),
    [(640, 64, 320, 0.5), (320, 512, 80, 0.25)],
    ids=["more rows", "bytes alone"],
)
def test_stated_bytes_follow_the_sizes_of_a_clipped_call(
    batch: float, channels: float, rows: float, share: float
) -> None:
    """Twice the rows of any sample, or sizes that are in their ranges and together move more bytes than any sample."""
    most = 4.0 * 320 * 128 * 49
    ranges = {"B": (4.0, 320.0), "C": (16.0, 1024.0), "HW": (1.0, 4096.0), "outputs": (1e3, most)}
    scope = Scope(("add",), ("fp32",), ("forward",), ranges, name="batch_norm")
    moved_bytes = 4.0 * batch * channels * 49
    sizes = {"B": [batch], "C": [channels], "HW": [49.0], "outputs": [moved_bytes]}
    moved, octaves = scope.clamp(pd.DataFrame({**FACTS, **sizes}))
    found = moved[["B", "C", "outputs"]].iloc[0].tolist()
    assert found == pytest.approx([rows, channels, share * moved_bytes])
    assert octaves.item() == pytest.approx(-np.log2(share))


@pytest.mark.parametrize(
    ("full", "half", "dtypes"),
    [(50, 5, ("fp32",)), (50, 20, ("bf16", "fp32")), (2, 2, ("bf16", "fp32"))],
)
def test_a_dtype_of_few_samples_is_left_to_other_models(
    full: int, half: int, dtypes: tuple[str, ...]
) -> None:
    names = ["fp32"] * full + ["bf16"] * half
    samples = pd.DataFrame({**FACTS, "M": 64.0, "dtype": names})
    assert Scope.of("gemm", samples, ("M",)).dtypes == dtypes
