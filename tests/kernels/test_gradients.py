"""Gradients of fp32 convolutions: what they take beyond a forward pass of the same arithmetic."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from evaluation.checks.image_kernel_times import compare
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


def test_a_weight_gradient_computes_at_the_datasheets_rate_before_its_traffic_is_added() -> None:
    """3.29 GFLOP at the V100's 14 TFLOP/s, not at the 15.4 of another board: 234.9 us, and 157.2 us for 128.5 MB."""
    assert physics_us(windows(WEIGHT, 1, 56, (64, 256))) == pytest.approx(
        7.0 + 234.9 + 157.2, abs=3.0
    )


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


@pytest.mark.parametrize(
    ("trace", "gpu"), [("v100_ddp", "V100-SXM2-32GB"), ("rtx2080ti_resnet", "RTX2080Ti")]
)
def test_backward_convolutions_of_resnets_are_near_those_of_public_traces(
    datasets: Path, trace: str, gpu: str
) -> None:
    """The V100's strided gradients set one constant; the RTX 2080 Ti is a held-out GPU."""
    found = compare(trace, gpu, datasets).set_index("operator")
    assert abs(found.loc["convolution backward", "error_percent"]) < 5.0
