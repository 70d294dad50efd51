"""Convolutions on tensor cores: which rows they are, what their time is made of, and that more of anything never slows."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.families.conv_shape import ConvShape
from pipeline.families.dims import Dims
from pipeline.families.tensor_cores import LAYOUT_CONVERSION_SHARE, on_tensor_cores
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import LOW_POWER_W
from pipeline.kernels.physics import Physics
from tests.kernels.better_gpus import improved
from tests.kernels.shipped import CONVOLUTIONS, convolution, shipped

NHWC = '{"layout":"nhwc"}'


def large(
    family: str = CONVOLUTIONS[0], dtype: str = "fp16", layout: str | None = None, **dims: float
) -> pd.DataFrame:
    """One convolution: 3 x 3 on 256 channels of 128 images of 28 x 28, changed."""
    sizes = {"B": 128, "in_channels": 256, "out_channels": 256, **dims}
    return convolution(family, dtype, layout, **sizes)


def kernel_us(calls: pd.DataFrame, gpu: GpuSpec | str = "A100") -> float:
    spec = load_gpu(gpu) if isinstance(gpu, str) else gpu
    return float(Physics.of(spec).kernel_us(str(calls["family"].iloc[0]), calls)[0])


@pytest.mark.parametrize(
    ("gpu", "dtypes"), [("P100", []), ("T4", ["fp16"]), ("A100", ["tf32", "fp16", "bf16"])]
)
def test_tensor_cores_take_what_their_generation_takes(gpu: str, dtypes: list[str]) -> None:
    calls = pd.DataFrame({"dtype": ["fp32", "tf32", "fp16", "bf16", None]})
    assert list(calls["dtype"][on_tensor_cores(Dims(calls), load_gpu(gpu))]) == dtypes


@pytest.mark.parametrize(
    ("gpu", "low", "high"),
    [("V100", 0.6, 0.9), ("A100", 0.5, 0.8), ("H100", 0.3, 0.65), ("RTX3090", 0.75, 0.95)],
)
def test_a_large_convolution_sustains_a_plausible_share_of_the_peak(
    gpu: str, low: float, high: float
) -> None:
    calls = large(layout=NHWC, B=512)
    least_us = ConvShape.of(Dims(calls)).flops[0] / (1e3 * load_gpu(gpu).fp16_gflop_per_s)
    assert low < least_us / kernel_us(calls, gpu) < high


@pytest.mark.parametrize("family", CONVOLUTIONS)
def test_images_in_nchw_are_turned_around_every_half_precision_kernel(family: str) -> None:
    """Both images are read and written once more."""
    shape, gpu = ConvShape.of(Dims(large(family))), load_gpu("A100")
    images = 2.0 * float((shape.inputs + shape.outputs)[0])
    turning = kernel_us(large(family)) - kernel_us(large(family, layout=NHWC))
    bytes_per_us = LAYOUT_CONVERSION_SHARE * 1e3 * gpu.peak_dram_gb_per_s()
    assert turning == pytest.approx(2.0 * images / bytes_per_us)


@pytest.mark.parametrize(
    "gpu, turned", [("RTX3090", True), ("A100", True), ("H100", True), ("RTX4090", False)]
)
def test_ada_gathers_half_precision_images_in_nchw_where_others_turn_them(
    gpu: str, turned: bool
) -> None:
    """A 1 x 1 window on 64 channels of 56 x 56 pixels: both conversions together move twice the bytes of the product."""
    stage = {
        "in_channels": 64,
        "out_channels": 64,
        "input_size": 56,
        "kernel_size": 1,
        "padding": 0,
    }
    stored, innermost = (kernel_us(large(layout=layout, **stage), gpu) for layout in (None, NHWC))
    assert (stored > 2.0 * innermost) == turned and stored >= innermost


def test_three_channels_take_as_long_as_the_eight_that_they_are_padded_to() -> None:
    """Images of 3 channels are copied to be padded, but the arithmetic (here nearly all that counts) is that of 8."""
    window = {"kernel_size": 7, "stride": 2, "padding": 3, "input_size": 224, "out_channels": 512}
    three, eight, nine = (
        kernel_us(large(layout=NHWC, in_channels=channels, **window)) for channels in (3, 8, 9)
    )
    assert three == pytest.approx(eight, rel=0.04) and nine > 1.5 * eight


def test_one_channel_a_group_does_not_fill_tensor_cores() -> None:
    calls, spec = large(groups=256, layout=NHWC), load_gpu("A100")
    shape = ConvShape.of(Dims(calls))
    moved = 2.0 * (shape.inputs + shape.outputs)[0] / (1e3 * spec.peak_dram_gb_per_s())
    arithmetic = shape.flops[0] / (1e3 * spec.peak_gflop_per_s())
    # cuDNN's depthwise kernels issue up to four times as many instructions; tiles of 64 channels would take 20 times
    assert kernel_us(calls) < 4.0 * (moved + arithmetic)


def test_a_small_card_throttles_in_long_convolutions() -> None:
    free = replace(load_gpu("T4"), tdp_w=300.0)
    long, short = large(layout=NHWC, B=256), large(layout=NHWC, B=1)
    assert kernel_us(long, "T4") > 1.4 * kernel_us(long, free)
    assert kernel_us(short, "T4") < 1.1 * kernel_us(short, free)


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("A100", "tf32"), ("B200", "bf16"), ("RTX3090", "fp16")]
)
def test_fp32_models_answer_no_convolution_of_tensor_cores(gpu: str, dtype: str) -> None:
    """Regression: some rows did not; the forward pass took 31 ms, the gradients 60 and 87 ms, for the same arithmetic."""
    calls = pd.concat([large(family, dtype) for family in CONVOLUTIONS], ignore_index=True)
    found, fp32 = (shipped(gpu).predict(calls.assign(dtype=each)) for each in (dtype, "fp32"))
    assert list(found["evidence"]) == ["roofline"] * 3 and "roofline" not in list(fp32["evidence"])
    assert found["kernel_us"].max() < 1.25 * found["kernel_us"].min()
    assert (found["kernel_us"] < fp32["kernel_us"]).all()


@pytest.mark.parametrize("family", CONVOLUTIONS)
def test_winograd_in_fp32_is_taken_where_a_card_has_little_tf32(family: str) -> None:
    predictor, calls = shipped("RTX3090"), large(family, "tf32")
    fp32, tf32 = (
        predictor.predict(calls.assign(dtype=dtype))["kernel_us"].item()
        for dtype in ("fp32", "tf32")
    )
    assert tf32 == pytest.approx(fp32) and fp32 < predictor.physics.kernel_us(family, calls)[0]


@pytest.mark.parametrize("family", CONVOLUTIONS)
def test_rows_of_both_kinds_keep_their_own_answers(family: str) -> None:
    both = [large(family), large(family, "fp32")]
    mixed = shipped("A100").predict(pd.concat(both, ignore_index=True))["kernel_us"]
    alone = [shipped("A100").predict(calls)["kernel_us"].item() for calls in both]
    assert list(mixed) == pytest.approx(alone)


SIZES = st.fixed_dictionaries(
    {
        "B": st.integers(1, 512),
        "in_channels": st.integers(1, 2048),
        "out_channels": st.integers(1, 2048),
        "input_size": st.integers(7, 112),
        "stride": st.integers(1, 2),
    }
)


@settings(max_examples=30)
@given(
    family=st.sampled_from(CONVOLUTIONS),
    kind=st.tuples(st.sampled_from(["fp16", "tf32"]), st.sampled_from([None, NHWC])),
    gpu=st.sampled_from(["A100", "H100", "RTX3090", "A10", "L4"]),
    figure=st.sampled_from(["dram", "clock", "tensor", "fp32", "l2", "power"]),
    factor=st.floats(1.0, 4.0),
    window=st.sampled_from([1, 3, 7]),
    sizes=SIZES,
)
def test_more_of_any_figure_never_slows(
    family: str,
    kind: tuple[str, str | None],
    gpu: str,
    figure: str,
    factor: float,
    window: int,
    sizes: dict[str, float],
) -> None:
    spec = load_gpu(gpu)
    calls = large(family, *kind, kernel_size=window, padding=window // 2, **sizes)
    better = improved(spec, figure, factor)
    # cards of little power are a class of their own: their kernels do not start as those of others
    assume((spec.tdp_w > LOW_POWER_W) == (better.tdp_w > LOW_POWER_W))
    assert kernel_us(calls, better) <= kernel_us(calls, spec) * (1.0 + 1e-9)
