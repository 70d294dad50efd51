"""The families of sequences: fused attention and recurrent layers."""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array, Flags
from pipeline.families.chip import Chip
from pipeline.families.dims import Dims, Work
from pipeline.families.family import Calls, Family, Law, product_us
from pipeline.families.gemm import computed_us
from pipeline.families.row_wise import DROPOUT_PER_CLOCK
from pipeline.families.tensor_cores import HALF_DTYPES
from pipeline.hardware.spec import GpuSpec

ATTENTION_EDGE, ATTENTION_CLOCKS = 64.0, (7_200.0, 4_600.0)
"""Queries, keys and head width of a tile of the memory-efficient kernel, and cycles of an SM for it beside its products.
The first is of fp32, measured on an H100 (8,900 with the products). The second is of half precision before Ampere. It lies between
the means of its authors for a V100: the time of separate operators forward, 1.2 times that backward (facebookresearch/xformers,
pull request 362)."""

AMPERE = 8.0
"""Least compute capability of FlashAttention in PyTorch (`check_flash_attention_hardware_support` in `sdp_utils.cpp`)."""

SPLIT_PRODUCTS = 3.0
"""Products in TF32 of which the memory-efficient kernel makes one in fp32 from Ampere on (`OpMultiplyAddFastF32` of CUTLASS)."""


def recurrent_work(d: Dims) -> Work:
    """LSTM-like cells with 4 gates: each layer and step multiplies the input and the hidden state with weights."""
    b, t, i, h, layers, size = d("B"), d("T"), d("I"), d("H"), d("layers", 1.0), d.element_bytes()
    weights = 4.0 * h * (i + h + 2.0) + (layers - 1.0) * 4.0 * h * (2.0 * h + 2.0)
    scale = np.where(d.backward(), 2.0, 1.0)
    # the recurrent weights are read again at every step
    read, written = b * t * i + t * weights, b * t * h * 6.0
    return Work(scale * 2.0 * b * t * weights, scale * size * read, scale * size * written)


def attention_work(d: Dims) -> Work:
    """Fused attention: two products, no score matrix in DRAM.

    B is batch x heads, M the number of queries, N that of keys, and K the head width.

    Causal attention (in `attributes`) computes half of the scores.
    """
    b, m, n, k, size = d("B"), d("M"), d("N"), d("K"), d.element_bytes()
    scale = np.where(d.backward(), 2.5, 1.0)
    flops = np.where(d.flag("causal"), 0.5, 1.0) * scale * 4.0 * b * m * n * k
    return Work(flops, scale * size * b * k * (m + 2.0 * n), scale * size * b * m * k)


def attention_us(c: Calls) -> Array:
    """Time of fused attention, at least that of its tiles, one after another, in blocks side by side.

    A block takes 64 queries and loops over keys; backward it takes 64 keys, loops over queries, and takes three times as long each.
    A tile of a block that is alone on its SM takes 1.6 times as long (measured on an H100).

    This is the memory-efficient kernel of PyTorch, which has no FlashAttention in fp32, and none before Ampere
    (`sdp_utils.cpp`). Half precision on newer GPUs has a model of its own (`pipeline/kernels/fused_attention.py`).
    """
    d, back, edge = c.d, c.d.backward(), ATTENTION_EDGE
    queries, keys = np.ceil(d("M") / edge), np.ceil(d("N") / edge)
    blocks, steps = d("B") * np.where(back, keys, queries), np.where(back, queries, keys)
    heads = np.ceil(d("K") / edge) * np.where(back, 3.0, 1.0)
    tile_us = _tile_clocks(c) / c.chip.mhz * heads * np.where(d.flag("causal"), 0.5, 1.0)
    tiles_us = steps * tile_us * np.maximum(blocks / c.chip.sms, 1.6)
    older = c.chip.gpu.compute_capability < AMPERE
    tiled = (c.dtype == "fp32") | (d.dtype_in(HALF_DTYPES) & older)
    return np.maximum(computed_us(c), c.start + np.where(tiled, tiles_us, 0.0)) + dropout_us(
        d, c.chip, DROPOUT_PER_CLOCK
    )


