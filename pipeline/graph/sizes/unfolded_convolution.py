"""Convolutions in bf16 on GPUs without bf16: PyTorch's own, because cuDNN has none for them.

PyTorch unfolds the image of one sample into a matrix (im2col), multiplies it by the weights with cuBLAS, and continues
with the next sample (ATen/native/cuda/ConvolutionMM2d.cu). The gradient of the image is a product per sample and the
reverse of the unfolding (col2im). Depthwise convolutions have a kernel of their own and are not unfolded.
"""

from __future__ import annotations

import math
from typing import Literal

from pipeline.graph.sizes.vocabulary import Work
from pipeline.graph.table import DTYPE_BYTES, Tensor

Direction = Literal["forward", "data", "weight"]
"""Result, gradient of the image, and gradient of the weight, of a convolution that is not transposed."""


def is_unfolded(dtype: str, dims: dict[str, int], native_bf16: bool) -> bool:
    """Whether a convolution of these dims runs as one product per sample."""
    depthwise = dims["groups"] > 1 and dims["groups"] == dims["in_channels"]
    return dtype == "bf16" and not native_bf16 and not depthwise


def unfolded(direction: Direction, dims: dict[str, int], weight: Tensor, image: Tensor, result: Tensor) -> list[Work]:
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
    shape = {"forward": (channels, window, pixels), "data": (window, channels, pixels),
             "weight": (channels, pixels, window)}[direction]  # fmt: skip
    rows, summed, columns = shape
    read, written = float((rows * summed + summed * columns) * size), float(rows * columns * size)
    dims_of_product: dict[str, int | None] = {"B": 1, "M": rows, "N": summed, "K": columns}
    product = Work(dims_of_product, 2.0 * rows * summed * columns, read, written, "bf16", "gemm", "mm")
    own, matrix = image.numel // max(image.shape[0], 1) // groups * size, window * pixels * size
    inputs, outputs = (matrix, own) if direction == "data" else (own, matrix)
    sizes: dict[str, int | None] = {"B": window, "H": pixels, "inputs": inputs, "outputs": outputs}
    op = "col2im" if direction == "data" else "im2col"
    unfolding = Work(sizes, 0.0, float(inputs), float(outputs), "bf16", "copy", op)
    plain = all(dims[key] == 1 and dims.get(f"{key}_w", 1) == 1 for key in ("kernel_size", "stride"))
    plain = plain and not dims["padding"] and not dims.get("padding_w", 0)
    each = [product] if plain else [product, unfolding] if direction == "data" else [unfolding, product]
    return each * (result.shape[0] * groups)
