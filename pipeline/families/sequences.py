"""The families of sequences: fused attention and recurrent layers."""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array
from pipeline.families.dims import Dims, Work
from pipeline.families.family import Calls, Family, Law, product_us
from pipeline.families.gemm import computed_us

ATTENTION_TILE_CLOCKS = 8_900.0
"""Cycles of an SM for 64 queries and 64 keys of a head of 64 elements in fp32 (memory-efficient kernel, measured on an H100)."""


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
    """Time of fused attention, in fp32 at least that of its tiles, one after another, in blocks side by side.

    A block takes 64 queries and loops over keys; backward it takes 64 keys, loops over queries, and takes three times as long each.
    A tile of a block that is alone on its SM takes 1.6 times as long (measured on an H100).
    """
    d, back = c.d, c.d.backward()
    queries, keys = np.ceil(d("M") / 64.0), np.ceil(d("N") / 64.0)
    blocks, steps = d("B") * np.where(back, keys, queries), np.where(back, queries, keys)
    heads = np.ceil(d("K") / 64.0) * np.where(back, 3.0, 1.0)
    tile_us = ATTENTION_TILE_CLOCKS / c.chip.mhz * heads * np.where(d.flag("causal"), 0.5, 1.0)
    tiles_us = steps * tile_us * np.maximum(blocks / c.chip.sms, 1.6)
    return np.maximum(computed_us(c), c.start + np.where(c.dtype == "fp32", tiles_us, 0.0))


FAMILIES = (
    Family(
        "rnn", ("B", "T", "I", "H"), Law.COMPUTE, recurrent_work, ("lstm", "gru"), ("layers",),
        start=(6.0, 4.8), time=computed_us, reference=product_us, colour="#A5CFEE",
    ),
    Family(
        "attention", ("B", "M", "N", "K"), Law.COMPUTE, attention_work,
        ("flash", "cudnn", "efficient", "math"), start=(6.0, 5.0), time=attention_us,
        reference=product_us, colour="#073763",
    ),
)  # fmt: skip
