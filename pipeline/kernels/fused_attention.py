"""Fused attention in bf16 and fp16: tiles of queries over SMs, with constants fitted to public kernel times.

A block takes a tile of queries of one head and walks over the keys, so that the score matrix never leaves the SM
(Dao, FlashAttention-2, arXiv:2307.08691). Its time is a prologue, and two products with the keys it sees at a share of the
tensor peak. Blocks fill the SMs in waves; a causal block sees half of the keys on average and the longest ones end the
kernel. Short sequences are bound by traffic or by the kernel's start. Constants of the measured GPUs ship; another GPU
takes those of the one whose kernels it runs, with its own peak, SMs, bandwidth and L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.embedding_traffic import attributes_of
from pipeline.kernels.estimate import Estimate, KernelModel, merge
from pipeline.kernels.intervals import Quantiles
from pipeline.kernels.physics import Physics
from pipeline.kernels.tensor_core_products import HALF_DTYPES as DTYPES
from pipeline.kernels.work import Array, Dims, is_one_of

FAMILY = "attention"

OP = "flash"
"""Op of the fused kernel of half precision, whichever library it comes from."""

MASKED = "efficient"
"""Op of the memory-efficient kernel, which half precision gets with a mask: it computes the same products, a mask's zeros
included, and reads the mask beside. No samples exist: it takes the fused kernel's time with the mask's traffic."""

MASKED_SPREAD = 1.25
"""Factor up and down that this adds to the interval: one public pair, of cross-attention on an H100, has it 1.25 times as
long as FlashAttention-2 (amap-cvlab/ABot-World, pull request 14)."""

WIDTHS = (64.0, 80.0, 128.0, 256.0)
"""Head widths between which the sustained share is interpolated (in log); flat outside."""

KEYS, WIDTH_STEP = 64.0, 32.0
"""Keys and head widths are padded to these in the kernels' products."""

WIDEST = 256.0
"""Head width up to which the fused kernels exist."""

BACKWARD_WORK, BACKWARD_SHARE = 2.5, 0.9
"""Five products instead of two, at this much of the forward's rate: FlashAttention-2 reaches 63 % of the A100's peak
backward and 73 % forward (its paper, section 4.1), the serial traffic below included. No samples exist;
`benchmarks/kernels/attention.py` compares with published pairs."""

BACKWARD_TRAFFIC = 14.0
"""Bytes per element of q that the backward moves before and after its main kernel: output and its gradient are read (4),
the fp32 gradient of q is cleared (4), read (4) and written in half precision (2)."""

BACKWARD_SPREAD = 1.2
"""Factor up and down that the backward adds to the interval: what published pairs leave, doubled."""

OUTSIDE_SPREAD = 1.2
"""The same for head widths that a GPU's samples lack, and for all keys seen where they only have causal rows: what the
share differs by between neighbouring widths."""

TRANSFERRED_SPREAD = 1.45
"""The same on a GPU that was not measured, by what measured ones say of each other (`benchmarks/kernels/attention.py`)."""


@dataclass(frozen=True)
class Constants:
    """What a fit finds; times in microseconds, shares of the specification's figures.

    Args:
        start_us: the kernel at negligible size.
        tile_us: a causal block's prologue; `open_tile_us` without the causal mask.
        idle_gain: by how much SMs are faster while most are idle, long sequences split over them included.
        tail: share of the longest causal block that runs after all others.
        waves: 1 where blocks without a mask run in whole waves, 0 where the rest of a wave costs nothing.
        diagonal_keys: keys that a causal block sees beyond half of the sequence: its tile on the diagonal is whole.
        share_*: share of the tensor peak that a causal block sustains, by head width; `open_gain` is the factor without
            the mask.
        dram_share: of the bandwidth; `l2_gain` is by how much L2 is faster, `l2_edge` the share of it that may fill.
        sharpness: how well arithmetic and traffic hide behind each other.
        cache_start_us, cache_share: the write of keys and values to the serving cache, which causal samples contain and
            predictions leave out.
    """

    start_us: float = 6.0
    tile_us: float = 0.5
    open_tile_us: float = 0.5
    idle_gain: float = 0.3
    tail: float = 0.5
    waves: float = 0.5
    diagonal_keys: float = 48.0
    share_64: float = 0.5
    share_80: float = 0.5
    share_128: float = 0.6
    share_256: float = 0.6
    open_gain: float = 1.1
    dram_share: float = 0.8
    l2_gain: float = 1.5
    l2_edge: float = 0.7
    sharpness: float = 3.0
    cache_start_us: float = 2.0
    cache_share: float = 0.8


