"""Steps of drawn traces on other GPUs: what counts as the step, and what each call is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import load_trace
from pipeline.answers.traced_step import TrackedTrace
from tests.trace.trace_drawing import PROPERTIES, annotation, kernel, launch, memcpy, op, write

STEP = annotation("ProfilerStep#0", 0, 20)
GRID = {"grid": [1024, 1, 1], "block": [256, 1, 1]}


def traced(
    folder: Path, events: list[dict[str, Any]], gpu: str = "Tesla V100-SXM2-16GB"
) -> TrackedTrace:
    """The events as the trace of a GPU."""
    return load_trace(write(folder, events, deviceProperties=[{**PROPERTIES[0], "name": gpu}]))


def test_a_step_does_not_wait_for_the_step_before_it(tmp_path: Path) -> None:
    # the host runs ahead: it enqueues a step every 10 us, the device takes 1 ms for each
    #   host   [0][1][2][3]
    #   s7       [0........][1........][2........][3........]
    events: list[dict[str, Any]] = []
    for i, at in enumerate(range(0, 40, 10)):
        events += [
            annotation(f"ProfilerStep#{i}", at, at + 9),
            op("aten::relu", at + 1, at + 8),
            launch(at + 2, at + 4, i + 1),
            kernel("relu", 6 + 1000 * i, 1006 + 1000 * i, i + 1, **GRID),
        ]
    trace = traced(tmp_path, events)
    here, there = trace.to("V100-SXM2-16GB"), trace.to("T4")
    assert here.predicted_us == pytest.approx(1000.0) and here.bound == "device"
    assert there.predicted_us == pytest.approx(trace.calls("T4")["predicted_us"].iloc[0], rel=0.02)


def work(
    name: str,
    sizes: list[list[int]],
    kind: str,
    kernel_name: str,
    took: float,
    said: list[str] | None = None,
) -> list[dict[str, Any]]:
    """A step of one operator and its kernel."""
    values = {"Concrete Inputs": said} if said else {}
    shapes = {"Input Dims": [*sizes, [], []], "Input type": [kind] * len(sizes) + ["Scalar"] * 2}
    return [
        STEP,
        op(name, 1, 13, **shapes, **values),
        launch(5, 7, 1),
        kernel(kernel_name, 10, 10 + took, 1, **GRID),
    ]


def product(kernel_name: str, took: float, kind: str) -> list[dict[str, Any]]:
    """A product of 4096 x 4096 matrices; 2 x 4096^3 FLOP."""
    return work("aten::addmm", [[4096], [4096, 4096], [4096, 4096]], kind, kernel_name, took)


def convolution(kernel_name: str, took: float, kind: str) -> list[dict[str, Any]]:
    """3 x 3 on 256 channels of 64 images of 56 x 56; 236.8 GFLOP."""
    sizes = [[64, 256, 56, 56], [256, 256, 3, 3]]
    return work("aten::cudnn_convolution", sizes, kind, kernel_name, took)


MM_TF32, MM_FP16, MM_BF16, CONV_FP16, CONV_TF32 = (
    "cutlass_80_tensorop_s1688gemm_128x128",
    "ampere_fp16_s16816gemm_fp16_128x128",
    "ampere_bf16_s16816gemm_bf16_128x128",
    "sm80_xmma_fprop_implicit_gemm_f16f16_nhwc_tensor16x8x16",
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc",
)


@pytest.mark.parametrize(
    ("made", "took", "kind", "name", "dtype", "gpu", "least", "most"),
    [
        # 137.4 GFLOP; 1.2 ms on an A100 are 115 TFLOP/s, which TF32 reaches there; fp32 on a V100: 15.7 TFLOP/s
        (product, 1200.0, "float", MM_TF32, "tf32", "V100", 7.3, 11.7),
        (product, 1200.0, "c10::Half", MM_FP16, "fp16", "P100", 12, 21),  # no tensor cores
        (product, 1200.0, "c10::Half", MM_FP16, "fp16", "V100", 1.8, 4),  # 312 against 125
        (product, 1200.0, "c10::BFloat16", MM_BF16, "bf16", "H100", 0.25, 0.5),
        # 1.5 ms on an A100 are 158 TFLOP/s, which halves reach there, and TF32 takes 2.5 ms
        (convolution, 1500.0, "c10::Half", CONV_FP16, "fp16", "V100", 1.8, 4),  # 312 against 125
        (convolution, 1500.0, "c10::Half", CONV_FP16, "fp16", "P100", 7, 25),  # in fp32, Winograd
        (convolution, 2500.0, "float", CONV_TF32, "tf32", "V100", 2.5, 14),
    ],
)
def test_work_of_tensor_cores_is_moved_as_such(
    tmp_path: Path,
    made: Callable[[str, float, str], list[dict[str, Any]]],
    took: float,
    kind: str,
    name: str,
    dtype: str,
    gpu: str,
    least: float,
    most: float,
) -> None:
    calls = traced(tmp_path, made(name, took, kind), "NVIDIA A100-PCIE-40GB").calls(gpu)
    assert calls["dtype"][0] == dtype and calls["method"][0] == "tensor"
    assert least < calls["predicted_us"][0] / took < most


def test_products_of_amd_move_there_and_back(tmp_path: Path) -> None:
    events = product("Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1", 160, "c10::BFloat16")
    call = traced(tmp_path, events, "AMD Instinct MI300X").calls("H100").iloc[0]
    assert call["family"] == "gemm" and call["method"] == "tensor"
    back = product("gemm", call["predicted_us"], "c10::BFloat16")
    moved = traced(tmp_path, back, "NVIDIA H100 80GB HBM3").calls("MI300X")
    assert moved["predicted_us"][0] == pytest.approx(160, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<sm90_bf16>>",
        "flash::flash_fwd_splitkv_kernel",
        "ampere_s16816gemm_128x128",
        "nvjet_hsh_128x256",
    ],
)
def test_kernels_of_tensor_cores_follow_their_peak_where_no_operator_is_known(
    tmp_path: Path, name: str
) -> None:
    tracked = traced(tmp_path, work("my::product", [], "float", name, 900), "NVIDIA H800")
    moved = {gpu: tracked.calls(gpu)["predicted_us"][0] for gpu in ("H200", "B200")}
    assert moved["H200"] == pytest.approx(900)  # one chip, one peak
    assert moved["B200"] == pytest.approx(900 * 989.4 / 2250)


@pytest.mark.parametrize(
    ("step", "least", "most"),
    [
        (product("volta_sgemm_128x64_nn", 9000, "float"), 1.2, 1.7),
        (convolution("volta_scudnn_128x64_relu", 9000, "float"), 1.2, 1.7),
        (convolution("cudnn::cnn::im2col4d_kernel", 900, "float"), 0.8, 0.9),
    ],
)
def test_only_what_multiplies_moves_by_arithmetic(
    tmp_path: Path, step: list[dict[str, Any]], least: float, most: float
) -> None:
    """An H20 has less arithmetic and more bandwidth than an H100."""
    trace = traced(tmp_path, step)
    slow, fast = (trace.calls(gpu)["predicted_us"][0] for gpu in ("H20", "H100"))
    assert least < slow / fast < most


CUDNN = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]  # padding first
NEUTRAL = ["", "", "", "[2, 1]", "[0, 1]", "[3, 3]"]


SQUARE = [8, 64, 56, 56], [128, 64, 3, 3]
OBLONG = [8, 64, 17, 34], [96, 16, 1, 7]


@pytest.mark.parametrize(
    "name, sizes, values, window",
    [
        ("aten::cudnn_convolution", SQUARE, CUDNN, (2, 2, 1, 1, 1, 1)),
        ("aten::conv2d", SQUARE, NEUTRAL, (2, 1, 0, 1, 3, 1)),
        ("aten::convolution", SQUARE, ["", "", "", "[2]", "[0]", "[1]"], (2, 2, 0, 0, 1, 1)),
        ("aten::cudnn_convolution", SQUARE, ["", "", "?", "[2, 2]", "[1, 1]"], (1, 1, 1, 1, 1, 1)),
        ("aten::cudnn_convolution", OBLONG, None, (1, 1, 0, 3, 1, 4)),
    ],
)
def test_a_window_moves_as_the_trace_says_and_as_usual_before_pytorch_2_1(
    tmp_path: Path,
    name: str,
    sizes: list[list[int]],
    values: list[str] | None,
    window: tuple[int, ...],
) -> None:
    """Stride and padding by side, dilation and groups. Taken for one of stride 1, a convolution had four times its arithmetic."""
    events = work(name, [*sizes], "float", "implicit_convolve_sgemm", 200, values)
    call = traced(tmp_path, events).calls("T4").iloc[0]
    (_, _, high, wide), (_, _, *kernel_sides) = sizes
    sides = [call[each] for each in ("input_size", "input_size_w", "kernel_size", "kernel_size_w")]
    assert call["family"] == "conv2d_forward" and sides == [high, wide, *kernel_sides]
    columns = ["stride", "stride_w", "padding", "padding_w", "dilation", "groups"]
    assert tuple(call[columns]) == window


def test_what_a_call_is_follows_from_its_category_not_from_words_in_its_name(
    tmp_path: Path,
) -> None:
    names = ("Memcpy HtoD (Pinned -> Device)", "CopyHostToDevice", "CopyDeviceToDevice")
    events = [annotation("ProfilerStep#0", 0, 60), op("aten::sum", 31, 40), launch(33, 35, 4)]
    events.append(kernel("sum_HostPolicy_Memset_kernel", 36, 39, 4))
    for i, name in enumerate(names):
        at = 10 * i + 1
        events += [op("aten::copy_", at, at + 9), launch(at + 2, at + 4, i + 1)]
        events.append(memcpy(name, at + 5, at + 8, i + 1, 4096))
    assert list(traced(tmp_path, events).calls("T4")["kind"]) == ["link", "link", "copy", "kernel"]


def inputs(*shapes: list[int], values: list[str] | None = None) -> dict[str, Any]:
    """What the profiler records of an op's inputs with `record_shapes=True`."""
    recorded = {"Input Dims": [*shapes], "Input type": ["c10::BFloat16"] * len(shapes)}
    return recorded if values is None else recorded | {"Concrete Inputs": values}


