"""Times of recurrent layers from cuDNN's kernels: products, element-wise cells, and the chain of time steps.

A recurrent layer of G gates multiplies the inputs of all T steps in one product, (T·B) x I times I x G·H. The rest is a
chain: each step runs a product B x H times H x G·H, then one element-wise kernel. The backward pass runs the same chain
with the transposed weights. It ends with two long products, the gradients of both matrices (Appleyard, Kocisky, Blunsom
2016, arXiv 1604.01946). The times of products come from the GPU's model of family `gemm`.

- Layers of one stack run in parallel along the diagonal, and so do the directions of one layer. Products that run at
  the same time are counted as one product with correspondingly more columns. A bidirectional layer needs all steps of
  the layer below.
- The host launches every kernel of the chain, so no step is shorter than its launches.
- A projection of the output (`proj_size`) is one more product at each step, of B x H times H x P. The next step and the
  next layer then take P inputs. cuDNN uses no persistent kernel in this case (`get_algo` in ATen/native/cudnn/RNN.cpp).
- cuDNN's persistent kernels keep a matrix in registers for the whole sequence. A step then consists of one
  synchronisation and arithmetic. PyTorch decides which layers get them, from the GPU, sizes and dtype
  (ATen/native/cudnn/RNN.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.arrays import Array, Flags, Texts
from pipeline.families.dims import Dims, attributes_of
from pipeline.kernels.estimate import Estimate, Floor
from pipeline.kernels.physics import Physics

Products = Callable[[pd.DataFrame], tuple[Estimate, Texts]]
"""Function from rows of family `gemm` to their estimates and evidence."""


@dataclass(frozen=True)
class Layers:
    """Sizes of recurrent calls, each of shape (rows,).

    `inputs`, `hidden` and `output` are widths, and `bytes` is the size of an element. The output is fed back to the
    next step. Its width is `hidden`, or less where an LSTM projects the output (`projected`).
    """

    batch: Array
    steps: Array
    inputs: Array
    hidden: Array
    layers: Array
    directions: Array
    gates: Array
    backward: Flags
    bytes: Array
    output: Array
    projected: Flags

    @classmethod
    def of(cls, calls: pd.DataFrame) -> Layers:
        """Read the sizes from a table of calls.

        Where `attributes` does not name them, there are one direction, four gates and no projection.
        """
        d = Dims(calls)
        attributes = attributes_of(d)
        directions, gates, output = (
            np.array([float(values.get(key, default)) for values in attributes], dtype=float)
            for key, default in (("directions", 1.0), ("gates", 4.0), ("projected", 0.0))
        )
        sizes = (d("B"), d("T"), d("I"), d("H"), d("layers", 1.0))
        width = np.where(output > 0, output, sizes[3])
        return cls(*sizes, directions, gates, d.backward(), d.element_bytes(), width, output > 0)


LAUNCH_US = 3.2
"""Host time of one launch within a cuDNN call, microseconds. Steps with negligible kernels take 6.5 to 6.8 us for two
launches (four layers of 40 to 152 units, batches of 1 to 8, in the table of `RESIDENT_US`)."""

STEP_LAUNCHES, BACKWARD_STEP_LAUNCHES = 2.0, 3.0
"""Kernels of a step, forward and backward: product and cell, and backward one more, because the product's sum is split."""

GAP_US = 1.0
"""Time from the end of one kernel to the start of the next in the stream, microseconds. The algorithm of Lin et al.
uses the same value."""

RESIDENT_WEIGHTS = 65536.0
"""Number of recurrent weights (gates x hidden width squared) that the registers of one SM hold in fp32. For more
weights, PyTorch's rule uses the small persistent kernel only in the forward pass, and the kernel's times jump."""

RESIDENT_US, RESIDENT_WORK_US, RESIDENT_BATCH = 0.5, 1.4, 32.0
"""Time of one step of the small persistent kernel:

- its start, in microseconds;
- the time for `RESIDENT_WEIGHTS` weights, in microseconds;
- the batch size that doubles that time.

The source is the table in pull request 62143 of PyTorch, on one GPU that it does not name (docs/notes/recurrent.md)."""

SPILLED_US, SPILLED_BATCH = 3.9, 8.0
"""Time of a step for `RESIDENT_WEIGHTS` weights, microseconds, if the weights exceed the registers; and a batch size.
The time is proportional to the number of weights, and to the batch above this batch size. Same table as
`RESIDENT_US`."""

SMALL_BACKWARD = 2.0
"""Ratio of backward to forward time of the small persistent kernel. The table of `RESIDENT_US` shows 1.3 to 2.4."""

TABLE_CLOCK_MHZ = 1455.0
"""Assumed boost clock of the unnamed GPU in the table of `RESIDENT_US`, MHz: between A100 (1410) and V100 (1530)."""

PERSISTENT_SMS = 98
"""Minimum number of SMs for which PyTorch uses the large persistent kernel, from compute capability 8 on."""