@dataclass(frozen=True)
class Shape:
    """Sizes of calls, each of shape (rows,): heads of all samples, queries, keys, head width, what kind they are, and the
    bytes of a mask.
    """

    heads: Array
    queries: Array
    keys: Array
    width: Array
    element: Array
    causal: npt.NDArray[np.bool_]
    backward: npt.NDArray[np.bool_]
    cached: npt.NDArray[np.bool_]
    mask: Array

    @classmethod
    def of(cls, calls: pd.DataFrame) -> Shape:
        """From `B`, `M`, `N`, `K`, and `causal`, `mask` (its bytes) and `cached` (of serving's samples) in `attributes`."""
        d = Dims(calls)
        queries = d("M")
        mask = np.array([float(said.get("mask", 0.0)) for said in attributes_of(d)], dtype=np.float64)
        return cls(d("B"), queries, d("N", queries), d("K"), d.element_bytes(), d.flag("causal"), d.backward(),
                   d.flag("cached"), mask)  # fmt: skip

    @property
    def bytes(self) -> Array:
        """Traffic of q, k, v, the output and a mask."""
        return self.element * self.heads * self.width * 2.0 * (self.queries + self.keys) + self.mask


def attention_us(c: Constants, tiles: tuple[float, float], gpu: GpuSpec, peak: Array, s: Shape) -> Array:
    """Kernel times, shape (rows,).

    Args:
        c: constants of the kernels that the GPU runs.
        tiles: queries per block for heads of up to 96, and wider.
        gpu: whose SMs, bandwidth and L2 count.
        peak: FLOP per microsecond of the tensor cores for each row, shape (rows,).
        s: what is computed.
    """
    sms = float(max(gpu.sms, 1))
    rows = np.where(s.width <= 96.0, tiles[0], tiles[1])
    per_head = np.ceil(s.queries / rows)
    blocks = s.heads * per_head
    shares = np.log([c.share_64, c.share_80, c.share_128, c.share_256])
    share = np.exp(np.interp(np.log(s.width), np.log(WIDTHS), shares)) * np.where(s.causal, 1.0, c.open_gain)
    busy = np.minimum(blocks / sms, 1.0)
    rate = peak * share / sms * (1.0 + c.idle_gain * (1.0 - busy))
    per_key = 4.0 * rows * np.ceil(s.width / WIDTH_STEP) * WIDTH_STEP / rate
    prologue = np.where(s.causal, c.tile_us, c.open_tile_us)
    longest = prologue + np.ceil(s.keys / KEYS) * KEYS * per_key
    mean = prologue + (s.keys / 2.0 + c.diagonal_keys) * per_key
    masked = np.maximum(longest, blocks * mean / sms + c.tail * longest * np.clip(blocks / sms - 1.0, 0.0, 1.0))
    smooth, whole = np.maximum(blocks / sms, 1.0), np.ceil(blocks / sms)
    compute = np.where(s.causal, masked, longest * ((1.0 - c.waves) * smooth + c.waves * whole))
    compute = compute * np.where(s.backward, BACKWARD_WORK / BACKWARD_SHARE, 1.0)
    moved = _moving_us(s.bytes * np.where(s.backward, 2.0, 1.0), c.dram_share, c, gpu)
    more, less = np.maximum(compute, moved), np.minimum(compute, moved)
    power = 1.0 + c.sharpness
    total = c.start_us + more * (1.0 + (less / more) ** power) ** (1.0 / power)
    serial = s.heads * s.queries * s.width * s.element / 2.0 * BACKWARD_TRAFFIC
    total = total + np.where(s.backward, 2.0 * c.start_us + _moving_us(serial, c.dram_share, c, gpu), 0.0)
    return np.asarray(total + np.where(s.cached, c.cache_start_us + _moving_us(s.bytes, c.cache_share, c, gpu), 0.0))


