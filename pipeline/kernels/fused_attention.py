"""Fused attention in bf16 and fp16: tiles of queries over SMs, with constants fitted to public kernel times.

A block takes a tile of queries of one head and loops over the keys, so the score matrix stays in the SM (Dao,
FlashAttention-2, arXiv:2307.08691). The time of a block is a prologue, plus two products with its keys at a share of
the tensor-core peak. Blocks fill the SMs in waves. A causal block processes half of the keys on average, and the
longest blocks determine the end of the kernel. Short sequences are bound by traffic or by the kernel's start.

Steptime ships constants of the measured GPUs. Another GPU uses the constants of the GPU whose kernels it runs, with its
own peak, SMs, bandwidth and L2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Texts
from pipeline.families.dims import Dims, attributes_of, is_one_of
from pipeline.families.row_wise import DROPOUT_PER_CLOCK
from pipeline.families.sequences import dropout_us
from pipeline.families.tensor_cores import HALF_DTYPES as DTYPES
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.estimate import Estimate, KernelModel, Quantiles, merge
from pipeline.kernels.physics import Physics

FAMILY = "attention"

OP, CUDNN = "flash", "cudnn"
"""Ops of the fused kernels of half precision: PyTorch's flash backend (FlashAttention-2), and cuDNN's kernel."""

FLASH2_SHARE, FLASH2_START_US = 0.42, 2.5
"""FlashAttention-2 on Hopper, relative to the kernels of the samples (FlashAttention-3): its rate, since it does not use
Hopper's asynchronous products (published: 329 TFLOP/s in long sequences), and its start in us (traces of BERT and ViT)."""

FLASH2_TILES, FLASH2_KEYS, FLASH2_IDLE_GAIN = (128.0, 128.0), (128.0, 64.0), 0.28
"""Its queries per block, and the multiple to which a block pads its keys: of heads up to 64 wide, and of wider ones
(`flash_fwd_launch_template.h`). The last figure is `idle_gain` of the same kernels on an A100."""

CUDNN_TILES = (128.0, 128.0)
CUDNN_STARTS = {"start_us": 3.0, "open_tile_us": 1.0, "idle_gain": 0.3, "waves": 1.0}
"""Queries per block of cuDNN's kernel as PyTorch runs it on Hopper, and constants of its own: it starts sooner than
FlashAttention-3 in a server. They come from the forward passes of half of the shapes in `measurements/H100`."""

CHOSEN = "chosen"
"""Attribute of calls of `OP` whose kernel PyTorch chooses: from 2.11 on, cuDNN's on Hopper."""

MASKED = "efficient"
"""Op of the memory-efficient kernel, which runs in half precision with a mask.

It computes the same products and also reads the mask. Without samples, it gets the fused kernel's time plus that traffic."""

MASKED_SPREAD = 1.25
"""Factor up and down by which `MASKED` widens the interval: the ratio of the one public pair, on an H100."""

FLASH_DROPOUT_PER_CLOCK = 4.0 * DROPOUT_PER_CLOCK
"""Random numbers per SM and clock of dropout in fused attention: FlashAttention-2 takes 16 numbers of 8 bits from a call of its
generator (`flash_attn/src/dropout.h`), where other kernels take four of 32."""

WIDTHS = (64.0, 80.0, 128.0, 256.0)
"""Head widths between which the sustained share of the peak is interpolated (in log); outside them it is constant."""

KEY_MULTIPLE, WIDTH_MULTIPLE = 64.0, 32.0
"""The kernels' products pad the keys and the head width to multiples of these."""

MAX_WIDTH = 256.0
"""Largest head width of the fused kernels."""

BACKWARD_WORK, BACKWARD_SHARE = 2.5, 0.9
"""Ratio of backward to forward arithmetic (five products instead of two), and ratio of their rates (section 4.1 of the
FlashAttention-2 paper)."""

BACKWARD_TRAFFIC = 14.0
"""Bytes per element of q that the backward pass moves before and after its main kernel: output and its gradient (4), the
fp32 gradient of q cleared (4), read (4), and written in half precision (2)."""

BACKWARD_SPREAD = 1.2
"""Factor up and down by which a backward pass widens the interval: twice the error on published pairs."""

OUTSIDE_SPREAD = 1.2
"""The same for head widths that a GPU's samples lack, and for calls without a causal mask where samples are all causal: the
difference of the sustained share between neighbouring head widths."""

TRANSFERRED_SPREAD = 1.45
"""The same on a GPU that was not measured. The value comes from predicting each measured GPU with the constants of
another (`benchmarks/kernels/attention.py`)."""


