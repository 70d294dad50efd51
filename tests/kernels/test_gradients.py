"""Gradients of fp32 convolutions: what they take beyond a forward pass of the same arithmetic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.answers.kernel_models import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.conv_gradients import STRIDED_GRADIENT
from pipeline.kernels.physics import Physics
from pipeline.kernels.work import ConvShape, Dims

DATA, WEIGHT = "conv2d_backward_data", "conv2d_backward_weight"


def convolution(family: str, window: int, side: int, channels: tuple[int, int], stride: int = 1) -> pd.DataFrame:
    """32 images in fp32."""
    phase = "forward" if family == "conv2d_forward" else "backward"
    return pd.DataFrame(
        [{"family": family, "op": "conv", "phase": phase, "dtype": "fp32", "B": 32, "in_channels": channels[0],
          "out_channels": channels[1], "kernel_size": window, "padding": window // 2, "input_size": side,
          "stride": stride}]
    )  # fmt: skip


def physics_us(calls: pd.DataFrame, gpu: str = "V100") -> float:
    return float(Physics.of(load_gpu(gpu)).kernel_us(str(calls["family"].iloc[0]), calls)[0])


@pytest.mark.parametrize("window", [1, 3])
def test_a_data_gradient_at_a_stride_takes_half_as_long_again(window: int) -> None:
    calls = convolution(DATA, window, 56, (256, 512), stride=2)
    physics = Physics.of(load_gpu("V100"))
    least = STRIDED_GRADIENT * ConvShape.of(Dims(calls)).flops[0] / (1e3 * physics.gpu.peak_gflop_per_s())
    found = kernel_predictor(physics.gpu, "auto", None).predict(calls)["kernel_us"].iloc[0]
    assert found == pytest.approx(least, rel=0.05)
    plain = convolution(DATA, window, 56, (256, 512), stride=1)
    assert physics_us(plain) < 1.2 * ConvShape.of(Dims(plain)).flops[0] / (1e3 * physics.gpu.peak_gflop_per_s())


def test_the_weight_gradient_of_a_product_does_not_hide_its_traffic() -> None:
    calls = convolution(WEIGHT, 1, 56, (64, 256))
    shape, gpu = ConvShape.of(Dims(calls)), load_gpu("V100")
    moved = 4.0 * float((shape.inputs + shape.outputs)[0]) / (1e3 * gpu.peak_dram_gb_per_s())
    assert physics_us(calls) == pytest.approx(
        physics_us(convolution("conv2d_forward", 1, 56, (64, 256))) + moved, rel=0.05
    )


def test_few_channels_on_large_images_have_no_fused_winograd_in_their_weight_gradient() -> None:
    v100 = kernel_predictor(load_gpu("V100-SXM2-32GB"), "auto", None)

    def ratio(channels: int, side: int) -> float:
        weight, forward = (
            v100.predict(convolution(f, 3, side, (channels, channels)))["kernel_us"].iloc[0]
            for f in (WEIGHT, "conv2d_forward")
        )
        return float(weight / forward)

    assert ratio(64, 56) > 1.15
    assert ratio(512, 7) == pytest.approx(1.0, rel=0.05)


def test_forward_convolutions_and_other_gradients_are_left_alone() -> None:
    physics = Physics.of(load_gpu("V100"))
    for family, window in (("conv2d_forward", 1), ("conv2d_forward", 3), (DATA, 1), (DATA, 3), (WEIGHT, 5)):
        calls = convolution(family, window, 28, (128, 128))
        kernel = physics.kernel_us(family, calls)
        assert list(physics.gradient_us(family, calls, kernel)) == list(kernel)


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from([DATA, WEIGHT]), window=st.sampled_from([1, 3, 7]), side=st.integers(7, 112),
    channels=st.tuples(st.integers(1, 1024), st.integers(1, 1024)), stride=st.integers(1, 2),
    more=st.floats(1.0, 4.0), figure=st.sampled_from(["measured_dram_gb_per_s", "measured_fp32_gflop_per_s"]),
)  # fmt: skip
def test_more_bandwidth_or_throughput_never_slows(
    family: str, window: int, side: int, channels: tuple[int, int], stride: int, more: float, figure: str
) -> None:
    gpu, calls = load_gpu("V100"), convolution(family, window, side, channels, stride)
    faster = replace(gpu, **{figure: more * getattr(gpu, figure)})
    slow, fast = (float(Physics.of(each).kernel_us(family, calls)[0]) for each in (gpu, faster))
    assert fast <= slow * (1.0 + 1e-9)


@pytest.mark.parametrize(("trace", "gpu"), [("v100_ddp", "V100-SXM2-32GB"), ("rtx2080ti_resnet", "RTX2080Ti")])
def test_backward_convolutions_of_resnets_are_near_those_of_public_traces(datasets: Path, trace: str, gpu: str) -> None:
    """The V100's strided ones set a constant; the other card was not looked at for it."""
    import sys

    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "kernels"))
    from image_kernels import compare

    found = compare(trace, gpu, datasets).set_index("operator")
    assert abs(found.loc["convolution backward", "error_percent"]) < 5.0
