"""The families of losses and optimisers."""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.families.dims import SECTOR_BYTES, Dims, Work
from pipeline.families.family import IO, Calls, Family, Law, movement_us
from pipeline.families.lookup_times import ROW_LATENCY_US

LIKELIHOODS = ("nll_loss", "nll_loss2d")
"""Ops of the negative log-likelihood: of samples, and of the pixels of images."""

FRAME_CLOCKS = 1_750.0
"""Cycles from one frame of PyTorch's CTC loss to the next: 0.90 and 1.73 us on two GPUs, from published times of 512 and 1,024
frames (pull requests 2723 and 3265 of flagos-ai/FlagGems)."""

CHUNK, CHUNK_BYTES_PER_CLOCK = 65_536.0, 20.0
"""Elements of a tensor in a block of updates of a list (`MultiTensorApply.cuh`), and bytes that it moves in a clock cycle
(measured on an H100)."""


def loss_work(d: Dims) -> Work:
    """Read prediction and target, write the loss. The backward writes a gradient of the prediction's size.

    A likelihood touches a label, and a sector of the prediction, of each of B samples. Another kernel clears its gradient.
    """
    b, h, size, back = d("B", 1.0), d("H", 1.0), d.element_bytes(), d.backward()
    one, elements = d.op_in(LIKELIHOODS), size * b * h
    read = np.where(one, b * np.where(back, 8.0, 8.0 + SECTOR_BYTES), d("inputs", 2.0 * elements))
    written = d("outputs", np.where(back, elements, size))
    written = np.where(one, np.where(back, b * SECTOR_BYTES, size), written)
    return Work(4.0 * b * np.where(one, 1.0, h), read, written)


def loss_us(c: Calls) -> Array:
    """Time of losses, with what follows each other: frames of CTC, samples of the likelihood (`nll`).

    One block adds the likelihoods of a batch, about a sixteenth of the samples at a time (`nll_loss_threads` in PyTorch's
    `Loss.cu`). Each step loads a label, and forward then the value at that label.
    """
    samples = np.where(c.d.op_in(LIKELIHOODS[:1]), c.d("B", 1.0), 0.0)
    threads = np.clip(np.exp2(np.rint(np.log2(np.maximum(samples / 16.0, 1.0)))), 32.0, 1024.0)
    loads_us = ROW_LATENCY_US * np.where(c.d.backward(), 1.0, 2.0) * np.ceil(samples / threads)
    frames_us = FRAME_CLOCKS / c.chip.mhz * c.d("T", 0.0)
    return np.asarray(movement_us(c) + frames_us + loads_us)


def optimizer_work(d: Dims) -> Work:
    """Optimiser step on `bytes` of parameters.

    SGD reads parameter and gradient, and writes the parameter. Other optimisers also read and write their state.
    """
    op = pd.Series(d.op).str.lower()
    one, two = (op.str.contains(ops).to_numpy(bool) for ops in ("adagrad|momentum|rms", "adam"))
    state, size = np.select([two, one], [2.0, 1.0], 0.0), d("bytes", d("inputs"))
    read, written = d("inputs", size * (2.0 + state)), d("outputs", size * (1.0 + state))
    return Work(size / 4.0 * (2.0 + 4.0 * state), read, written)


def optimizer_us(c: Calls) -> Array:
    """Time of updating a list of tensors, at least that of a block, which has a chunk of a tensor."""
    size = c.d("bytes", c.d("outputs", 0.0))
    elements = np.maximum(size / c.d.element_bytes(), 1.0)
    chunk = np.minimum(CHUNK, elements / np.maximum(c.d("tensors", 1.0), 1.0))
    chunk_us = c.work.bytes / elements * chunk / CHUNK_BYTES_PER_CLOCK / c.chip.mhz
    return np.maximum(movement_us(c), c.start + chunk_us)


FAMILIES = (
    Family(
        "loss", ("B",), Law.MOVEMENT, loss_work, ("mse", "bce", "nll", "cross_entropy"),
        ("H", "T", *IO), start=(4.0, 1.7), time=loss_us, colour="#8A7D0B",
    ),
    Family(
        "optimizer", ("bytes",), Law.MOVEMENT, optimizer_work,
        ("sgd", "adam", "adamw", "adagrad"), ("tensors",), start=(3.0, 2.5), time=optimizer_us,
        reference=movement_us, colour="#4A3590",
    ),
)  # fmt: skip