PERSISTENT_US, PERSISTENT_SHARE = 5.0, 0.5
"""A step of the large persistent kernel: the time of one synchronisation of the whole GPU, microseconds, and the share
of peak FLOP/s of its products. Both are assumed. PyTorch takes this kernel to be at least as fast as the plain one, so no
prediction is longer than that of the plain one."""

LOOPED = '{"looped":true}'
"""Attributes of the products of a chain of steps: the same kernel runs many times in a row."""

NO_FLOOR = Floor(0.0, 0.0, {})
"""No latency floor: latencies equal kernel times."""

SPREAD = 1.25
"""Factor by which each end of the interval is widened beyond the products' own intervals."""


def recurrent_us(
    calls: pd.DataFrame, products: Products, physics: Physics, floor: Floor = NO_FLOOR
) -> tuple[Estimate, Texts]:
    """Times of recurrent layers.

    Args:
        calls: rows of family `rnn`: B, T, I, H, `layers`, `dtype`, `phase`, and `attributes` with `directions` and
            `gates`.
        products: estimates of matrix products on the same GPU.
        physics: the GPU's figures.
        floor: what event timing adds to a kernel.

    Returns:
        Estimates (NaN where a size is missing), and the evidence of the products behind them, shape (rows,).
    """
    sizes = Layers.of(calls)
    table, at, times, chained = _products(sizes, Dims(calls).dtype)
    estimates, kinds = products(table)
    cells = _cell_us(sizes, physics)
    total = []
    for ends in (estimates.kernel, estimates.p10, estimates.p90):
        bulk, chain = (
            np.bincount(at[rows], (times * ends)[rows], minlength=len(calls))
            for rows in (~chained, chained)
        )
        total.append(
            physics.start_us("rnn")
            + bulk
            + _chain_us(sizes, calls, chain / _chain_length(sizes) + cells, physics)
        )
    kernel, low, high = total
    evidence = np.full(len(calls), "roofline", dtype=object)
    longest = np.argsort(times * estimates.kernel, kind="stable")
    evidence[at[longest]] = kinds[longest]  # evidence of the longest product, which is sorted last
    has_sizes = np.isfinite(sizes.batch + sizes.steps + sizes.inputs + sizes.hidden)
    kernel = np.where(has_sizes, kernel, np.nan)
    latency = floor.latency(kernel, Dims(calls).op)
    rest = latency - kernel
    inside = np.ones(len(calls), dtype=bool)
    return Estimate(latency, kernel, low, high, inside, rest + low, rest + high).widen(
        SPREAD
    ), evidence


def _products(
    sizes: Layers, dtypes: Texts
) -> tuple[pd.DataFrame, npt.NDArray[np.intp], Array, Flags]:
    """Matrix products of all calls.

    Returns:
        A table of products of family `gemm`. For each product: the row of its call, the number of times that it occurs
        there, and whether it belongs to the chain of steps.
    """
    tokens, wide, length = (
        sizes.batch * sizes.steps,
        sizes.gates * sizes.hidden,
        _chain_length(sizes),
    )
    upper, inputs, output = sizes.directions * sizes.output, sizes.inputs, sizes.output
    backward, forward = sizes.backward * sizes.directions, ~sizes.backward * sizes.directions
    deeper = sizes.layers - 1.0
    at_once = np.round(sizes.layers * sizes.directions * sizes.steps / length)
    chained = ~sizes.backward * length, sizes.backward * length
    parts = (  # occurrences, rows, sum, columns; then those of the chain
        (forward, tokens, inputs, wide),
        (forward * deeper, tokens, upper, wide),
        (backward, tokens, wide, inputs),
        (backward * deeper, tokens, wide, upper),
        (backward, wide, tokens, inputs),
        (backward * deeper, wide, tokens, upper),
        (backward * sizes.layers, wide, tokens, output),
        (backward * sizes.projected * sizes.layers, sizes.hidden, tokens, output),
        (chained[0], sizes.batch, output, at_once * wide),
        (chained[1], sizes.batch, wide, at_once * output),
        (chained[0] * sizes.projected, sizes.batch, sizes.hidden, at_once * output),
        (chained[1] * sizes.projected, sizes.batch, output, at_once * sizes.hidden),
    )
    counts, m, n, k = (np.concatenate(each) for each in zip(*parts, strict=True))
    in_chain = np.repeat(np.arange(len(parts)) >= len(parts) - 4, len(tokens))
    kept = (counts > 0) & np.isfinite(m * n * k)
    phase = np.where(sizes.backward, "backward", "forward")
    table = pd.DataFrame(
        {
            "family": "gemm",
            "op": "linear",
            "phase": np.tile(phase, len(parts)),
            "dtype": np.tile(dtypes, len(parts)),
            "B": 1.0,
            "M": m,
            "N": n,
            "K": k,
            "attributes": np.array([None, LOOPED], object)[in_chain.astype(int)],
        }
    )
    rows = np.tile(np.arange(len(tokens)), len(parts))
    return table[kept].reset_index(drop=True), rows[kept], counts[kept], in_chain[kept]


