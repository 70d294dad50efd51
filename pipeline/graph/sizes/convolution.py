"""Sizes of convolutions: forward, gradient of the data, gradient of the weight, and biases.

In bf16 on GPUs without bf16, convolutions are PyTorch's own, because cuDNN has none for them. PyTorch unfolds the image of
one sample into a matrix (im2col), multiplies it by the weights with cuBLAS, and continues with the next sample
(ATen/native/cuda/ConvolutionMM2d.cu). The gradient of the image is a product per sample and the reverse of the unfolding
(col2im). Depthwise convolutions have a kernel of their own and are not unfolded.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from pipeline.graph.sizes.library_launches import convolution_extra
from pipeline.graph.sizes.vocabulary import (
    Rule,
    Work,
    computing_dtype,
    image_attributes,
    over,
    size,
)
from pipeline.graph.table import DTYPE_BYTES, Node, Tensor

Direction = Literal["forward", "data", "weight"]
"""Result, gradient of the image, and gradient of the weight, of a convolution that is not transposed."""


@size("convolution")
def convolution(node: Node, rule: Rule) -> list[Work] | None:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)."""
    x, w = node.tensor(0), node.tensor(1)
    if not x.numel:
        return None
    transposed = bool(node.value(6, False))
    out = node.result() or Tensor(_output_shape(node, x, w, transposed), x.dtype)
    dims = _dims(node, x, w, out, 3, transposed)
    family = "conv2d_backward_data" if transposed else "conv2d_forward"
    dtype, layout = computing_dtype(node, x), _attributes(node, w, dims, transposed)
    if is_unfolded(dtype, dims, rule.native_bf16):
        works = (
            unfolded("data", dims, w, out, x)
            if transposed
            else unfolded("forward", dims, w, x, out)
        )
    else:
        flops = _flops(dims, w, x if transposed else out)
        works = [Work(dims, flops, x.bytes + w.bytes, out.bytes, dtype, family, attributes=layout)]
        works += convolution_extra(family, dims, dtype, layout, rule.capability)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if isinstance(bias, Tensor):
        works.append(over(out, out.numel, out.bytes + bias.bytes, out.bytes, "elementwise", "add"))
    return works


