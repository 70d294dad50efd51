"""Gradients of fp32 convolutions: what they take beyond a forward pass of the same arithmetic."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics
from tests.kernels.shipped import convolution, shipped

DATA, WEIGHT = "conv2d_backward_data", "conv2d_backward_weight"


def windows(
    family: str, window: int, side: int, channels: tuple[int, int], stride: int = 1
) -> pd.DataFrame:
    """32 images in fp32."""
    inside, outside = channels
    return convolution(
        family,
        kernel_size=window,
        padding=window // 2,
        input_size=side,
        stride=stride,
        in_channels=inside,
        out_channels=outside,
    )


def physics_us(calls: pd.DataFrame, gpu: str = "V100") -> float:
    return float(Physics.of(load_gpu(gpu)).kernel_us(str(calls["family"].iloc[0]), calls)[0])


@pytest.mark.parametrize("window", [1, 3])
def test_a_strided_data_gradient_runs_at_two_thirds_of_the_throughput(window: int) -> None:
    """The V100's trace shows 8.2 to 9.2 TFLOP/s in five of six such kernels, and about 14 at a stride of 1."""
    v100 = load_gpu("V100-SXM2-32GB")

    def tflop_per_s(stride: int) -> float:
        calls = windows(DATA, window, 56, (256, 512), stride)
        operations = 2 * 32 * (56 // stride) ** 2 * 256 * 512 * window**2
        return (
            operations
            / 1e6
            / float(kernel_predictor(v100, "auto", None).predict(calls)["kernel_us"].iloc[0])
        )

    assert 8.0 < tflop_per_s(2) < 9.5
    assert tflop_per_s(1) > 12.0


def test_the_weight_gradient_of_a_product_does_not_hide_its_traffic() -> None:
    """128.5 MB of images at 256 GB/s are 501.8 us: 4 bytes x 32 images x 56 x 56 pixels x (64 + 256) channels."""
    weight, forward = (
        physics_us(windows(family, 1, 56, (64, 256)), "T4") for family in (WEIGHT, "conv2d_forward")
    )
    assert weight - forward == pytest.approx(501.8, abs=3.0)


def test_few_channels_on_large_images_have_no_fused_winograd_in_their_weight_gradient() -> None:
    v100 = shipped("V100-SXM2-32GB")

    def ratio(channels: int, side: int) -> float:
        weight, forward = (
            v100.predict(windows(f, 3, side, (channels, channels)))["kernel_us"].iloc[0]
            for f in (WEIGHT, "conv2d_forward")
        )
        return float(weight / forward)

    assert ratio(64, 56) > 1.15
    assert ratio(512, 7) == pytest.approx(1.0, rel=0.05)