QUERY = [2, 12, 128, 64]
HEADS_LAST = [2, 128, 12, 64]
IMAGES, WEIGHTS, OUTPUT = [8, 64, 56, 56], [128, 64, 3, 3], [8, 128, 28, 28]
WINDOW = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]"]
CONVOLUTION = 2 * 8 * 128 * 28 * 28 * 64 * 9
SCORES = 2 * (2 * 2 * 12 * 128 * 128 * 64)  # two products


@pytest.mark.parametrize(
    ("name", "recorded", "flops"),
    [
        ("aten::addmm", inputs([64], [32, 16], [16, 64]), 2 * 32 * 16 * 64),
        ("aten::convolution", inputs(IMAGES, WEIGHTS, [], values=WINDOW), CONVOLUTION),
        ("aten::convolution", inputs(IMAGES, WEIGHTS, []), None),  # stride is not recorded
        (
            "aten::convolution_backward",
            inputs(OUTPUT, IMAGES, WEIGHTS, values=["[True, True, False]"]),
            2 * CONVOLUTION,
        ),
        ("aten::_scaled_dot_product_cudnn_attention", inputs(QUERY, QUERY, QUERY), SCORES),
        ("aten::_flash_attention_backward", inputs(*[HEADS_LAST] * 4), 2 * SCORES),
        ("aten::relu", inputs([64, 64]), 0),
    ],
)
def test_a_trace_with_shapes_shows_its_arithmetic(
    tmp_path: Path, name: str, recorded: dict[str, Any], flops: int | None
) -> None:
    """One kernel of 1 ms, beside a product of 64 x 64 matrices, which is half a MFLOP."""
    square, known = inputs([64, 64], [64, 64]), 2 * 64**3
    events = [
        annotation("ProfilerStep#0", 0, 1200),
        op("aten::mm", 1, 13, **square),
        launch(5, 7, 1),
        kernel("gemm", 10, 20, 1),
        op(name, 14, 19, **recorded),
        launch(15, 17, 2),
        kernel("relu" if flops == 0 else "sgemm_or_flash", 20, 1020, 2),
    ]
    step = traced(tmp_path, events, "NVIDIA H100 PCIe").measured
    if flops is None:
        assert step.mfu is None
        return
    assert step.arithmetic is not None and step.arithmetic.dtype == "bf16" and step.mfu is not None
    assert step.arithmetic.model_flops == flops + known
    assert step.mfu == pytest.approx(
        (flops + known) / step.predicted_us / 1e6 / 756, rel=1e-3
    )  # datasheet
