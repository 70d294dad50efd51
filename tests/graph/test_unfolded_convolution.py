"""Convolutions in bf16 on GPUs without bf16, by hand."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from pipeline.errors import ConfigError
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu

UNFOLDED, FOLDED = ["im2col", "mm"], ["mm", "col2im"]


def calls_of(node: Node, gpu: str) -> pd.DataFrame:
    return map_calls(Graph(write_nodes([node])), load_gpu(gpu))


def forward(w: tuple[int, ...], *more: Any, gpu: str = "V100", **changed: Any) -> pd.DataFrame:
    """The calls of three images of 4 x 16 x 16, of which 8 x 16 x 16 are made, or of what `changed` says."""
    given: Any = {"x": (3, 4, 16, 16), "out": (3, 8, 16, 16), "dtype": "bf16", **changed}
    stride, padding, groups, transposed = (*more, *(1, 1, 1, False)[len(more) :])
    values = (None, None, None, [stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups)
    x, weight, out = (Tensor(shape, given["dtype"]) for shape in (given["x"], w, given["out"]))
    inputs = (x, weight, None)
    return calls_of(Node(0, "aten::convolution", inputs=inputs, values=values, outputs=(out,)), gpu)


def test_a_sample_is_unfolded_and_multiplied() -> None:
    calls = forward((8, 4, 3, 3))
    assert list(calls["op"]) == UNFOLDED * 3
    unfolded, product = calls.iloc[0], calls.iloc[1]
    assert list(product[["family", "M", "N", "K"]]) == ["gemm", 8, 4 * 9, 256]
    assert product["flops"] == 2 * 8 * 36 * 256 and product["bytes_read"] == 2 * (8 * 36 + 36 * 256)
    assert list(unfolded[["bytes_read", "bytes_written"]]) == [2 * 4 * 256, 2 * 36 * 256]


@pytest.mark.parametrize(
    "arguments, changed, ops, pixels",
    [
        (((8, 4, 1, 1), 1, 0), {}, ["mm"] * 3, 256),
        (((8, 4, 1, 1), 2, 0), {"out": (3, 8, 8, 8)}, UNFOLDED * 3, 64),
        (((8, 2, 3, 3), 1, 1, 2), {}, UNFOLDED * 6, 256),  # a group after the other
        (((8, 4, 4, 4), 2, 1, 1, True), {"x": (3, 8, 8, 8), "out": (3, 4, 16, 16)}, FOLDED * 3, 64),
    ],
)
def test_products_have_the_arithmetic_of_the_convolution(
    arguments: Any, changed: Any, ops: list[str], pixels: int
) -> None:
    calls = forward(*arguments, **changed)
    assert list(calls["op"]) == ops
    products = calls.loc[calls["op"] == "mm", "flops"]
    assert products.sum() == 2 * 3 * pixels * math.prod(arguments[0])


def test_gradients_take_a_product_of_each_sample_with_the_same_arithmetic() -> None:
    shapes = (3, 8, 16, 16), (3, 4, 16, 16), (8, 4, 3, 3)
    sides = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    inputs, values = tuple(Tensor(shape, "bf16") for shape in shapes), (*[None] * 4, *sides)
    calls = calls_of(Node(0, "aten::convolution_backward", inputs=inputs, values=values), "V100")
    assert list(calls["op"]) == FOLDED * 3 + UNFOLDED * 3
    products = calls.loc[calls["op"] == "mm", ["M", "N", "K", "flops"]].values.tolist()
    work = 2 * 8 * 36 * 256
    assert products == [[36, 8, 256, work]] * 3 + [[8, 256, 36, work]] * 3


@pytest.mark.parametrize(
    "gpu, changed",
    [
        ("A100", {}),
        ("MI250", {}),
        ("V100", {"dtype": "fp16"}),
        ("V100", {"groups": 4}),  # depthwise layers are not unfolded
    ],
)
def test_cudnn_has_all_others(gpu: str, changed: Any) -> None:
    groups = changed.pop("groups", 1)
    calls = forward((8, 4 // groups, 3, 3), 1, 1, groups, gpu=gpu, **changed)
    assert calls["family"].iloc[0] == "conv2d_forward"


def test_pascal_refuses_products_in_bf16_and_no_other_work() -> None:
    said = r"bf16 on P100: PyTorch refuses it.*model\.dtype=fp32 or fp16"
    with pytest.raises(ConfigError, match=said):
        forward((8, 4, 3, 3), gpu="P100")
    x = Tensor((64, 64), "bf16")
    relu = Node(0, "aten::relu", inputs=(x,), values=(None,), outputs=(x,))
    assert len(calls_of(relu, "P100")) == 1
