"""Depthwise and grouped convolutions: who computes them, how long published kernels took, and bounds from physics."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from pipeline.answers.who_answers import kernel_predictor
from pipeline.families.conv_shape import ConvShape
from pipeline.families.convolutions import NATIVE_SPREAD, native
from pipeline.families.dims import Dims
from pipeline.families.tensor_cores import evenly_grouped
from pipeline.graph.sizes.library_launches import convolution_extra
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics
from tests.kernels.shipped import CONVOLUTIONS, convolution, shipped

NHWC = {"layout": "nhwc"}


def call(
    family: str = CONVOLUTIONS[0],
    dtype: str = "fp32",
    said: dict[str, object] | None = None,
    **dims: float,
) -> pd.DataFrame:
    """A depthwise convolution: 3 x 3 on 128 channels of 32 images of 28 x 28, changed."""
    attributes = json.dumps(said, separators=(",", ":")) if said else None
    return convolution(family, dtype, attributes, **{"groups": 128, **dims})


def wide(channels: int, **dims: float) -> dict[str, float]:
    return {"in_channels": channels, "out_channels": channels, "groups": channels, **dims}


POINT = {"kernel_size": 1, "padding": 0, "stride": 2, "B": 8, "input_size": 7}


@pytest.mark.parametrize(
    ("own", "dims"),
    [
        (False, {}),
        (True, {"kernel_size": 7, "padding": 3}),
        (True, {"dilation": 2, "padding": 2}),
        (True, wide(16)),
        (True, {"input_size": 6}),
        (True, {"stride": 2}),
        (False, {"stride": 2, **wide(256)}),
        (True, {"stride": 2, **wide(255)}),
        (True, {"stride": 2, **wide(256, input_size=14)}),
        (False, {"stride": 2, **wide(512, input_size=14)}),
        (True, {"stride": 3, **wide(512)}),
        (False, POINT),
        (True, {**POINT, "input_size": 8}),
        (True, {**POINT, "B": 17}),
        (False, {**POINT, "B": 1, "input_size": 28}),
        (False, {"kernel_size": 1, "kernel_size_w": 15, "input_size": 1, "input_size_w": 400}),
    ],
)
def test_pytorch_computes_the_fp16_convolutions_that_its_rule_keeps_from_cudnn(
    own: bool, dims: dict[str, float]
) -> None:
    assert native(Dims(call(dtype="fp16", **dims)), 8.0)[0] == own
    assert native(Dims(call(dtype="fp16", **dims)), 6.0)[0]


@pytest.mark.parametrize(
    ("calls", "own"),
    [
        (call(), True),
        (call(dtype="tf32"), True),
        (call(dtype="bf16"), True),
        (call(said=NHWC), False),
        (call(said={"transposed": True}), False),
        (call(in_channels=384, said={"volume": True, "single_channel": True}), True),
        (call(groups=64), False),
        (call(groups=1), False),
        (call(out_channels=192), False),
    ],
)
def test_pytorch_computes_all_other_depthwise_convolutions_in_nchw(
    calls: pd.DataFrame, own: bool
) -> None:
    assert native(Dims(calls), 9.0)[0] == own


@pytest.mark.parametrize(
    ("channels", "batch", "sides", "more", "milliseconds"),
    [
        (2048, 4, (64, 128), {"dilation": 12, "padding": 12}, 2.7723),
        (256, 4, (128, 256), {}, 2.1160),
        (256, 4, (128, 256), {"kernel_size": 5}, 3.8364),
    ],
)
def test_weight_gradients_of_a_v100_are_inside_the_interval(
    channels: int,
    batch: int,
    sides: tuple[int, int],
    more: dict[str, float],
    milliseconds: float,
) -> None:
    """Times of PyTorch in github.com/PaddlePaddle/Paddle/pull/46332, sizes in PaddlePaddle/benchmark."""
    high, broad = sides
    dims = wide(channels, B=batch, input_size=high, input_size_w=broad, **more)
    calls = call(CONVOLUTIONS[2], **dims)
    found = Physics.of(load_gpu("V100")).kernel_us(CONVOLUTIONS[2], calls)[0] / 1e3
    assert milliseconds / NATIVE_SPREAD < found < milliseconds * NATIVE_SPREAD


@pytest.mark.parametrize("gpu", ["H100", "P100"])
def test_no_kernel_beats_dram_or_takes_a_thousandfold(gpu: str) -> None:
    spec = load_gpu(gpu)
    every = (
        wide(16),
        wide(960),
        {"groups": 32},
        {"groups": 8},
        wide(128, kernel_size=7, padding=3),
    )
    calls = pd.concat(
        [
            call(family, dtype, said, **dims)
            for family in CONVOLUTIONS
            for dims in every
            for dtype in ("fp32", "tf32", "fp16", "bf16")
            for said in (None, NHWC)
        ],
        ignore_index=True,
    )
    shape = ConvShape.of(Dims(calls))
    size = np.where(calls["dtype"].isin(["fp16", "bf16"]), 2.0, 4.0)
    moved = size * (shape.inputs + shape.outputs) / (1e3 * spec.dram_gb_per_s)
    found = kernel_predictor(spec, "auto", None).predict(calls)
    assert (moved < found["kernel_us"]).all() and (found["kernel_us"] < 1e3 * moved).all()
    assert (found["evidence"] == "roofline").all()


@pytest.mark.parametrize("gpu", ["V100", "T4"])
def test_no_direct_kernel_beats_the_fp32_peak_of_the_card(gpu: str) -> None:
    """512 channels, images of 28 x 28. The datasheet's peak: the V100's measured one is that of a board with a faster clock."""
    spec = load_gpu(gpu)
    every = (
        {"groups": 2},
        {"groups": 8},
        {"groups": 1, "kernel_size": 7, "padding": 3},
        {"groups": 1, "kernel_size": 1, "padding": 0},
        {"groups": 1, "stride": 2},
    )
    calls = pd.concat(
        [call(family, **wide(512, **dims)) for family in CONVOLUTIONS for dims in every],
        ignore_index=True,
    )
    found = kernel_predictor(spec, "auto", None).predict(calls)["kernel_us"]
    least_us = ConvShape.of(Dims(calls)).flops / (1e3 * spec.fp32_gflop_per_s)
    assert (found > least_us).all()
    assert (found < 2.5 * least_us)[calls["groups"] > 1].all(), (
        "tiles of 32 x 32 are whole, and all groups are counted"
    )


def test_only_images_of_the_library_have_launches_beside_the_convolution() -> None:
    depthwise = {name: 128 for name in ("in_channels", "out_channels", "groups")}
    dims = {"B": 32, "kernel_size": 3, "input_size": 28, "stride": 1, "padding": 1, **depthwise}
    dense = {**dims, "groups": 1}
    for family in CONVOLUTIONS:
        assert convolution_extra(family, dims, "fp32", {}, 8.0) == []
    counts = [
        len(convolution_extra(CONVOLUTIONS[0], sizes, "fp32", said, 7.0))
        for sizes, said in ((dims, NHWC), (dense, {"volume": True}), (dense, {}))
    ]
    assert counts == [1, 1, 3], "tiles of images are transformed, those of volumes are not"


@pytest.mark.parametrize(
    ("groups", "inside", "outside", "even"),
    [(32, 256, 128, True), (32, 96, 128, False), (48, 192, 192, False), (1, 128, 128, False)],
)
def test_tensor_cores_take_groups_by_thirty_two_of_at_least_four_channels(
    groups: int, inside: int, outside: int, even: bool
) -> None:
    calls = call(groups=groups, in_channels=inside, out_channels=outside)
    assert evenly_grouped(Dims(calls))[0] == even


@pytest.mark.parametrize("family", CONVOLUTIONS)
@pytest.mark.parametrize("gpu", ["V100", "H100"])
def test_a_volume_is_never_faster_than_its_arithmetic_at_the_peak(family: str, gpu: str) -> None:
    """Regression: it took the time of an image of the same dims, which Winograd computes with fewer multiplications."""
    spec = load_gpu(gpu)
    image = {"B": 512, "in_channels": 192, "out_channels": 64, "groups": 1, "input_size": 56}
    volume, plane = (
        call(family, said={"volume": True} if solid else None, **image) for solid in (True, False)
    )
    found, flat = (
        kernel_predictor(spec, "auto", None).predict(calls).iloc[0] for calls in (volume, plane)
    )
    at_peak = ConvShape.of(Dims(volume)).flops[0] / (1e3 * spec.fp32_gflop_per_s)
    assert found["kernel_us"] > at_peak <= found["p10_us"] and found["evidence"] == "roofline"
    assert flat["kernel_us"] < found["kernel_us"] and flat["evidence"] != "roofline"


@pytest.mark.parametrize("gpu", ["RTX3090", "A100"])
@pytest.mark.parametrize("groups", [1, 8])
def test_tf32_never_makes_a_volume_slower(gpu: str, groups: int) -> None:
    """Regression: 15.9 against 11.2 ms on an RTX 3090. Where TF32 is allowed, the library has its fp32 kernels too."""
    image = {"B": 512, "in_channels": 192, "out_channels": 64, "input_size": 56, "groups": groups}
    for family in CONVOLUTIONS:
        both = [call(family, dtype, {"volume": True}, **image) for dtype in ("fp32", "tf32")]
        strict, free = shipped(gpu).predict(pd.concat(both))["kernel_us"]
        assert free <= strict and (gpu != "A100" or groups > 1 or free < 0.8 * strict)


REGNETX_016 = {"B": 512, "in_channels": 408, "out_channels": 408, "groups": 17, "input_size": 14}
"""The convolution that takes most of RegNetX-1.6GF's training step, of which timm published both layouts."""


def kernel_us(gpu: str, family: str = CONVOLUTIONS[0], **options: object) -> float:
    return float(Physics.of(load_gpu(gpu)).kernel_us(family, call(family, "fp16", **options))[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "gpu, slow", [("RTX3090", True), ("A100", True), ("RTX4090", False), ("H100", False)]
)
def test_groups_in_nhwc_are_slow_where_the_library_had_only_direct_kernels(
    gpu: str, slow: bool
) -> None:
    nchw, nhwc = (
        sum(kernel_us(gpu, family, said=said, **REGNETX_016) for family in CONVOLUTIONS)
        for said in (None, NHWC)
    )
    assert (nhwc > 2.0 * nchw) == slow


def test_depthwise_windows_above_seven_run_in_general_kernels_in_nhwc() -> None:
    """ConvMixer-1536/20 in NHWC takes 2.4 times its step in NCHW."""
    seven, nine = (
        kernel_us("RTX3090", said=NHWC, kernel_size=k, padding=k // 2, **wide(1536)) for k in (7, 9)
    )
    assert nine > 10.0 * seven
