"""Convolutions on tensor cores: which rows they are, what their time is made of, and that more of anything never slows."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.families.conv_shape import ConvShape
from pipeline.families.dims import Dims
from pipeline.families.tensor_cores import LAYOUT_CONVERSION_SHARE, NCHW_LOADS, on_tensor_cores
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
    ("gpu", "dtypes"),
    [
        ("P100", set()),
        ("V100", {"fp16"}),
        ("T4", {"fp16"}),
        ("A100", {"fp16", "bf16", "tf32"}),
        ("MI250", set()),
        ("H100", {"fp16", "bf16", "tf32"}),
    ],
)
def test_tensor_cores_take_what_their_generation_takes(gpu: str, dtypes: set[str]) -> None:
    spec = load_gpu(gpu)
    calls = pd.DataFrame({"dtype": ["fp32", "tf32", "fp16", "bf16", None]})
    if gpu == "MI250":  # matrix cores of AMD run through MIOpen, of which nothing is known here
        spec = replace(spec, compute_capability=0.0)
    assert set(calls["dtype"][on_tensor_cores(Dims(calls), spec)]) == dtypes


def test_a_large_convolution_sustains_a_plausible_share_of_the_peak() -> None:
    for gpu, low, high in (
        ("V100", 0.6, 0.9),
        ("A100", 0.5, 0.8),
        ("H100", 0.3, 0.65),
        ("RTX3090", 0.75, 0.95),
    ):
        spec, calls = load_gpu(gpu), large(layout=NHWC, B=512)
        flops = float(ConvShape.of(Dims(calls)).flops[0])
        share = flops / kernel_us(calls, spec) / (1e3 * spec.fp16_gflop_per_s)
        assert low < share < high, gpu


@pytest.mark.parametrize("family", CONVOLUTIONS)
def test_images_in_nchw_are_turned_around_every_half_precision_kernel(family: str) -> None:
    spec = load_gpu("A100")
    shape = ConvShape.of(Dims(large(family)))
    images = 2.0 * float((shape.inputs + shape.outputs)[0])
    turning = kernel_us(large(family)) - kernel_us(large(family, layout=NHWC))
    assert turning == pytest.approx(
        2.0 * images / LAYOUT_CONVERSION_SHARE / (1e3 * spec.peak_dram_gb_per_s())
    )


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


def test_tf32_turns_images_only_where_that_costs_less_than_gathering_them() -> None:
    many, few = (
        {"in_channels": 512, "out_channels": 512},
        {"in_channels": 64, "out_channels": 64, "kernel_size": 1, "padding": 0},
    )
    for dims in (many, few):
        stored, innermost = (
            kernel_us(large(dtype="tf32", layout=layout, **dims)) for layout in (None, NHWC)
        )
        shape = ConvShape.of(Dims(large(**dims)))
        turning = (
            2.0
            * 4.0
            * float((shape.inputs + shape.outputs)[0])
            / LAYOUT_CONVERSION_SHARE
            / (1e3 * 1391)
        )
        own = stored < innermost + 0.999 * turning
        assert own == (dims is few)
        assert innermost <= stored <= innermost + 1.001 * turning
    assert NCHW_LOADS > 1.0


def test_three_channels_take_as_long_as_the_eight_that_they_are_padded_to() -> None:
    """Images of 3 channels are copied to be padded, but the arithmetic (here nearly all that counts) is that of 8."""
    wide = {
        "kernel_size": 7,
        "stride": 2,
        "padding": 3,
        "input_size": 224,
        "out_channels": 512,
        "layout": NHWC,
    }
    three, eight, nine = (kernel_us(large(in_channels=c, **wide)) for c in (3, 8, 9))  # type: ignore[arg-type]
    assert three == pytest.approx(eight, rel=0.04) and nine > 1.5 * eight


def test_images_in_nhwc_whose_channels_are_no_multiple_of_eight_are_copied_to_be_padded() -> None:
    """Both images of 60 channels are read once more, and written with 64."""
    spec = load_gpu("A100")
    odd, even = (large(in_channels=c, out_channels=c, layout=NHWC, input_size=56) for c in (60, 64))
    pixels = 2.0 * 128 * 56 * 56
    copied = pixels * 2.0 * (60 + 64) / LAYOUT_CONVERSION_SHARE / (1e3 * spec.peak_dram_gb_per_s())
    traffic = (
        pixels * 2.0 * 4 / (1e3 * spec.peak_dram_gb_per_s())
    )  # what 64 channels move more than 60
    assert kernel_us(even) + copied - traffic <= kernel_us(odd) <= kernel_us(even) + copied


def test_one_channel_a_group_does_not_fill_tensor_cores() -> None:
    calls = large(in_channels=256, out_channels=256, groups=256, layout=NHWC)
    shape = ConvShape.of(Dims(calls))
    spec = load_gpu("A100")
    moved = 2.0 * float((shape.inputs + shape.outputs)[0]) / (1e3 * spec.peak_dram_gb_per_s())
    arithmetic = float(shape.flops[0]) / (1e3 * spec.peak_gflop_per_s())
    # cuDNN's depthwise kernels issue up to four times as many instructions; tiles of 64 channels would take 20 times
    assert kernel_us(calls) < 4.0 * (moved + arithmetic)


def test_a_small_card_throttles_in_long_convolutions() -> None:
    free = replace(load_gpu("T4"), tdp_w=300.0)
    long, short = large(layout=NHWC, B=256), large(layout=NHWC, B=1)
    assert kernel_us(long, "T4") > 1.4 * kernel_us(long, free)
    assert kernel_us(short, "T4") < 1.1 * kernel_us(short, free)


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [("A100", "fp16"), ("A100", "tf32"), ("B200", "bf16"), ("B200", "tf32"), ("RTX3090", "fp16")],
)
def test_fp32_models_answer_no_convolution_of_tensor_cores(gpu: str, dtype: str) -> None:
    """Regression: some rows did not; the forward pass took 31 ms, the gradients 60 and 87 ms, for the same arithmetic."""
    calls = pd.concat([large(family, dtype) for family in CONVOLUTIONS], ignore_index=True)
    predictor = shipped(gpu)
    found = predictor.predict(calls)
    assert list(found["evidence"]) == ["roofline"] * 3
    assert found["kernel_us"].max() < 1.25 * found["kernel_us"].min()
    fp32 = predictor.predict(calls.assign(dtype="fp32"))
    assert (fp32["evidence"] != "roofline").all()
    assert (found["kernel_us"] < fp32["kernel_us"]).all()


def test_winograd_in_fp32_is_taken_where_a_card_has_little_tf32() -> None:
    predictor = shipped("RTX3090")
    for family in CONVOLUTIONS:
        calls = large(family, "tf32")
        fp32, tf32 = (predictor.predict(calls.assign(dtype=d)).iloc[0] for d in ("fp32", "tf32"))
        assert tf32["kernel_us"] == pytest.approx(fp32["kernel_us"])
        assert fp32["kernel_us"] < predictor.physics.kernel_us(family, calls)[0]


def test_rows_of_both_kinds_keep_their_own_answers() -> None:
    predictor = shipped("A100")
    for family in CONVOLUTIONS:
        half, full = large(family), large(family, "fp32")
        mixed = predictor.predict(pd.concat([half, full], ignore_index=True))["kernel_us"]
        alone = [predictor.predict(calls)["kernel_us"].iloc[0] for calls in (half, full)]
        assert list(mixed) == pytest.approx(alone)


@settings(max_examples=30)
@given(
    family=st.sampled_from(CONVOLUTIONS),
    dtype=st.sampled_from(["fp16", "tf32"]),
    layout=st.sampled_from([None, NHWC]),
    gpu=st.sampled_from(["A100", "H100", "RTX3090", "A10", "L4"]),
    figure=st.sampled_from(["dram", "clock", "tensor", "fp32", "l2", "power"]),
    factor=st.floats(1.0, 4.0),
    batch=st.integers(1, 512),
    channels=st.tuples(st.integers(1, 2048), st.integers(1, 2048)),
    window=st.sampled_from([(1, 0), (3, 1), (7, 3)]),
    side=st.integers(7, 112),
    stride=st.integers(1, 2),
)
def test_more_of_any_figure_never_slows(
    family: str,
    dtype: str,
    layout: str | None,
    gpu: str,
    figure: str,
    factor: float,
    batch: int,
    channels: tuple[int, int],
    window: tuple[int, int],
    side: int,
    stride: int,
) -> None:
    spec = load_gpu(gpu)
    calls = large(
        family,
        dtype,
        layout,
        B=batch,
        in_channels=channels[0],
        out_channels=channels[1],
        kernel_size=window[0],
        padding=window[1],
        input_size=side,
        stride=stride,
    )
    better = improved(spec, figure, factor)
    # cards of little power are a class of their own: their kernels do not start as those of others
    assume((spec.tdp_w > LOW_POWER_W) == (better.tdp_w > LOW_POWER_W))
    slow, fast = (kernel_us(calls, each) for each in (spec, better))
    assert fast <= slow * (1.0 + 1e-9)
