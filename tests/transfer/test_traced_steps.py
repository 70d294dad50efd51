"""Steps of drawn traces on other GPUs: what counts as the step, and what each call is."""

from __future__ import annotations

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
    for i in range(4):
        at = 10 * i
        events += [
            annotation(f"ProfilerStep#{i}", at, at + 9),
            op("aten::relu", at + 1, at + 8),
            launch(at + 2, at + 4, i + 1),
            kernel("relu", 6 + 1000 * i, 1006 + 1000 * i, i + 1, **GRID),
        ]
    trace = traced(tmp_path, events)
    here, there = trace.to("V100-SXM2-16GB"), trace.to("T4")
    assert here.predicted_us == pytest.approx(1000.0) and here.bound == "device"
    longer = trace.calls("T4")["predicted_us"].iloc[0] / 1000.0
    assert there.predicted_us == pytest.approx(1000.0 * longer, rel=0.02)


def product(at: float, i: int, kernel_name: str, took: float, kind: str) -> list[dict[str, Any]]:
    """A product of 4096 x 4096 matrices; 2 x 4096^3 FLOP."""
    shapes = {
        "Input Dims": [[4096], [4096, 4096], [4096, 4096], [], []],
        "Input type": [kind] * 3 + ["Scalar"] * 2,
    }
    return [
        op("aten::addmm", at, at + 12, **shapes),
        launch(at + 4, at + 6, i),
        kernel(kernel_name, at + 9, at + 9 + took, i, **GRID),
    ]


def convolution(
    kernel_name: str,
    took: float,
    kind: str,
    *sizes: list[int],
    name: str = "aten::cudnn_convolution",
    **said: list[str],
) -> list[dict[str, Any]]:
    shapes = {
        "Input Dims": [*sizes, [], [], [], [], [], []],
        "Input type": [kind] * 2 + ["Scalar"] * 6,
    }
    return [
        STEP,
        op(name, 1, 13, **shapes, **said),
        launch(5, 7, 1),
        kernel(kernel_name, 10, 10 + took, 1, **GRID),
    ]


@pytest.mark.parametrize(
    ("kind", "name", "dtype", "gpu", "least", "most"),
    [
        # 137.4 GFLOP; 1.2 ms on an A100 are 115 TFLOP/s, which TF32 reaches there
        (
            "float",
            "cutlass_80_tensorop_s1688gemm_128x128",
            "tf32",
            "V100",
            7.3,
            11.7,
        ),  # fp32 on a V100: 15.7 TFLOP/s
        ("float", "cutlass_80_tensorop_s1688gemm_128x128", "tf32", "P100", 12, 21),
        (
            "c10::Half",
            "ampere_fp16_s16816gemm_fp16_128x128",
            "fp16",
            "P100",
            12,
            21,
        ),  # no tensor cores
        (
            "c10::Half",
            "ampere_fp16_s16816gemm_fp16_128x128",
            "fp16",
            "V100",
            1.8,
            4,
        ),  # 312 against 125
        ("c10::BFloat16", "ampere_bf16_s16816gemm_bf16_128x128", "bf16", "H100", 0.25, 0.5),
        # 236.8 GFLOP; 1.5 ms on an A100 are 158 TFLOP/s, which halves reach there, and TF32 takes 2.5 ms
        (
            "c10::Half",
            "sm80_xmma_fprop_implicit_gemm_f16f16_nhwc_tensor16x8x16",
            "fp16",
            "V100",
            1.8,
            4,
        ),  # 312 against 125
        (
            "c10::BFloat16",
            "sm80_xmma_fprop_implicit_gemm_bf16_nhwc_tensor16x8x16",
            "bf16",
            "H100",
            0.25,
            0.6,
        ),
        (
            "c10::Half",
            "sm80_xmma_fprop_implicit_gemm_f16f16_nhwc_tensor16x8x16",
            "fp16",
            "P100",
            7,
            25,
        ),  # in fp32, Winograd
        (
            "float",
            "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc",
            "tf32",
            "V100",
            2.5,
            14,
        ),  # as before
    ],
)
def test_work_of_tensor_cores_is_moved_as_such(
    tmp_path: Path, kind: str, name: str, dtype: str, gpu: str, least: float, most: float
) -> None:
    took = 2500.0 if dtype == "tf32" else 1500.0
    events = convolution(name, took, kind, [64, 256, 56, 56], [256, 256, 3, 3])
    if "fprop" not in name:
        took, events = (
            1200.0,
            [STEP, *product(1, 1, name, 1200, kind)],
        )
    calls = traced(tmp_path, events, "NVIDIA A100-PCIE-40GB").calls(gpu)
    assert calls["dtype"][0] == dtype and calls["method"][0] == "tensor"
    assert least < calls["predicted_us"][0] / took < most


def test_products_of_amd_move_there_and_back(tmp_path: Path) -> None:
    amd = "Cijk_Alik_Bljk_BBS_BH_MT256x128x64_MI16x16x1"
    events = [STEP, *product(1, 1, amd, 160, "c10::BFloat16")]
    calls = traced(tmp_path, events, "AMD Instinct MI300X").calls("H100")
    took = float(calls["predicted_us"][0])
    assert calls["family"][0] == "gemm" and calls["method"][0] == "tensor"
    events = [STEP, *product(1, 1, "gemm", took, "c10::BFloat16")]
    back = traced(tmp_path, events, "NVIDIA H100 80GB HBM3")
    assert back.calls("MI300X")["predicted_us"][0] == pytest.approx(160, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<sm90_bf16>>",
        "flash::flash_fwd_splitkv_kernel",
        "deep_gemm::fp8_gemm_kernel",
        "ampere_s16816gemm_128x128",
        "nvjet_hsh_128x256",
    ],
)
def test_kernels_of_tensor_cores_follow_their_peak_where_no_operator_is_known(
    tmp_path: Path, name: str
) -> None:
    events = [
        STEP,
        op("my::product", 1, 13),
        launch(5, 7, 1),
        kernel(name, 10, 910, 1, **GRID),
    ]
    tracked = traced(tmp_path, events, "NVIDIA H800")
    moved = {gpu: tracked.calls(gpu)["predicted_us"][0] for gpu in ("H100", "H200", "B200")}
    assert moved["H100"] == moved["H200"] == pytest.approx(900)  # one chip, one peak
    assert moved["B200"] == pytest.approx(900 * 989.4 / 2250)