@dataclass(frozen=True)
class Constants:
    """Fitted constants: times in microseconds, and shares of the figures in the specification.

    Args:
        start_us: time of a kernel of negligible size.
        tile_us: prologue of a causal block; `open_tile_us` is that of a block without the causal mask.
        idle_gain: relative gain in the rate of an SM when nearly all SMs are idle. It includes the effect of long
            sequences that are split over SMs.
        tail: share of the longest causal block's time that runs after all other blocks.
        waves: 1 where blocks without a mask run in whole waves, 0 where a partly filled wave takes only its share of
            the time.
        diagonal_keys: keys that a causal block processes beyond half of the sequence, because its tile on the diagonal
            is whole.
        share_*: share of the tensor-core peak that a causal block sustains, by head width; `open_gain` is the factor
            without the mask.
        dram_share: share of the DRAM bandwidth that traffic reaches; L2 is faster by the factor 1 + `l2_gain`.
        l2_edge: traffic as a share of the L2 size, around which it moves from L2 to DRAM.
        sharpness: how completely arithmetic and traffic overlap; larger is more complete.
        cache_start_us, cache_share: start time of writing keys and values to the serving cache, and its share of the
            bandwidth. Causal samples contain this write (`cached`); predictions leave it out.
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
    """Sizes of calls, each of shape (rows,): heads of all samples, queries, keys, head width, kind, and mask bytes."""

    heads: Array
    queries: Array
    keys: Array
    width: Array
    element: Array
    causal: Flags
    backward: Flags
    cached: Flags
    mask: Array

    @classmethod
    def of(cls, calls: pd.DataFrame) -> Shape:
        """Read `B`, `M`, `N`, `K`, and from `attributes` `causal`, `mask` (bytes) and `cached` (samples of serving)."""
        d = Dims(calls)
        queries = d("M")
        mask = np.array(
            [float(attributes.get("mask", 0.0)) for attributes in attributes_of(d)],
            dtype=float,
        )
        return cls(
            d("B"),
            queries,
            d("N", queries),
            d("K"),
            d.element_bytes(),
            d.flag("causal"),
            d.backward(),
            d.flag("cached"),
            mask,
        )

    @property
    def bytes(self) -> Array:
        """Bytes of q, k, v, the output and a mask."""
        return self.element * self.heads * self.width * 2.0 * (self.queries + self.keys) + self.mask


def attention_us(
    c: Constants,
    tiles: tuple[float, float],
    gpu: GpuSpec,
    peak: Array,
    s: Shape,
    keys: Array | float = KEY_MULTIPLE,
) -> Array:
    """Kernel times, shape (rows,).

    Args:
        c: constants of the kernels that the GPU runs.
        tiles: queries per block for heads of width up to 96, and for wider heads.
        gpu: gives the SMs, the bandwidth and L2.
        peak: FLOP per microsecond of the tensor cores for each row, shape (rows,).
        s: sizes of the calls.
        keys: multiple to which a block pads its keys.
    """
    sms = float(max(gpu.sms, 1))
    rows = np.where(s.width <= 96.0, tiles[0], tiles[1])
    per_head = np.ceil(s.queries / rows)
    blocks = s.heads * per_head
    shares = np.log([c.share_64, c.share_80, c.share_128, c.share_256])
    share = np.exp(np.interp(np.log(s.width), np.log(WIDTHS), shares)) * np.where(
        s.causal, 1.0, c.open_gain
    )
    busy = np.minimum(blocks / sms, 1.0)
    rate = peak * share / sms * (1.0 + c.idle_gain * (1.0 - busy))
    per_key = 4.0 * rows * np.ceil(s.width / WIDTH_MULTIPLE) * WIDTH_MULTIPLE / rate
    prologue = np.where(s.causal, c.tile_us, c.open_tile_us)
    longest = prologue + np.ceil(s.keys / keys) * keys * per_key
    mean = prologue + (s.keys / 2.0 + c.diagonal_keys) * per_key
    masked = np.maximum(
        longest, blocks * mean / sms + c.tail * longest * np.clip(blocks / sms - 1.0, 0.0, 1.0)
    )
    smooth, whole = np.maximum(blocks / sms, 1.0), np.ceil(blocks / sms)
    compute = np.where(s.causal, masked, longest * ((1.0 - c.waves) * smooth + c.waves * whole))
    compute = compute * np.where(s.backward, BACKWARD_WORK / BACKWARD_SHARE, 1.0)
    moved = _moving_us(s.bytes * np.where(s.backward, 2.0, 1.0), c.dram_share, c, gpu)
    more, less = np.maximum(compute, moved), np.minimum(compute, moved)
    power = 1.0 + c.sharpness
    total = c.start_us + more * (1.0 + (less / more) ** power) ** (1.0 / power)
    serial = s.heads * s.queries * s.width * s.element / 2.0 * BACKWARD_TRAFFIC
    total = total + np.where(
        s.backward, 2.0 * c.start_us + _moving_us(serial, c.dram_share, c, gpu), 0.0
    )
    return np.asarray(
        total
        + np.where(s.cached, c.cache_start_us + _moving_us(s.bytes, c.cache_share, c, gpu), 0.0)
    )


def _moving_us(size: Array, share: float, c: Constants, gpu: GpuSpec) -> Array:
    """Time of traffic: from L2 if it fits, else from DRAM, with a gradual change around the edge."""
    dram = 1e3 * gpu.peak_dram_gb_per_s() * share
    beyond = np.clip((size / (c.l2_edge * gpu.l2_bytes) - 0.75) / 0.5, 0.0, 1.0)
    return size / dram * (beyond + (1.0 - beyond) / (1.0 + c.l2_gain))


@dataclass(frozen=True)
class FittedAttention:
    """Saved results for one GPU: constants, tiles, error quantiles, and the range of its samples.

    `widths` is the range of head widths; `open` says whether there were rows without a causal mask.
    """

    constants: Constants
    tiles: tuple[float, float]
    quantiles: Quantiles
    widths: tuple[float, float]
    open: bool


@dataclass(frozen=True)
class AttentionModel(KernelModel):
    """Fused attention on `gpu`, with constants fitted on `measured`."""

    gpu: GpuSpec
    measured: GpuSpec
    fitted: FittedAttention

    @property
    def evidence(self) -> str:
        """`pack` on the GPU that was measured, else `transferred`."""
        return "pack" if self.gpu.name == self.measured.name else "transferred"

    def evidence_of(self, calls: pd.DataFrame) -> Texts:
        """Evidence of each row; backward passes and masks are `transferred`, because no GPU has samples of them."""
        d = Dims(calls)
        return np.where(
            d.backward() | d.op_in((MASKED,)) | self._flash2(d), "transferred", self.evidence
        ).astype(object)

    def _flash2(self, d: Dims) -> Flags:
        """Rows of FlashAttention-2 on a GPU whose samples are of FlashAttention-3."""
        return d.op_in((OP,)) & ~d.flag(CHOSEN) & (self.gpu.architecture == "hopper")

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Fused calls of half precision whose sizes are all known."""
        d = Dims(calls)
        sized = np.isfinite(d("B") * d("M") * d("K")) & (d("K") <= MAX_WIDTH)
        return d.op_in((OP, CUDNN, MASKED)) & is_one_of(d.dtype, DTYPES) & sized

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of calls; intervals widen outside the samples' widths and masks, for backward, and on another GPU."""
        shape, figures, d = Shape.of(calls), Physics.of(self.gpu), Dims(calls)
        peak, masked = figures.flop_per_us(d.dtype), d.op_in((MASKED,))
        time = attention_us(self.fitted.constants, self.fitted.tiles, self.gpu, peak, shape)
        older = self._flash2(d)
        if self.gpu.architecture == "hopper":
            soon = attention_us(
                replace(self.fitted.constants, **CUDNN_STARTS), CUDNN_TILES, self.gpu, peak, shape
            )
            time = np.where(shape.cached | masked, time, soon)
        if older.any():
            constants = replace(
                self.fitted.constants, start_us=FLASH2_START_US, idle_gain=FLASH2_IDLE_GAIN
            )
            keys = np.where(shape.width <= WIDTHS[0], *FLASH2_KEYS)
            slower = attention_us(
                constants, FLASH2_TILES, self.gpu, peak * FLASH2_SHARE, shape, keys
            )
            time = np.where(older, slower, time)
        time = time + dropout_us(
            d, figures, np.where(masked, DROPOUT_PER_CLOCK, FLASH_DROPOUT_PER_CLOCK)
        )
        low, high = (np.exp(ends) for ends in self.fitted.quantiles.at(np.log(time)))
        estimate = Estimate(
            time, time, time * low, time * high, self._inside(shape), time * low, time * high
        )
        if self.gpu.name != self.measured.name:
            estimate = estimate.widen(TRANSFERRED_SPREAD)
        for rows, spread in (
            (shape.backward, BACKWARD_SPREAD),
            (~estimate.inside, OUTSIDE_SPREAD),
            (masked, MASKED_SPREAD),
            (older, OUTSIDE_SPREAD),
        ):
            estimate = merge(estimate, estimate.widen(spread).rows(rows), rows)
        return estimate

    def _inside(self, shape: Shape) -> Flags:
        low, high = self.fitted.widths
        return (shape.width >= low) & (shape.width <= high) & (shape.causal | self.fitted.open)
