"""How many launches cuBLAS and cuDNN make for one operator.

The libraries choose among algorithms by shape, with rules they do not publish. The ones here are read off public data:
the kernels that ran for every `linear` and `conv` row of the NeuSight set, and the traces named in `opmap.yaml`. Only
one call of an operator carries its work; the launches around it (offsets, transforms, reductions of split products)
cost the host a launch each; their device time is within what the operator's kernel model was measured with.
"""

from __future__ import annotations

from pipeline.graph.sizes.vocabulary import Work

TILE = 128
"""Side of the common cuBLAS tile."""

SMALL_IMAGE = 45
"""Image side up to which a 3x3 convolution on many channels runs as non-fused Winograd (most of NeuSight's `conv`
rows do on A100, T4 and V100; on larger images fewer than half)."""


def splits_product(m: int, n: int, k: int, turned: bool, sms: int, capability: float) -> bool:
    """Whether a product (m x n) by (n x k), n the reduction, is split along its reduction.

    A second launch goes with it: a reduction of the parts after it, or a memset of the result before it. By
    architecture, with the share of NeuSight's `linear` rows (cuBLAS 12.1, which shows only reductions and the grid's
    depth) that agree; on Ampere the traces (older cuBLAS) split more than those rows, and decide.

    Args:
        m: rows.
        n: the reduction.
        k: columns.
        turned: whether the second factor is a transposed one, as a layer's weight is in the forward pass.
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
    return (waves <= 0.6 and n >= 400 and depth >= 30) or (not turned and n >= 1000 and waves <= 1.2 and depth >= 8)


def convolution_extra(family: str, dims: dict[str, int], dtype: str) -> list[Work]:
    """The launches beside a convolution, by direction (read off rtx2080ti_resnet and v100_ddp)."""
    kernel, square, side = dims["kernel_size"], "kernel_size_w" not in dims, dims["input_size"]
    winograd = kernel == 3 and square and dims["stride"] == 1 and dims["in_channels"] > 32 and dims["groups"] == 1
    nonfused = winograd and side <= SMALL_IMAGE and dims["B"] > 9
    forward, data, weight = (3 if nonfused else 1), (3 if nonfused else 1 if winograd else 2), (3 if winograd else 1)
    if kernel == 3 and dims["stride"] == 2 and dims["groups"] == 1 and dims["in_channels"] > 32:
        data, weight = 3, 2
    if kernel == 1 and dims["stride"] == 1:  # a product per image while images are large
        data = 0 if side >= 20 else 2 if side >= 10 else 4
        weight = 1 if side >= 10 else 2
    counts = {"conv2d_forward": forward, "conv2d_backward_data": data, "conv2d_backward_weight": weight}
    return [auxiliary(dtype, "convolution")] * counts[family]


def auxiliary(dtype: str, of: str) -> Work:
    """A launch whose device time is counted with the operator's main kernel."""
    dims = {"B": 1, "H": 1, "inputs": 0, "outputs": 0}
    return Work(dims, 0.0, 0.0, 0.0, dtype, "elementwise", "auxiliary", attributes={"of": of})