def test_only_what_multiplies_moves_by_arithmetic(tmp_path: Path) -> None:
    multiplied = [
        STEP,
        *product(1, 1, "volta_sgemm_128x64_nn", 9000, "float"),
    ]
    sizes = [64, 256, 56, 56], [256, 256, 3, 3]
    convolved = convolution("volta_scudnn_128x64_relu", 9000, "float", *sizes)
    copied = convolution("cudnn::cnn::im2col4d_kernel", 900, "float", *sizes)
    for step, least, most in ((multiplied, 1.2, 1.7), (convolved, 1.2, 1.7), (copied, 0.8, 0.9)):
        trace = traced(tmp_path, step)
        slow, fast = (trace.calls(gpu)["predicted_us"][0] for gpu in ("H20", "H100"))
        assert least < slow / fast < most, (
            "an H20 has less arithmetic and more bandwidth than an H100"
        )


def test_a_convolution_keeps_its_groups_and_both_sides_of_its_window(tmp_path: Path) -> None:
    events = convolution("cudnn_convolve", 100, "float", [8, 64, 17, 34], [96, 16, 1, 7])
    call = traced(tmp_path, events).calls("T4").iloc[0]
    assert (call["kernel_size"], call["kernel_size_w"], call["padding"], call["padding_w"]) == (
        1,
        7,
        0,
        3,
    )
    assert (call["input_size"], call["input_size_w"], call["groups"]) == (17, 34, 4)


CUDNN = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]  # padding first
NEUTRAL = ["", "", "", "[2, 1]", "[0, 1]", "[3, 3]"]


@pytest.mark.parametrize(
    "name, values, window",
    [
        ("aten::cudnn_convolution", CUDNN, (2, 2, 1, 1, 1)),
        ("aten::conv2d", NEUTRAL, (2, 1, 0, 1, 3)),
        ("aten::convolution", ["", "", "", "[2]", "[0]", "[1]"], (2, 2, 0, 0, 1)),
        ("aten::cudnn_convolution", None, (1, 1, 1, 1, 1)),
        ("aten::cudnn_convolution", ["", ""], (1, 1, 1, 1, 1)),
        ("aten::cudnn_convolution", ["", "", "?", "[2, 2]", "[1, 1]"], (1, 1, 1, 1, 1)),
    ],
)
def test_a_window_moves_as_the_trace_says_and_as_usual_before_pytorch_2_1(
    tmp_path: Path, name: str, values: list[str] | None, window: tuple[int, ...]
) -> None:
    """Stride and padding by side, and dilation. Taken for one of stride 1, a convolution had four times its arithmetic."""
    said = {} if values is None else {"Concrete Inputs": values}
    sizes = [8, 64, 56, 56], [128, 64, 3, 3]
    events = convolution("implicit_convolve_sgemm", 200, "float", *sizes, name=name, **said)
    call = traced(tmp_path, events).calls("T4").iloc[0]
    assert call["family"] == "conv2d_forward"
    columns = ["stride", "stride_w", "padding", "padding_w", "dilation"]
    assert tuple(call[columns]) == window


def test_what_a_call_is_follows_from_its_category_not_from_words_in_its_name(
    tmp_path: Path,
) -> None:
    def copy(name: str, at: float, i: int) -> list[dict[str, Any]]:
        return [
            op("aten::copy_", at, at + 9),
            launch(at + 2, at + 4, i),
            memcpy(name, at + 5, at + 8, i, 4096),
        ]

    events = [
        annotation("ProfilerStep#0", 0, 60),
        *copy("Memcpy HtoD (Pinned -> Device)", 1, 1),
        *copy("CopyHostToDevice", 11, 2),
        *copy("CopyDeviceToDevice", 21, 3),
        op("aten::sum", 31, 40),
        launch(33, 35, 4),
        kernel("sum_HostPolicy_Memset_kernel", 36, 39, 4),
    ]
    calls = traced(tmp_path, events).calls("T4")
    assert list(calls["kind"]) == ["link", "link", "copy", "kernel"]


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
        ("aten::bmm", inputs([4, 32, 16], [4, 16, 64]), 2 * 4 * 32 * 16 * 64),
        ("aten::convolution", inputs(IMAGES, WEIGHTS, [], values=WINDOW), CONVOLUTION),
        ("aten::convolution", inputs(IMAGES, WEIGHTS, []), None),  # stride is not recorded
        (
            "aten::convolution_backward",
            inputs(OUTPUT, IMAGES, WEIGHTS, values=["[True, True, False]"]),
            2 * CONVOLUTION,
        ),
        (
            "aten::convolution_backward",
            inputs(OUTPUT, IMAGES, WEIGHTS, values=["[False, True, False]"]),
            CONVOLUTION,
        ),
        ("aten::_scaled_dot_product_cudnn_attention", inputs(QUERY, QUERY, QUERY), SCORES),
        ("aten::_flash_attention_backward", inputs(*[HEADS_LAST] * 4), 2 * SCORES),
        ("aten::mm", {}, None),
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
