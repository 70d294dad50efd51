"""Number of launches that cuBLAS and cuDNN make for one operator.

The libraries choose an algorithm by shape, with rules that they do not publish. The rules here are derived from public
data: the kernels that ran for every `linear` and `conv` row of the NeuSight set, and the traces named in `opmap.yaml`.

Only one call of an operator has its work. Each other launch (offsets, transforms, reductions of split products) costs
the host one launch. Its device time is already included in the measurements of the operator's kernel model.
"""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from pipeline.families.convolutions import native
from pipeline.families.dims import Dims
from pipeline.graph.sizes.vocabulary import Work

TILE = 128
"""Side of the most common output tile of cuBLAS, in elements."""

SMALL_IMAGE = 45
"""Largest image side, in pixels, for which a 3x3 convolution on many channels runs as non-fused Winograd.

Most of NeuSight's `conv` rows up to this size do so on A100, T4 and V100; for larger images fewer than half do.
"""


def splits_product(m: int, n: int, k: int, turned: bool, sms: int, capability: float) -> bool:
    """Whether cuBLAS splits a product (m x n) by (n x k) along its reduction dimension n.

    A split product has a second launch: a reduction of the parts after it, or a memset of the result before it.

    The rules depend on the architecture. The comments give the share of NeuSight's `linear` rows that agree with a
    rule. These rows are from cuBLAS 12.1 and show only reductions and the depth of the grid. On Ampere, the traces
    (older cuBLAS) split more products than NeuSight's rows; the rule follows the traces.

    Args:
        m: rows.
        n: length of the reduction.
        k: columns.
        turned: whether the second factor is transposed, as a layer's weight is in the forward pass.
        sms: multiprocessors of the GPU.
        capability: compute capability of the GPU.
    """
    tiles = -(-m // TILE) * -(-k // TILE)
    waves, depth = tiles / sms, n / tiles
    if min(m, k) == 1:
        return False
    if capability < 7.0:  # Pascal: 96 % on P4, 97 % on P100
        return waves <= 2.0 and n >= 300
    if capability < 8.0:  # Volta, Turing: 81 % on V100, 86 % on T4
        return depth > 8 and n >= 400
    if waves <= 0.25:  # Ampere: a100x8_dlrm, a100_alexnet, a100_event_sync
        return n >= 400 and m > 8
    return (waves <= 0.6 and n >= 400 and depth >= 30) or (
        not turned and n >= 1000 and waves <= 1.2 and depth >= 8
    )


def convolution_extra(
    family: str, dims: dict[str, int], dtype: str, attributes: dict[str, Any], capability: float
) -> list[Work]:
    """The additional launches of a convolution, by direction (derived from rtx2080ti_resnet and v100_ddp).

    PyTorch's own depthwise kernels have none.
    """
    if dims["groups"] > 1:
        call = pd.DataFrame(
            [{**dims, "dtype": dtype, "attributes": json.dumps(attributes, separators=(",", ":"))}]
        )
        if native(Dims(call), capability)[0]:
            return []
    kernel, square, side = dims["kernel_size"], "kernel_size_w" not in dims, dims["input_size"]
    wide = kernel == 3 and dims["in_channels"] > 32 and dims["groups"] == 1
    forward, data, weight = 1, 2, 1
    if wide and square and dims["stride"] == 1 and not attributes.get("volume"):  # Winograd
        nonfused = side <= SMALL_IMAGE and dims["B"] > 9
        forward, data, weight = (3, 3, 3) if nonfused else (1, 1, 3)
    if wide and dims["stride"] == 2:
        data, weight = 3, 2
    if kernel == 1 and dims["stride"] == 1:  # one matrix product per image if images are large
        data = 0 if side >= 20 else 2 if side >= 10 else 4
        weight = 1 if side >= 10 else 2
    counts = {"forward": forward, "backward_data": data, "backward_weight": weight}
    return [auxiliary(dtype, "convolution")] * counts[family.removeprefix("conv2d_")]


def auxiliary(dtype: str, of: str) -> Work:
    """A launch whose device time is counted with the operator's main kernel."""
    dims = {"B": 1, "H": 1, "inputs": 0, "outputs": 0}
    return Work(dims, 0.0, 0.0, 0.0, dtype, "elementwise", "auxiliary", attributes={"of": of})
