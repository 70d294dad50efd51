"""Convolutions without samples: what their times are derived from, and their error against a public training trace."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.families.conv_shape import ConvShape, implicit_product
from pipeline.families.dims import Dims
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


@pytest.mark.parametrize("gpu", ["H100", "V100"])
def test_half_precision_takes_no_latency_below_the_floor(gpu: str) -> None:
    rows = [1, 64, 1024, 4096, 16384, 65536, 131072, 1 << 20]
    calls = pd.DataFrame({"B": rows}).assign(
        H=33, family="softmax", op="softmax", phase="forward", dtype="fp16"
    )
    predictor = shipped(gpu)
    found = predictor.predict(calls)
    assert (found["predicted_us"] >= predictor.floor.of(Dims(calls).text("op")) - 1e-9).all()
    assert (found["latency_p10_us"] <= found["predicted_us"]).all()
    assert (found["predicted_us"] <= found["latency_p90_us"]).all()


def test_gradients_of_a_sampled_window_take_about_as_long_as_its_forward_pass(
    v100: KernelPredictor,
) -> None:
    shapes = [(128, 128, 3, 28, 1), (256, 256, 3, 14, 1), (512, 512, 3, 7, 1)]
    forward = v100.predict(convolutions("conv2d_forward", *shapes))["kernel_us"]
    for family in ("conv2d_backward_data", "conv2d_backward_weight"):
        assert list(v100.predict(convolutions(family, *shapes))["kernel_us"]) == pytest.approx(
            list(forward), rel=0.05
        )


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("window", [1, 3])
def test_every_pass_of_a_convolution_does_the_same_arithmetic(window: int, stride: int) -> None:
    d = Dims(convolutions("conv2d_forward", (256, 512, window, 28, stride)))
    for family in ("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"):
        rows, depth, columns, groups = implicit_product(family, d)
        assert 2 * rows * depth * columns * groups == pytest.approx(ConvShape.of(d).flops, rel=0.01)
