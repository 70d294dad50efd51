"""Convolutions in bf16 on GPUs without bf16, by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.errors import ConfigError
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu


def calls_of(node: Node, gpu: str) -> pd.DataFrame:
    return map_calls(Graph(write_nodes([node])), load_gpu(gpu))


def forward(
    x: tuple[int, ...],
    w: tuple[int, ...],
    out: tuple[int, ...],
    stride: int = 1,
    padding: int = 1,
    groups: int = 1,
    transposed: bool = False,
    dtype: str = "bf16",
) -> Node:
    values = (None, None, None, [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups)
    return Node(
        0,
        "aten::convolution",
        inputs=(Tensor(x, dtype), Tensor(w, dtype), None),
        values=values,
        outputs=(Tensor(out, dtype),),
    )


def backward(kernel: int, padding: int) -> Node:
    grad, x, w = (
        Tensor(shape, "bf16") for shape in ((3, 8, 16, 16), (3, 4, 16, 16), (8, 4, kernel, kernel))
    )
    values = (
        None,
        None,
        None,
        None,
        [1, 1],
        [padding] * 2,
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, False],
    )
    return Node(0, "aten::convolution_backward", inputs=(grad, x, w), values=values, outputs=())


def test_a_sample_is_unfolded_and_multiplied() -> None:
    calls = calls_of(forward((3, 4, 16, 16), (8, 4, 3, 3), (3, 8, 16, 16)), "V100")
    assert list(calls["op"]) == ["im2col", "mm"] * 3
    product = calls.iloc[1]
    assert (product["family"], product["M"], product["N"], product["K"]) == ("gemm", 8, 4 * 9, 256)
    assert product["flops"] == 2 * 8 * 36 * 256 and product["bytes_read"] == 2 * (8 * 36 + 36 * 256)
    assert (calls.iloc[0]["bytes_read"], calls.iloc[0]["bytes_written"]) == (
        2 * 4 * 256,
        2 * 36 * 256,
    )


def test_a_kernel_of_one_pixel_needs_no_unfolding() -> None:
    calls = calls_of(forward((3, 4, 16, 16), (8, 4, 1, 1), (3, 8, 16, 16), padding=0), "T4")
    assert list(calls["op"]) == ["mm"] * 3
    strided = calls_of(
        forward((3, 4, 16, 16), (8, 4, 1, 1), (3, 8, 8, 8), stride=2, padding=0), "T4"
    )
    assert list(strided["op"]) == ["im2col", "mm"] * 3


def test_gradients_take_a_product_of_each_sample_with_the_same_arithmetic() -> None:
    calls = calls_of(backward(3, 1), "V100")
    assert list(calls["op"]) == ["mm", "col2im"] * 3 + ["im2col", "mm"] * 3
    assert set(calls.loc[calls["op"] == "mm", "flops"]) == {2.0 * 8 * 36 * 256}
    data = calls.iloc[0]
    weight = calls.iloc[7]
    assert (data["M"], data["N"], data["K"]) == (36, 8, 256) and (
        weight["M"],
        weight["N"],
        weight["K"],
    ) == (8, 256, 36)


def test_groups_are_multiplied_one_after_the_other_and_depthwise_layers_are_not_unfolded() -> None:
    calls = calls_of(forward((3, 4, 16, 16), (8, 2, 3, 3), (3, 8, 16, 16), groups=2), "V100")
    assert list(calls["op"]) == ["im2col", "mm"] * 6 and set(calls["M"].dropna()) == {4}
    assert calls["flops"].sum() == 2 * 3 * 8 * 2 * 9 * 256
    depthwise = calls_of(forward((3, 4, 16, 16), (4, 1, 3, 3), (3, 4, 16, 16), groups=4), "V100")
    assert depthwise["family"].iloc[0] == "conv2d_forward"


def test_a_transposed_convolution_folds_what_it_multiplied() -> None:
    calls = calls_of(
        forward((3, 8, 8, 8), (8, 4, 4, 4), (3, 4, 16, 16), 2, 1, transposed=True), "V100"
    )
    assert list(calls["op"]) == ["mm", "col2im"] * 3
    assert (calls.iloc[0]["M"], calls.iloc[0]["N"], calls.iloc[0]["K"]) == (4 * 16, 8, 64)


@pytest.mark.parametrize(
    "gpu, dtype", [("A100", "bf16"), ("MI250", "bf16"), ("V100", "fp16"), ("V100", "fp32")]
)
def test_cudnn_has_all_others(gpu: str, dtype: str) -> None:
    calls = calls_of(forward((3, 4, 16, 16), (8, 4, 3, 3), (3, 8, 16, 16), dtype=dtype), gpu)
    assert calls["family"].iloc[0] == "conv2d_forward"


def test_pascal_refuses_products_in_bf16_and_no_other_work() -> None:
    with pytest.raises(
        ConfigError, match=r"bf16 on P100: PyTorch refuses it.*model\.dtype=fp32 or fp16"
    ):
        calls_of(forward((3, 4, 16, 16), (8, 4, 3, 3), (3, 8, 16, 16)), "P100")
    x = Tensor((64, 64), "bf16")
    assert (
        len(calls_of(Node(0, "aten::relu", inputs=(x,), values=(None,), outputs=(x,)), "P100")) == 1
    )
