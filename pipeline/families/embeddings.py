"""The families of embedding tables: lookups, their gradients, and the interaction of looked-up vectors."""

from __future__ import annotations

import numpy as np

from pipeline.arrays import Array
from pipeline.families.dims import Dims, Work
from pipeline.families.embedding_lookups import (
    distinct_weight_bytes,
    embedding_backward,
    embedding_forward,
    forward_traffic,
)
from pipeline.families.family import IO, Calls, Family, Law, by_element_us, movement_us
from pipeline.families.lookup_times import ROW_LATENCY_US, lookup_us
from pipeline.question.table_times import small_width_factor

BAG_ELEMENTS_PER_US = (2970.0, 990.0)
"""Elements of 4 bytes or more that an SM with 2,048 threads loads in a microsecond in PyTorch's bags: of rows, and of sums that are
written (measured on an H100). A thread loads an index, then its row."""

SORTED_SCATTER_PER_CLOCK = 0.0175
"""Elements per SM and clock of a sorted scatter, which has a warp for each position (measured on an H100)."""


def lookups_us(c: Calls) -> Array:
    """Times of lookups and their gradients on a GPU."""
    d, chip = c.d, c.chip
    time = lookup_us(c.family.name, d, chip.gpu, chip.memory.moving_us, chip.l2_gb_per_s)
    time = np.where(np.isfinite(time), time, chip.memory.moving_us(c.work.bytes))
    gathers = d.op_in(("sparse", "gather", "embedding", "index_select"))
    bags = d.op_in(("bag", "embedding_bag")) & (c.family.name == "embedding_forward")
    elements = np.nan_to_num(c.work.flops / np.where(d.backward(), 2.0, 1.0))  # of all rows
    # a block for each gathered row, which waits for five loads (0.6 ns per row on an H100)
    resident = min(32, chip.gpu.max_blocks_per_sm) * chip.sms
    rows_us = 5.0 * ROW_LATENCY_US * elements / d("D") / resident
    rows_rate, sums_rate = BAG_ELEMENTS_PER_US
    adding = elements / rows_rate + d("B") * d("T", 1.0) * d("D") / sums_rate
    bags_us = np.nan_to_num(adding) / (chip.sms * chip.gpu.max_threads_per_sm / 2048.0)
    loads_us = np.select([gathers, bags], [np.nan_to_num(rows_us), bags_us], 0.0)
    start = np.where(gathers, chip.started_us(None), c.start)
    return np.asarray(start + np.maximum(time, loads_us))


def cached_us(c: Calls) -> Array:
    """Enhanced model of Lin et al.: the larger of DRAM time (cold traffic) and L2 time (hits). Narrow rows are slower.

    In a gradient whose indices are sorted, each distinct row is read and written once. The output gradient is read once per
    lookup, and repeated reads of one output row hit L2. Without sorting (`dense`, atomic adds) every lookup reads and writes its
    row, and repeats stay within L2.
    """
    d, chip, forward = c.d, c.chip, c.family.name == "embedding_forward"
    traffic = forward_traffic(d, chip.gpu)
    fixed, weights = traffic.fixed, traffic.weights
    cold, warm = fixed + (1.0 - traffic.hits) * weights, traffic.hits * weights
    if not forward:
        distinct, sparse = distinct_weight_bytes(d), d.op_in(("sparse",))
        cold = fixed + np.where(sparse, weights, 2.0 * distinct)
        warm = weights + np.where(sparse, 0.0, np.maximum(weights - distinct, 0.0))
    time = np.maximum(chip.memory.moving_us(cold), warm / (1e3 * chip.l2_gb_per_s))
    time = time * small_width_factor(d("D"))
    if forward and not chip.is_cpu:
        time = np.maximum(time, ROW_LATENCY_US * traffic.longest)
    return c.start + np.where(np.isfinite(time), time, chip.memory.moving_us(c.work.bytes))


def triangle_work(d: Dims) -> Work:
    """Lower triangle of B matrices F x F gathered to (or scattered from) B rows of F(F-1)/2.

    A gather reads the sectors that hold the triangle, which are about the whole lower half. A backward first sets
    all F x F elements to zero.
    """
    b, f, size = d("B"), d("F"), d.element_bytes()
    back = d.backward() | (d.text("family") == "tril_index_backward")
    pairs, square = f * (f - 1.0) / 2.0, b * f * f
    triangle = b * pairs
    read = np.where(back, triangle, (square + triangle) / 2.0) + 16.0 / size * pairs
    written = np.where(back, square + triangle, triangle)
    return Work(np.zeros(d.rows), d("inputs", size * read), d("outputs", size * written))


def scattered_triangle_us(c: Calls) -> Array:
    """Time of scattering triangles, an element at a time."""
    elements = c.d("B") * c.d("F") * (c.d("F") - 1.0) / 2.0
    return by_element_us(c, SORTED_SCATTER_PER_CLOCK, elements)


def interaction_work(d: Dims) -> Work:
    """Dot products of all pairs of F vectors of D elements, for each of B rows; written after the first vector.

    A backward reads the vectors and the gradient of the result. It writes a gradient of all vectors, and a separate
    gradient of the first vector.
    """
    b, f, dim, size, back = d("B"), d("F"), d("D"), d.element_bytes(), d.backward()
    pairs = f * (f - 1.0) / 2.0
    vectors, joined = b * f * dim, b * (dim + pairs)
    flops = np.where(back, 2.0, 1.0) * 2.0 * b * pairs * dim
    read = np.where(back, vectors + joined, vectors)
    written = np.where(back, vectors + b * dim, joined)
    return Work(flops, d("inputs", size * read), d("outputs", size * written))


FAMILIES = (
    Family(
        "embedding_forward", ("B", "D"), Law.EMBEDDING, embedding_forward,
        ("fused", "bag", "gather"), ("E", "T", "L"), start=(6.0, 2.4), time=lookups_us,
        reference=cached_us, colour="#7BCFB0",
    ),
    Family(
        "embedding_backward", ("B", "D"), Law.EMBEDDING, embedding_backward,
        ("fused_sgd", "sparse", "dense"), ("E", "T", "L"), start=(12.0, 9.7), time=lookups_us,
        reference=cached_us, colour="#00835F",
    ),
    Family(
        "tril_index_forward", ("B", "F"), Law.MOVEMENT, triangle_work, ("tril",), IO,
        passes=1.5, start=(8.0, 4.1), colour="#4F9D3A",
    ),
    Family(
        "tril_index_backward", ("B", "F"), Law.MOVEMENT, triangle_work, ("tril",), IO,
        passes=2.0, start=(8.0, 2.4), time=scattered_triangle_us, reference=movement_us,
        colour="#2A5D1C",
    ),
    Family(
        "interaction", ("B", "F", "D"), Law.MOVEMENT, interaction_work, ("fused",), IO,
        colour="#B9E6CF",
    ),
)  # fmt: skip
