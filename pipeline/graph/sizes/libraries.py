"""How many launches cuBLAS and cuDNN make for one operator.

The libraries choose among algorithms by shape, with rules they do not publish. The ones here are read off public data:
the kernels that ran for every `linear` and `conv` row of the NeuSight set, and the traces named in `opmap.yaml`. Only
one call of an operator carries its work; the launches around it (offsets, transforms, reductions of split products)
cost the host a launch each; their device time is within what the operator's kernel model was measured with.
"""

from __future__ import annotations

from pipeline.graph.sizes.work import Work

TILE = 128
"""Side of the common cuBLAS tile."""

SPLIT_WAVES, SPLIT_DEPTH = 0.25, 400
"""A product is split along its reduction when it fills at most a quarter of the SMs and is at least this deep: 96 % of
NeuSight's `linear` rows on P100 and 95 % on T4 agree, 86 to 92 % on A100, P4 and V100."""

MEMSET_WAVES, MEMSET_RATIO = 0.6, 30
"""Larger products are split too when they are deep for their number of tiles; they then clear the result first (a
memset; rtx2080ti_linear, a100x8_dlrm)."""

SMALL_IMAGE = 45
"""Image side up to which a 3x3 convolution on many channels runs as non-fused Winograd (most of NeuSight's `conv`
rows do on A100, T4 and V100; on larger images fewer than half)."""


def gemm_extra(batch: int, m: int, n: int, k: int, dtype: str, sms: int) -> list[Work]:
    """The launch beside a product: a memset before it or a reduction after it, when the reduction is split."""
    tiles = -(-m // TILE) * -(-k // TILE)
    if batch > 1 or min(m, k) == 1:
        return []
    if tiles / sms <= SPLIT_WAVES and n >= SPLIT_DEPTH and m > 8:
        return [auxiliary(dtype, "split_k")]
    if tiles / sms <= MEMSET_WAVES and n >= SPLIT_DEPTH and n / tiles >= MEMSET_RATIO:
        return [auxiliary(dtype, "split_k")]
    return []


def convolution_extra(family: str, dims: dict[str, int], dtype: str) -> list[Work]:
    """The launches beside a convolution, by direction."""
    kernel, square = dims["kernel_size"], "kernel_size_w" not in dims
    winograd = kernel == 3 and square and dims["stride"] == 1 and dims["in_channels"] > 32 and dims["groups"] == 1
    nonfused = winograd and dims["input_size"] <= SMALL_IMAGE and dims["B"] > 9
    counts = {
        "conv2d_forward": 3 if nonfused else 1,
        "conv2d_backward_data": 3 if nonfused else 1 if winograd else 2,
        "conv2d_backward_weight": 3 if winograd else 1,
    }
    return [auxiliary(dtype, "convolution")] * counts[family]


def auxiliary(dtype: str, of: str) -> Work:
    """A launch whose device time is counted with the operator's main kernel."""
    dims = {"B": 1, "H": 1, "inputs": 0, "outputs": 0}
    return Work(dims, 0.0, 0.0, 0.0, dtype, "elementwise", "auxiliary", attributes={"of": of})