@size("convolution_backward")
def convolution_backward(node: Node, rule: Rule) -> list[Work] | None:
    """convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation, transposed, .., mask)."""
    grad, x, w = node.tensor(0), node.tensor(1), node.tensor(2)
    if not x.numel:
        return None
    masks = [v for v in node.values if isinstance(v, list) and len(v) == 3]
    mask = masks[-1] if masks else [True, True, False]
    transposed = bool(node.value(7, False))
    dims = _dims(node, x, w, grad, 4, transposed)
    flops, dtype = _flops(dims, w, x if transposed else grad), computing_dtype(node, x)
    layout = _attributes(node, w, dims, transposed)
    works: list[Work] = []
    if is_unfolded(dtype, dims, rule.native_bf16):
        image, result = (grad, x) if transposed else (x, grad)
        directions: list[Direction] = ["forward" if transposed else "data", "weight"]
        for direction, wanted in zip(directions, mask, strict=False):
            works += unfolded(direction, dims, w, image, result) if wanted else []
    else:
        families = (
            "conv2d_forward" if transposed else "conv2d_backward_data",
            "conv2d_backward_weight",
        )
        for family, other, target, wanted in zip(families, (w, x), (x, w), mask, strict=False):
            if wanted:
                read = grad.bytes + other.bytes
                work = Work(dims, flops, read, target.bytes, dtype, family, attributes=layout)
                works += [work, *convolution_extra(family, dims, dtype, layout, rule.capability)]
    if mask[2]:
        channels = grad.shape[1]
        rows = (grad.numel // channels, channels)
        works.append(
            over(rows, grad.numel, grad.bytes, channels * 4, "reduction", "sum_rows", grad.dtype)
        )
    return works


def _attributes(node: Node, w: Tensor, dims: dict[str, int], transposed: bool) -> dict[str, Any]:
    """Layout of the images, and what `pipeline.families.convolutions` cannot see in dims."""
    volume, grouped = len(w.shape) == 5, dims["groups"] > 1
    single = grouped and volume and w.shape[1] == 1
    said = {"volume": volume, "transposed": grouped and transposed, "single_channel": single}
    return image_attributes(node) | {key: True for key, value in said.items() if value}


def _pair(value: Any, default: int) -> tuple[int, int]:
    """An option's values along height and width (the last two dimensions)."""
    if isinstance(value, list) and value:
        return int(value[-2:][0]), int(value[-1])
    return (value, value) if isinstance(value, int) else (default, default)


def _dims(
    node: Node, x: Tensor, w: Tensor, out: Tensor, first: int, transposed: bool
) -> dict[str, int]:
    """Dims of a convolution, in terms of a 2D convolution that is not transposed.

    * A transposed convolution is the data gradient of the convolution in the opposite direction.
    * A 1D convolution is a 2D convolution of images with one row.
    * A 3D convolution is a 2D convolution with one sample per sample and slice of the result. Its channels are the
      pairs of a channel and a slice of the window.
    """
    stride, padding = _pair(node.value(first), 1), _pair(node.value(first + 1), 0)
    dilation = _pair(node.value(first + 2), 1)
    numbers = [v for v in node.values[first + 4 : first + 7] if type(v) is int]
    groups = numbers[0] if numbers else 1
    if w.shape[0] % max(groups, 1):
        raise ValueError(f"{w.shape[0]} channels in {groups} groups")
    image, result = (out, x) if transposed else (x, out)
    line = len(w.shape) < 4
    if line:
        stride, padding = (1, stride[1]), (0, padding[1])
    height, width = (1, image.shape[-1]) if line else (image.shape[-2], image.shape[-1])
    kernel = (1, w.shape[-1]) if line else (w.shape[-2], w.shape[-1])
    slices, deep = math.prod(result.shape[2:-2]), math.prod(w.shape[2:-2])
    dims = {
        "B": x.shape[0] * slices,
        "in_channels": w.shape[1] * groups * deep,
        "out_channels": w.shape[0],
        "kernel_size": kernel[0],
        "input_size": height,
        "stride": stride[0],
        "padding": padding[0],
        "groups": groups,
        "dilation": dilation[0] if kernel[0] > 1 else dilation[1],
    }
    if any(high != wide for high, wide in (kernel, (height, width), stride, padding)):
        dims |= {
            "kernel_size_w": kernel[1],
            "input_size_w": width,
            "stride_w": stride[1],
            "padding_w": padding[1],
        }
    return dims


def _flops(dims: dict[str, int], w: Tensor, out: Tensor) -> float:
    """2 · weights per output channel · output elements."""
    per_output = w.numel // w.shape[0]
    pixels = out.numel // (out.shape[0] * out.shape[1])
    return 2.0 * out.shape[0] * pixels * w.shape[0] * per_output if w.shape[0] else float(dims["B"])


def _output_shape(node: Node, x: Tensor, w: Tensor, transposed: bool) -> tuple[int, ...]:
    """Shape of the result if the trace does not contain it."""
    options = (_pair(node.value(at), default) for at, default in ((3, 1), (4, 0), (5, 1)))
    sides = []
    for side, window, stride, padding, dilation in zip(
        x.shape[2:], w.shape[2:], *options, strict=False
    ):
        if transposed:
            sides.append((side - 1) * stride - 2 * padding + window)
        else:
            sides.append((side + 2 * padding - dilation * (window - 1) - 1) // stride + 1)
    return (x.shape[0], w.shape[int(transposed)], *sides)


LIBRARY_PLACES = {
    "aten::cudnn_convolution_transpose": (2, 4, 5, 6),
    "aten::mkldnn_convolution": (3, 4, 5, 6),
}
"""Places of padding, stride, dilation and groups where an output padding or a bias precedes some of them."""


@size("cudnn_convolution")
def cudnn_convolution(node: Node, rule: Rule) -> list[Work] | None:
    """cudnn_convolution(input, weight, padding, stride, dilation, groups, ..) in traces, and its kin, without a bias."""
    x, w = node.tensor(0), node.tensor(1)
    padding, stride, dilation, groups = (
        node.value(i) for i in LIBRARY_PLACES.get(node.name, (2, 3, 4, 5))
    )
    transposed = rule.family == "conv2d_backward_data"
    values = (None, None, None, stride, padding, dilation, transposed, None, groups)
    return convolution(replace(node, inputs=(x, w, None), values=values), rule)


def is_unfolded(dtype: str, dims: dict[str, int], native_bf16: bool) -> bool:
    """Whether a convolution of these dims runs as one product per sample."""
    depthwise = dims["groups"] > 1 and dims["groups"] == dims["in_channels"]
    return dtype == "bf16" and not native_bf16 and not depthwise


def unfolded(
    direction: Direction, dims: dict[str, int], weight: Tensor, image: Tensor, result: Tensor
) -> list[Work]:
    """The launches of one direction: for each sample and group a product, and an unfolding unless the kernel is 1 x 1.

    Args:
        direction: what is computed; the forward pass of a transposed convolution computes `data`.
        dims: of the convolution in terms of one that is not transposed.
        weight: of shape (channels of `result`, channels of `image` per group, kernel sizes).
        image: the larger side, from which windows are taken.
        result: the side with one element per window.
    """
    groups, size = dims["groups"], DTYPE_BYTES["bf16"]
    window, channels = weight.numel // max(weight.shape[0], 1), weight.shape[0] // groups
    pixels = math.prod(result.shape[2:])
    if not window * channels * pixels:
        return []
    shape = {
        "forward": (channels, window, pixels),
        "data": (window, channels, pixels),
        "weight": (channels, pixels, window),
    }[direction]
    rows, summed, columns = shape
    read, written = (rows * summed + summed * columns) * size, rows * columns * size
    factors = {"B": 1, "M": rows, "N": summed, "K": columns}
    product = Work(factors, 2.0 * rows * summed * columns, read, written, "bf16", "gemm", "mm")
    sample, matrix = image.numel // max(image.shape[0], 1) // groups * size, window * pixels * size
    moved = (matrix, sample) if direction == "data" else (sample, matrix)
    turned = "col2im" if direction == "data" else "im2col"
    unfolding = over((window, pixels), 0, *moved, "copy", turned, "bf16")
    trivial = {"kernel_size": 1, "stride": 1, "padding": 0}
    if all(
        dims.get(f"{key}{side}", none) == none
        for key, none in trivial.items()
        for side in ("", "_w")
    ):
        launches = [product]
    else:
        launches = [product, unfolding] if direction == "data" else [unfolding, product]
    return launches * (result.shape[0] * groups)