def _moving_us(size: Array, share: float, c: Constants, gpu: GpuSpec) -> Array:
    """Time of traffic: from L2 while it fits, from DRAM where it does not, blended around the edge."""
    dram = 1e3 * gpu.peak_dram_gb_per_s() * share
    beyond = np.clip((size / (c.l2_edge * gpu.l2_bytes) - 0.75) / 0.5, 0.0, 1.0)
    return np.asarray(size / dram * (beyond + (1.0 - beyond) / (1.0 + c.l2_gain)))


@dataclass(frozen=True)
class Fitted:
    """What ships of one GPU: constants, tiles, error quantiles, and which rows its samples had."""

    constants: Constants
    tiles: tuple[float, float]
    quantiles: Quantiles
    widths: tuple[float, float]
    open: bool

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        constants = {key: round(value, 5) for key, value in asdict(self.constants).items()}
        return {"constants": constants, "tiles": self.tiles, "quantiles": self.quantiles.to_json(),
                "widths": self.widths, "open": self.open}  # fmt: skip

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Fitted:
        """Back from `to_json`."""
        constants = Constants(**{key: float(value) for key, value in values["constants"].items()})
        tiles, widths = ((float(values[key][0]), float(values[key][1])) for key in ("tiles", "widths"))
        return cls(constants, tiles, Quantiles.from_json(values["quantiles"]), widths, bool(values["open"]))


@dataclass(frozen=True)
class AttentionModel(KernelModel):
    """Fused attention on `gpu` by what was fitted on `measured`."""

    gpu: GpuSpec
    measured: GpuSpec
    fitted: Fitted

    @property
    def evidence(self) -> str:
        """`pack` on the GPU that was measured."""
        return "pack" if self.gpu.name == self.measured.name else "transferred"

    def evidence_of(self, calls: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Evidence of each row: backward passes and masks were measured nowhere."""
        d = Dims(calls)
        return np.where(d.backward() | d.op_in((MASKED,)), "transferred", self.evidence).astype(object)

    def native(self, calls: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Fused calls of half precision with all their sizes."""
        d = Dims(calls)
        sized = np.isfinite(d("B") * d("M") * d("K")) & (d("K") <= WIDEST)
        return np.asarray(d.op_in((OP, MASKED)) & is_one_of(d.text("dtype", "fp32"), DTYPES) & sized)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of calls; intervals widen off the samples' widths and masks, backward, and on another GPU."""
        shape = Shape.of(calls)
        peak = Physics.of(self.gpu).peak_flop_per_us(Dims(calls))
        time = attention_us(self.fitted.constants, self.fitted.tiles, self.gpu, peak, shape)
        low, high = (np.exp(ends) for ends in self.fitted.quantiles.at(np.log(time)))
        found = Estimate(time, time, time * low, time * high, self._inside(shape), time * low, time * high)
        if self.gpu.name != self.measured.name:
            found = found.widen(TRANSFERRED_SPREAD)
        masked = Dims(calls).op_in((MASKED,))
        for rows, spread in (
            (shape.backward, BACKWARD_SPREAD), (~found.inside, OUTSIDE_SPREAD), (masked, MASKED_SPREAD)
        ):  # fmt: skip
            found = merge(found, found.widen(spread).rows(rows), rows)
        return found

    def _inside(self, shape: Shape) -> npt.NDArray[np.bool_]:
        low, high = self.fitted.widths
        return np.asarray((shape.width >= low) & (shape.width <= high) & (shape.causal | self.fitted.open))
