"""Convolutions without samples: what their times are derived from, and their error against a public training trace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import KernelPredictor
from tests.kernels.shipped import shipped


@pytest.fixture(scope="module")
def v100() -> KernelPredictor:
    return shipped("V100")


def convolutions(family: str, *shapes: tuple[int, int, int, int, int]) -> pd.DataFrame:
    """Calls of 32 images by (channels in, channels out, window, size, stride)."""
    names = ("in_channels", "out_channels", "kernel_size", "input_size", "stride")
    table = pd.DataFrame(shapes, columns=list(names)).assign(
        B=32, family=family, op="conv", phase="forward", dtype="fp32"
    )
    return table.assign(padding=table["kernel_size"] // 2)


def test_a_product_taller_than_any_sample_is_left_to_physics(v100: KernelPredictor) -> None:
    calls = convolutions(
        "conv2d_forward",
        (64, 64, 1, 56, 1),
        (64, 256, 1, 56, 1),
        (3, 64, 7, 224, 2),
        (512, 2048, 1, 7, 1),
    )
    found = v100.predict(calls)
    physics = v100.physics.kernel_us("conv2d_forward", calls)
    assert list(found["evidence"]) == ["roofline", "roofline", "roofline", "pack"]
    assert np.all(found["kernel_us"] < 2.0 * physics) and np.all(found["kernel_us"] > 0.5 * physics)


def test_gradients_of_a_sampled_window_take_about_as_long_as_its_forward_pass(
    v100: KernelPredictor,
) -> None:
    shapes = [(128, 128, 3, 28, 1), (256, 256, 3, 14, 1), (512, 512, 3, 7, 1)]
    forward = v100.predict(convolutions("conv2d_forward", *shapes))["kernel_us"]
    for family in ("conv2d_backward_data", "conv2d_backward_weight"):
        assert list(v100.predict(convolutions(family, *shapes))["kernel_us"]) == pytest.approx(
            list(forward), rel=0.05
        )
