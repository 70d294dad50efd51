"""Recurrent layers as the kernels that cuDNN makes of them: products, element-wise cells, and the chain of time steps.

A recurrent layer of G gates computes the input's share of all T steps in one product, (T·B) x I times I x G·H. What is left
is a chain: at each step a product B x H times H x G·H, then one element-wise kernel. The backward pass goes the same way
with the transposed weights, and ends with the gradients of both matrices as two long products (Appleyard, Kocisky,
Blunsom 2016, arXiv 1604.01946). Products take what the GPU's model of `gemm` says, whichever that is.

- Layers of one stack overlap along the diagonal, directions of one layer beside each other: kernels that run at once
  are taken as one product with as many more columns. A bidirectional layer needs all steps of the one below.
- The host launches every kernel of the chain: no step is shorter than its launches.
- A projection of the output (`proj_size`) is one more product at each step, of B x H times H x P, and P is what the next step
  and the next layer see. cuDNN takes no persistent kernel then (`get_algo` in ATen/native/cudnn/RNN.cpp).
- Where a matrix lies in registers for the whole sequence (cuDNN's persistent kernels), a step is a synchronisation and
  arithmetic. Which layers get them is PyTorch's rule (ATen/native/cudnn/RNN.cpp), which knows GPU, sizes and dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.kernels.embedding_traffic import attributes_of
from pipeline.kernels.estimate import Estimate, Floor
from pipeline.kernels.physics import Physics
from pipeline.kernels.work import Array, Dims

Products = Callable[[pd.DataFrame], tuple[Estimate, npt.NDArray[np.object_]]]
"""Estimate and evidence of rows of family `gemm`."""


@dataclass(frozen=True)
class Layers:
    """Sizes of recurrent calls, each of shape (rows,): batch, steps, input and hidden width, layers, directions, gates, and
    the width of the output, which is fed back: `hidden`, or less where an LSTM projects it.
    """

    batch: Array
    steps: Array
    inputs: Array
    hidden: Array
    layers: Array
    directions: Array
    gates: Array
    backward: npt.NDArray[np.bool_]
    bytes: Array
    output: Array
    projected: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, calls: pd.DataFrame) -> Layers:
        """From a table of calls; one direction, four gates and no projection where `attributes` does not say."""
        d = Dims(calls)
        said = attributes_of(d)
        directions, gates, output = (
            np.array([float(one.get(key, usual)) for one in said], dtype=np.float64)
            for key, usual in (("directions", 1.0), ("gates", 4.0), ("projected", 0.0))
        )
        sizes = (d("B"), d("T"), d("I"), d("H"), d("layers", 1.0))
        width = np.where(output > 0, output, sizes[3])
        return cls(*sizes, directions, gates, d.backward(), d.element_bytes(), width, output > 0)


LAUNCH_US = 3.2
"""Host time of one launch within a cuDNN call: two launches a step in 6.5 to 6.8 us where kernels are next to nothing (four
layers of 40 to 152 units, batches of 1 to 8, in the table of `RESIDENT_US`)."""

LAUNCHES, BACKWARD_LAUNCHES = 2.0, 3.0
"""Kernels of a step: product and cell; on the way back 9.0 to 9.5 us say one more (the product's sum is split)."""

GAP_US = 1.0
"""From the end of one kernel to the start of the next in the stream (Lin et al.'s walk has the same)."""

RESIDENT_WEIGHTS = 65536.0
"""Recurrent weights (gates x hidden width squared) that one SM's registers hold in fp32: beyond it PyTorch's own rule takes
the small persistent kernel only on the way forward, and its times jump."""

RESIDENT_US, RESIDENT_WORK_US, RESIDENT_BATCH = 0.5, 1.4, 32.0
"""A step of the small persistent kernel: start, what `RESIDENT_WEIGHTS` take, and the batch that doubles it. The table in
pull request 62143 of PyTorch (its author's repository `xwang233/code-snippet`, cudnn-rnn-bench-62143): 80 layers in fp32
and fp16 on one card that it does not name, before and after; docs/notes/recurrent.md."""

SPILLED_US, SPILLED_BATCH = 3.9, 8.0
"""The same for weights beyond the registers: proportional to them, and to batches beyond this."""

SMALL_BACKWARD = 2.0
"""The way back over the way forward in the small persistent kernel; same table, 1.3 to 2.4."""

TABLE_CLOCK_MHZ = 1455.0
"""Boost clock that the table's card is taken to have: between A100 (1410) and V100 (1530)."""

PERSISTENT_SMS = 98
"""Least SMs on which PyTorch takes the large persistent kernel from compute capability 8 on."""

PERSISTENT_US, PERSISTENT_SHARE = 5.0, 0.5
"""A step of the large persistent kernel: one synchronisation of the whole GPU, and the share of peak at which it multiplies.
Not measured: PyTorch's comment says that it is as good as the plain one or better, and no prediction is longer than that."""

NO_FLOOR = Floor(0.0, 0.0, {})
"""Times as they are."""

SPREAD = 1.25
"""Factor up and down beyond the products' own intervals."""


def recurrent_us(
    calls: pd.DataFrame, products: Products, physics: Physics, floor: Floor = NO_FLOOR
) -> tuple[Estimate, npt.NDArray[np.object_]]:
    """Times of recurrent layers.

    Args:
        calls: rows of family `rnn`: B, T, I, H, `layers`, `dtype`, `phase`, and `attributes` with `directions` and `gates`.
        products: estimates of matrix products on the same GPU.
        physics: the GPU's figures.
        floor: what event timing adds to a kernel.

    Returns:
        Estimates (NaN where a size is missing), and the evidence of the products behind them, shape (rows,).
    """
    sizes = Layers.of(calls)
    table, at, times, chained = _parts(sizes, Dims(calls).text("dtype", "fp32"))
    found, kinds = products(table)
    cells = _cell_us(sizes, physics)
    total = []
    for ends in (found.kernel, found.p10, found.p90):
        bulk, chain = (
            np.bincount(at[rows], (times * ends)[rows], minlength=len(calls)) for rows in (~chained, chained)
        )
        total.append(physics.start_us("rnn") + bulk + _chain_us(sizes, calls, chain / _steps(sizes) + cells, physics))
    kernel, low, high = total
    evidence = np.full(len(calls), "roofline", dtype=object)
    longest = np.argsort(times * found.kernel, kind="stable")
    evidence[at[longest]] = kinds[longest]  # of what takes longest, which comes last
    known = np.isfinite(sizes.batch + sizes.steps + sizes.inputs + sizes.hidden)
    kernel = np.where(known, kernel, np.nan)
    latency = floor.latency(kernel, Dims(calls).text("op"))
    rest = latency - kernel
    inside = np.ones(len(calls), dtype=bool)
    return Estimate(latency, kernel, low, high, inside, rest + low, rest + high).widen(SPREAD), evidence


def _parts(
    sizes: Layers, dtypes: npt.NDArray[np.object_]
) -> tuple[pd.DataFrame, npt.NDArray[np.intp], Array, npt.NDArray[np.bool_]]:
    """Products of all calls, the call of each, how often it occurs there, and whether it belongs to the chain of steps."""
    tokens, wide = sizes.batch * sizes.steps, sizes.gates * sizes.hidden
    upper = sizes.directions * sizes.output
    projects = np.where(sizes.projected, 1.0, 0.0)
    deeper, once = sizes.layers - 1.0, np.ones_like(tokens)
    at_once = np.round(sizes.layers * sizes.directions * sizes.steps / _steps(sizes))
    forward, backward = np.where(sizes.backward, 0.0, 1.0), np.where(sizes.backward, 1.0, 0.0)
    parts = (  # occurrences, rows, sum, columns
        (forward * once, tokens, sizes.inputs, wide),
        (forward * deeper, tokens, upper, wide),
        (backward * once, tokens, wide, sizes.inputs),
        (backward * deeper, tokens, wide, upper),
        (backward * once, wide, tokens, sizes.inputs),
        (backward * deeper, wide, tokens, upper),
        (backward * sizes.layers, wide, tokens, sizes.output),
        (backward * projects * sizes.layers, sizes.hidden, tokens, sizes.output),
    )
    chain = (
        (forward * _steps(sizes), sizes.batch, sizes.output, at_once * wide),
        (backward * _steps(sizes), sizes.batch, wide, at_once * sizes.output),
        (forward * projects * _steps(sizes), sizes.batch, sizes.hidden, at_once * sizes.output),
        (backward * projects * _steps(sizes), sizes.batch, sizes.output, at_once * sizes.hidden),
    )
    rows = np.arange(len(tokens))
    frames, ats, times = [], [], []
    for number, (count, m, n, k) in enumerate((*parts, *chain)):
        kept = (count > 0) & np.isfinite(m * n * k)
        phase = np.where(sizes.backward, "backward", "forward")
        frames.append(pd.DataFrame({"family": "gemm", "op": "linear", "phase": phase, "dtype": dtypes, "B": 1.0,
                                    "M": m, "N": n, "K": k, "chained": number >= len(parts)})[kept])  # fmt: skip
        ats.append(rows[kept])
        times.append((count * (sizes.directions if number < len(parts) else 1.0))[kept])
    table = pd.concat(frames, ignore_index=True)
    return (
        table.drop(columns="chained"),
        np.concatenate(ats),
        np.concatenate(times),
        table["chained"].to_numpy(dtype=bool),
    )


def _steps(sizes: Layers) -> Array:
    """Steps of the chain: diagonals of a stack, or every layer's steps where layers are bidirectional."""
    return np.where(sizes.directions > 1.0, sizes.steps * sizes.layers, sizes.steps + sizes.layers - 1.0)


def _cell_us(sizes: Layers, physics: Physics) -> Array:
    """The element-wise kernel of a step: both products' results and the states read, gates and states written."""
    forward, backward = 3.0 * sizes.gates + 3.0, 2.0 * sizes.gates + 5.0
    at_once = sizes.layers * sizes.directions * sizes.steps / _steps(sizes)
    moved = np.where(sizes.backward, backward, forward) * sizes.batch * sizes.hidden * sizes.bytes
    return np.asarray(physics.memory.start_us + physics.memory.moving_us(at_once * moved))


def _chain_us(sizes: Layers, calls: pd.DataFrame, step: Array, physics: Physics) -> Array:
    """All steps one after another: by the host's launches or the device, or in a persistent kernel."""
    d, steps = Dims(calls), _steps(sizes)
    kernels = np.where(sizes.backward, BACKWARD_LAUNCHES, LAUNCHES) + np.where(sizes.projected, 1.0, 0.0)
    launched = sizes.layers * sizes.directions * sizes.steps * kernels * LAUNCH_US
    plain = np.maximum(steps * (step + kernels * GAP_US), launched)
    peak = physics.peak_flop_per_us(d)
    multiplied = 2.0 * sizes.batch * sizes.gates * sizes.hidden**2
    large = sizes.steps * (PERSISTENT_US + multiplied / (PERSISTENT_SHARE * peak))
    found = np.where(_large(sizes, d.text("dtype", "fp32"), physics), np.minimum(plain, large), plain)
    small = sizes.steps * sizes.layers * sizes.directions * _small_us(sizes, physics)
    return np.where(_small(sizes, d.text("dtype", "fp32"), physics), small, found)


def _small(sizes: Layers, dtype: npt.NDArray[np.object_], physics: Physics) -> npt.NDArray[np.bool_]:
    """Layers that get the small persistent kernel: `use_rnn_persist_small_h` of ATen/native/cudnn/RNN.cpp."""
    widest = np.where(sizes.gates > 1.0, np.where(sizes.backward, 128.0, 192.0), np.where(sizes.backward, 256.0, 384.0))
    plain = ~sizes.projected & (dtype != "fp64")
    return np.asarray((sizes.hidden <= widest) & (physics.gpu.compute_capability >= 6.0) & plain)


def _small_us(sizes: Layers, physics: Physics) -> Array:
    """A step of the small persistent kernel."""
    weights = sizes.gates * sizes.hidden**2 / RESIDENT_WEIGHTS
    resident = RESIDENT_US + RESIDENT_WORK_US * weights * (1.0 + sizes.batch / RESIDENT_BATCH)
    spilled = SPILLED_US * weights * np.maximum(sizes.batch / SPILLED_BATCH, 1.0)
    clock = TABLE_CLOCK_MHZ / max(physics.gpu.boost_clock_mhz, 1.0)
    return np.asarray(np.where(weights > 1.0, np.maximum(spilled, resident), resident)
                      * np.where(sizes.backward, SMALL_BACKWARD, 1.0) * clock)  # fmt: skip


def _large(sizes: Layers, dtype: npt.NDArray[np.object_], physics: Physics) -> npt.NDArray[np.bool_]:
    """Layers that get the large persistent kernel: `use_persist_*_heuristics` of ATen/native/cudnn/RNN.cpp."""
    b, t, capability = sizes.batch, sizes.steps, physics.gpu.compute_capability
    shape = (sizes.layers == 1) & (sizes.directions == 1) & (sizes.hidden <= 1024) & ~sizes.projected
    aligned = (np.mod(sizes.hidden, 128) == 0) & (np.mod(sizes.inputs, 128) == 0) & (dtype == "fp16")
    if 7.0 <= capability < 7.5:
        some = ((np.mod(b, 16) == 0) & (b != 80) & (b != 112)) | (b == 8)
        long = ((t >= 40) & (b <= 128)) | ((t >= 20) & (b <= 96)) | ((t >= 10) & (b <= 32))
        return np.asarray(shape & aligned & some & long)
    if capability >= 8.0 and capability != 8.6 and physics.gpu.sms >= PERSISTENT_SMS:
        return np.asarray(shape & aligned & (np.mod(b, 8) == 0) & (b <= 128) & (sizes.gates == 4))
    return np.zeros(len(b), dtype=bool)