def _chain_length(sizes: Layers) -> Array:
    """Number of steps of the chain: the diagonals of a stack, or all steps of all layers if bidirectional."""
    return np.where(
        sizes.directions > 1.0, sizes.steps * sizes.layers, sizes.steps + sizes.layers - 1.0
    )


def _cell_us(sizes: Layers, physics: Physics) -> Array:
    """Time of a step's element-wise kernel, us.

    The kernel reads the results of both products and the states, and writes the gates and the states.
    """
    forward, backward = 3.0 * sizes.gates + 3.0, 2.0 * sizes.gates + 5.0
    at_once = sizes.layers * sizes.directions * sizes.steps / _chain_length(sizes)
    moved = np.where(sizes.backward, backward, forward) * sizes.batch * sizes.hidden * sizes.bytes
    return physics.memory.start_us + physics.memory.moving_us(at_once * moved)


def _chain_us(sizes: Layers, calls: pd.DataFrame, step: Array, physics: Physics) -> Array:
    """Time of all steps in sequence, us: limited by the host's launches or by the GPU, or in a persistent kernel."""
    d, steps = Dims(calls), _chain_length(sizes)
    kernels = np.where(sizes.backward, BACKWARD_STEP_LAUNCHES, STEP_LAUNCHES) + sizes.projected
    launched = sizes.layers * sizes.directions * sizes.steps * kernels * LAUNCH_US
    plain = np.maximum(steps * (step + kernels * GAP_US), launched)
    peak = physics.flop_per_us(d.dtype)
    multiplied = 2.0 * sizes.batch * sizes.gates * sizes.hidden**2
    large = sizes.steps * (PERSISTENT_US + multiplied / (PERSISTENT_SHARE * peak))
    without_small = np.where(
        _uses_large_persistent(sizes, d.dtype, physics),
        np.minimum(plain, large),
        plain,
    )
    small = sizes.steps * sizes.layers * sizes.directions * _small_persistent_us(sizes, physics)
    return np.where(_uses_small_persistent(sizes, d.dtype, physics), small, without_small)


def _uses_small_persistent(sizes: Layers, dtype: Texts, physics: Physics) -> Flags:
    """Whether layers get the small persistent kernel: `use_rnn_persist_small_h` of ATen/native/cudnn/RNN.cpp."""
    widest = np.where(
        sizes.gates > 1.0,
        np.where(sizes.backward, 128.0, 192.0),
        np.where(sizes.backward, 256.0, 384.0),
    )
    plain = ~sizes.projected & (dtype != "fp64")
    return np.asarray((sizes.hidden <= widest) & (physics.gpu.compute_capability >= 6.0) & plain)


def _small_persistent_us(sizes: Layers, physics: Physics) -> Array:
    """Time of one step of the small persistent kernel, us."""
    weights = sizes.gates * sizes.hidden**2 / RESIDENT_WEIGHTS
    resident = RESIDENT_US + RESIDENT_WORK_US * weights * (1.0 + sizes.batch / RESIDENT_BATCH)
    spilled = SPILLED_US * weights * np.maximum(sizes.batch / SPILLED_BATCH, 1.0)
    clock = TABLE_CLOCK_MHZ / physics.gpu.clock_mhz
    return (
        np.where(weights > 1.0, np.maximum(spilled, resident), resident)
        * np.where(sizes.backward, SMALL_BACKWARD, 1.0)
        * clock
    )


def _uses_large_persistent(sizes: Layers, dtype: Texts, physics: Physics) -> Flags:
    """Whether layers get the large persistent kernel: `use_persist_*_heuristics` of ATen/native/cudnn/RNN.cpp."""
    b, t, capability = sizes.batch, sizes.steps, physics.gpu.compute_capability
    shape = (
        (sizes.layers == 1) & (sizes.directions == 1) & (sizes.hidden <= 1024) & ~sizes.projected
    )
    aligned = (
        (np.mod(sizes.hidden, 128) == 0) & (np.mod(sizes.inputs, 128) == 0) & (dtype == "fp16")
    )
    if 7.0 <= capability < 7.5:
        some = ((np.mod(b, 16) == 0) & (b != 80) & (b != 112)) | (b == 8)
        long = ((t >= 40) & (b <= 128)) | ((t >= 20) & (b <= 96)) | ((t >= 10) & (b <= 32))
        return np.asarray(shape & aligned & some & long)
    if capability >= 8.0 and capability != 8.6 and physics.gpu.sms >= PERSISTENT_SMS:
        return np.asarray(shape & aligned & (np.mod(b, 8) == 0) & (b <= 128) & (sizes.gates == 4))
    return np.zeros(len(b), dtype=bool)