def _tile_clocks(c: Calls) -> Array:
    """Cycles of an SM for a tile of the memory-efficient kernel, shape (rows,)."""
    kind, half = c.chip.gpu.generation, c.d.dtype_in(HALF_DTYPES)
    dtype = np.where(half & kind.tensor_cores, c.dtype, "tf32" if kind.tf32 else "fp32")
    flops = 4.0 * ATTENTION_EDGE**3 * np.where(dtype == "tf32", SPLIT_PRODUCTS, 1.0)
    per_clock = c.chip.flop_per_us(dtype) / c.chip.clocks_per_us()
    return np.where(half, *ATTENTION_CLOCKS[::-1]) + flops / per_clock


JAGGED_SHARES, HOPPER = (0.45, 0.26), 9.0
"""Shares of the peak that Triton's kernel of HSTU reaches forward, before Hopper and since. The second follows from one report
of an H100 (meta-recsys/generative-recommenders, issue 530: 39 % of 9.3 ms). The first is assumed: FlashAttention-2 reaches about
twice the share of the peak there."""

JAGGED_BACKWARD = 0.8
"""Rate of the backward pass over that of the forward pass: assumed, as of FlashAttention-2."""


def jagged_work(d: Dims) -> Work:
    """Attention of sequences of different lengths without a softmax, N pairs of tokens in all, M tokens, B heads.

    Queries and keys have the width K, values the width H.
    """
    b, m, n, k, h, size = d("B"), d("M"), d("N"), d("K"), d("H"), d.element_bytes()
    back = d.backward()
    flops = 2.0 * b * n * np.where(back, 3.0 * k + 2.0 * h, k + h)
    scale = size * b * m * np.where(back, 2.0, 1.0)
    return Work(flops, scale * (2.0 * k + h), scale * h)


def jagged_us(c: Calls) -> Array:
    """Time of this attention: arithmetic at a share of the peak, or traffic."""
    share = JAGGED_SHARES[int(c.chip.gpu.compute_capability >= HOPPER)]
    rate = c.chip.flop_per_us(c.dtype) * share * np.where(c.d.backward(), JAGGED_BACKWARD, 1.0)
    return c.start + np.maximum(c.work.flops / rate, c.moving_us)


def jagged_spread(c: Calls, usual: float) -> float:
    """Factor up and down of this attention's interval: all but one of its shares are assumed."""
    return 2.0


def older_kernel(d: Dims, gpu: GpuSpec) -> Flags:
    """Calls of FlashAttention-2 where PyTorch chooses cuDNN's kernel: those of traces, whose operator names it, shape (rows,)."""
    recorded = d.op_in(("flash",)) & ~d.flag("chosen") & d.dtype_in(HALF_DTYPES)
    return recorded & (gpu.generation.fused_attention == "cudnn")


def dropout_us(d: Dims, chip: Chip, per_clock: Array | float) -> Array:
    """Time of the random numbers of attention with dropout, one for each score in either pass, us, shape (rows,)."""
    scores = d("B") * d("M") * d("N") * np.where(d.flag("causal"), 0.5, 1.0)
    return np.where(d.flag("dropout"), scores / per_clock / chip.clocks_per_us(), 0.0)


FAMILIES = (
    Family(
        "rnn", ("B", "T", "I", "H"), Law.COMPUTE, recurrent_work, ("lstm", "gru"), ("layers",),
        start=(6.0, 4.8), time=computed_us, reference=product_us, colour="#A5CFEE",
    ),
    Family(
        "attention", ("B", "M", "N", "K"), Law.COMPUTE, attention_work,
        ("flash", "cudnn", "efficient", "math"), start=(6.0, 5.0), time=attention_us,
        reference=product_us, marks=("causal", "dropout"), unlike=older_kernel, colour="#073763",
    ),
    Family(
        "jagged_attention", ("B", "M", "N", "K", "H"), Law.COMPUTE, jagged_work,
        ("silu_attention",), start=(6.0, 5.0), time=jagged_us, spread=jagged_spread,
        colour="#3A6EA5",
    ),
)  # fmt: skip
