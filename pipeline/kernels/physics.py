"""Kernel times from physics: roofline with waves, bandwidth curves, embedding traffic, links and collectives.

They are the fallback for every family without a fitted model. They are also the prior for kernels that are shorter than
the latency floor of the samples. Times are kernel times, without the launch and without the latency floor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import sustained_dram_gb_per_s
from pipeline.kernels import kernel_waits as waits
from pipeline.kernels.convolutions import (
    gradient_us,
    grouped,
    grouped_us,
    spread,
    volumes,
    winograd,
)
from pipeline.kernels.embedding_lookups import (
    ROW_LATENCY_US,
    distinct_weight_bytes,
    forward_traffic,
    lookup_us,
    small_width_factor,
)
from pipeline.kernels.estimate import SMALLEST_KERNEL_US, BandwidthCurve
from pipeline.kernels.families import Law, family, work_of
from pipeline.kernels.tensor_cores import on_tensor_cores, tensor_us
from pipeline.kernels.work import Array, Dims, Work, implicit_product, values_of

TILE = 64.0
"""Edge of a thread block's output tile in the physical model of matrix products, in elements: the smallest common edge
in the public kernel names. It suits small products, where waves matter."""

MIN_REDUCTION = 256.0
"""Minimum reduction length of one block when the library splits a long reduction over blocks (split-K)."""

MIN_PRODUCT_REDUCTION = 128.0
"""The same minimum for matrix products, whose blocks are sliced as well (V100 DLRM trace)."""

LINK_START_US = 1.5
"""Duration of a tiny host copy on the stream, microseconds. The V100 and A100 DLRM traces show 1 to 2 us."""

PAGEABLE_GB_PER_S = 11.1
"""Largest rate of a pageable copy, whatever the link: the CPU copies it to a pinned buffer first. From batches of images
in traces of a V100 (11.1 GB/s, PCIe 3) and an A100 (11.2, PCIe 4). Memory that is read for the first time gives 3.5 to 6.5."""

STAGED_BYTES = 2.0**20
"""Bytes that the driver stages before a pageable copy starts (measured on an H100 with CUDA 13; an A100 trace shows none)."""

COLLECTIVE_START_US = 20.0
"""Latency of a small NCCL collective, microseconds. The V100 and A100 DLRM traces show 17 us and more."""

SORT_PASSES = 16.0
"""Read-and-write passes of a radix sort of 64-bit keys, 8 bits a pass (CUB's onesweep); each also moves the keys' positions."""

WHOLE_SORTS = ("sort", "unique", "topk", "")
"""Ops that include all passes of a sort. The other ops of the family (histogram, scan, one pass) are single kernels."""

BLOCK_SORTS = ("radix_sort_single_tile",)
"""Sorts that run in a single thread block."""

PHYSICS_SPREAD = {
    Law.MOVEMENT: 1.45, Law.COMPUTE: 1.6, Law.LINK: 1.5, Law.EMBEDDING: 1.6, Law.COLLECTIVE: 2.5,
    Law.SORT: 2.0,
}  # fmt: skip
"""Factor between a formula's time and the ends of its p10-p90 interval, which holds about 80 % of the kernels of public
traces (docs/kernels.md)."""

L2_OCTAVES = 0.3
"""Width of the edge of L2 in the traffic of a kernel, octaves (measured on an H100)."""

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp64", "fp64_tensor")
"""Dtypes with a rate of their own; `fp64_tensor` is that of matrix products in fp64."""


@dataclass(frozen=True)
class Physics:
    """The figures of one GPU that the formulas need: from its spec file, or with a bandwidth curve fitted on samples.

    `memory` is the bandwidth curve of DRAM, and `link` that of PCIe. `evidence` names the source of the times that use
    `memory`. `cached` is the curve of tensors that a kernel before wrote; a fitted `memory` contains it.
    """

    gpu: GpuSpec
    memory: BandwidthCurve
    link: BandwidthCurve
    l2_gb_per_s: float
    evidence: str = "roofline"
    cached: BandwidthCurve | None = None

    def moving_us(self, size: Array) -> Array:
        """Time of the traffic of kernels that only move data, us: over L2 where it fits, if that is known."""
        return (self.cached or self.memory).moving_us(size)

    def streaming(self) -> Physics:
        """The same figures with the architecture's sustained streaming bandwidth, if it exceeds `peak_dram_gb_per_s`, and L2's.

        Tensors that a kernel before wrote, and the result, are in L2 as far as they fit. What it writes there takes the place of
        earlier results, which go to DRAM: traffic in L2 is at most twice as fast as in DRAM.

        It is not the default, because saved models hold corrections of formulas that do not use it.
        """
        peak = max(self.gpu.peak_dram_gb_per_s(), sustained_dram_gb_per_s(self.gpu))
        cached = min(max(self.l2_gb_per_s, peak), 2.0 * peak)
        edge = float(np.log2(max(self.gpu.l2_bytes, 1.0)))
        curve = BandwidthCurve(SMALLEST_KERNEL_US, peak, cached, edge, L2_OCTAVES)
        return (
            replace(self, memory=BandwidthCurve.flat(peak), cached=curve)
            if self.gpu.limits is not None
            else self
        )

    @classmethod
    def of(cls, gpu: GpuSpec) -> Physics:
        """Figures from the GPU's spec file only."""
        memory = BandwidthCurve.flat(gpu.peak_dram_gb_per_s())
        link = BandwidthCurve.flat(max(gpu.pcie_gb_per_s, 1.0), LINK_START_US)
        return cls(gpu, memory, link, gpu.peak_l2_gb_per_s())

    def calibrate(self, memory: BandwidthCurve, evidence: str) -> Physics:
        """The same figures with a fitted bandwidth curve of device memory, and the evidence for it."""
        return replace(self, memory=memory, evidence=evidence)

    def kernel_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Kernel times of calls of one family, us, shape (rows,); NaN where neither dims nor bytes are known."""
        entry, d, work = family(name), Dims(calls), work_of(name, calls)
        if entry.law is Law.COMPUTE:
            shortest = MIN_PRODUCT_REDUCTION if name in ("gemm", "bmm") else MIN_REDUCTION
            computed = self._compute(name, self._computed(name, d), work, shortest)
            if name == "attention":
                tiles_us = np.where(
                    d.text("dtype", "fp32") == "fp32", waits.fp32_attention_us(d, self.gpu), 0.0
                )
                return np.maximum(computed, self.start_us(name) + tiles_us)
            if name == "bmm":
                computed = np.fmin(computed, self.thin_products_us(d, work))
            return self._convolution(name, calls, computed, work)
        if entry.law is Law.EMBEDDING:
            return self._lookups(name, d, work)
        if entry.law is Law.LINK:
            crossing = np.maximum(work.read, work.written)  # each byte crosses the link once
            staged = np.maximum(crossing - STAGED_BYTES * waits.is_recent(self.gpu), 0.0) / (
                1e3 * PAGEABLE_GB_PER_S
            )
            staged = np.where(d.op_in(("pageable",)), staged, 0.0)
            return self.start_us(name) + np.maximum(self.link.moving_us(crossing), staged)
        if entry.law is Law.COLLECTIVE:
            return self._collective(d, work)
        if entry.law is Law.SORT:
            whole = d.op_in(WHOLE_SORTS)
            start = np.where(
                whole | d.op_in(BLOCK_SORTS), self.start_us(name), self.start_us("other")
            )
            return start + self.memory.moving_us(np.where(whole, SORT_PASSES, 1.0) * work.bytes)
        if name in waits.IMAGE_FAMILIES and self.gpu.limits is not None:
            return self.start_us(name) + waits.image_us(
                name, d, self.moving_us(entry.passes * work.bytes), self.gpu
            )
        if name == "loss":
            return self._movement(name, d, entry.passes, work) + waits.loss_waits_us(d, self.gpu)
        if name == "layer_norm":
            rows_us = waits.norm_waits_us(
                d, self.gpu, self.moving_us(work.bytes), self.start_us(name)
            )
            return self._movement(name, d, entry.passes, work) + rows_us * (
                self.gpu.limits is not None
            )
        if name == "reduction":  # one pass of dependent additions, no faster from L2
            return (
                self.start_us(name)
                + self.memory.moving_us(work.bytes)
                + waits.reduction_us(d, work, self.gpu)
            )
        if name == "optimizer" and self.gpu.limits is not None:
            chunks_us = self.start_us(name) + waits.chunk_us(d, self.gpu, work.bytes)
            return np.maximum(self._movement(name, d, entry.passes, work), chunks_us)
        return np.maximum(
            self._movement(name, d, entry.passes, work),
            waits.by_element_us(name, d, work, self.gpu, self.start_us(name)),
        )

    def clocks_per_us(self) -> float:
        """Clock cycles of all SMs in a microsecond."""
        return max(self.gpu.sms, 1) * self.gpu.clock_mhz

    def reference_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Reference times that learned models correct, us, shape (rows,).

        They are the times of `kernel_us` without what the public traces show about short kernels. Saved models depend on
        them. A change of these times needs a new `features.VERSION`.
        """
        if family(name).law is Law.COMPUTE:
            times = self._compute(name, Dims(calls), work_of(name, calls), MIN_REDUCTION)
        elif name in waits.PLAIN_REFERENCES:
            times = self._movement(name, Dims(calls), family(name).passes, work_of(name, calls))
        elif family(name).law is Law.EMBEDDING:
            times = self._embedding(name, Dims(calls), work_of(name, calls))
        else:
            times = self.kernel_us(name, calls)
        return times - self.start_us(name) + self.memory.start_us

    def start_us(self, name: str) -> float:
        """Duration of a family's kernel at negligible size, us; for a CPU, the start time of the memory curve."""
        if self.gpu.limits is None:
            return self.memory.start_us
        return waits.start_us(name, self.gpu, self.memory.start_us)

    def _movement(self, name: str, d: Dims, passes: float, work: Work) -> Array:
        """Time of memory traffic, or of arithmetic outside tensor cores where that takes longer."""
        peak = np.where(
            d.text("dtype") == "fp64",
            self.gpu.peak_gflop_per_s("fp64"),
            self.gpu.peak_gflop_per_s(),
        )
        arithmetic = work.flops / peak / 1e3
        return np.asarray(
            self.start_us(name) + np.maximum(self.moving_us(passes * work.bytes), arithmetic)
        )

    def _compute(self, name: str, d: Dims, work: Work, shortest: float) -> Array:
        """Roofline time whose compute part counts whole waves of tiles, or FLOPs over peak without tile counts.

        A long reduction is split over idle SMs, but no part is shorter than `shortest`.
        """
        tiles, depth = tile_counts(name, d)
        peak = self.peak_flop_per_us(d)
        sms = max(self.gpu.sms, 1)
        split = np.clip(
            np.floor(sms / np.maximum(tiles, 1.0)), 1.0, np.maximum(depth / shortest, 1.0)
        )
        waves = np.ceil(tiles * split / sms)
        compute = waves * 2.0 * TILE * TILE * depth / split / (peak / sms)
        compute = np.where(
            np.isfinite(compute), np.maximum(compute, work.flops / peak), work.flops / peak
        )
        return np.asarray(
            self.start_us(name) + np.maximum(compute, self.memory.moving_us(work.bytes))
        )

    def spread(self, name: str, calls: pd.DataFrame) -> Array | float:
        """Factor between a formula's time and the ends of its p10-p90 interval, of the family or shape (rows,)."""
        usual = PHYSICS_SPREAD[family(name).law]
        if not name.startswith("conv2d") or self.gpu.limits is None:
            return usual
        return spread(Dims(calls), self.gpu, usual)

    def _convolution(self, name: str, calls: pd.DataFrame, plain: Array, work: Work) -> Array:
        """Convolution times, from `plain`: the times of matrix products with the same arithmetic.

        Gradients on a GPU, convolutions on tensor cores and those with several groups have formulas of their own. Where TF32 is
        allowed, the library may take its fp32 kernel of a volume (of an image, `derived_calls` takes the shorter).
        """
        if not name.startswith("conv2d"):
            return plain
        d = Dims(calls)
        rows, in_groups = on_tensor_cores(d, self.gpu), grouped(d)
        # no kernel but Winograd's beats plain arithmetic, also where the measured peak is that of a board with a faster clock
        double, direct = (
            d.text("dtype") == "fp64",
            ~(rows | winograd(d)) & (self.gpu.limits is not None),
        )
        rate = np.select(
            [double, direct], [self.gpu.peak_gflop_per_s("fp64"), self.gpu.fp32_gflop_per_s], np.inf
        )
        arithmetic = self.start_us(name) + work.flops / (1e3 * rate)
        if self.gpu.limits is not None:
            plain = np.fmax(plain, arithmetic)
            plain = self.gradient_us(name, calls, plain, plain)
        tensor = np.full(d.rows, np.inf)
        if rows.any():
            tensor[rows] = tensor_us(
                name, Dims(calls[rows]), self.gpu, self.memory, self.l2_gb_per_s
            )
            has_dims = rows & np.isfinite(tensor)
            plain = np.where(has_dims, self.start_us(name) + tensor, plain)
        if in_groups.any() and self.gpu.limits is not None:
            part = Dims(calls[in_groups])
            fp32 = np.full(part.rows, 1e3 * self.gpu.peak_gflop_per_s())
            moving = self.memory.moving_us(work.bytes[in_groups])
            times = grouped_us(name, part, self.gpu, moving, fp32, tensor[in_groups])
            has_dims = np.isfinite(times)
            plain[np.flatnonzero(in_groups)[has_dims]] = self.start_us(name) + times[has_dims]
        times = np.fmax(plain, arithmetic)
        if len(free := np.flatnonzero(rows & volumes(d) & (d.text("dtype") == "tf32"))):
            times[free] = np.fmin(
                times[free], self.kernel_us(name, calls.iloc[free].assign(dtype="fp32"))
            )
        return times

    def least_us(self, name: str, calls: pd.DataFrame) -> Array:
        """Arithmetic at the datasheet's peak where nothing was measured (fp64, fp32 volumes), us, shape (rows,); else 0."""
        if family(name).law is not Law.COMPUTE:
            return np.zeros(len(calls))
        d = Dims(calls)
        dtype = d.text("dtype", "fp32")
        bounded = (dtype == "fp64") | (name.startswith("conv2d") & volumes(d) & (dtype == "fp32"))
        if not bounded.any():
            return np.zeros(d.rows)
        rate = np.where(
            dtype == "fp64", *(1e3 * self.gpu.datasheet_gflop_per_s(of) for of in ("fp64", "fp32"))
        )
        return np.where(bounded, np.nan_to_num(work_of(name, calls).flops) / rate, 0.0)

    def gradient_us(
        self, name: str, calls: pd.DataFrame, kernel_us: Array, product_us: Array | None = None
    ) -> Array:
        """Times of fp32 gradients, from the times of forward convolutions or products with the same arithmetic.

        See `convolutions.gradient_us`.
        """
        d = Dims(calls)
        if product_us is None:
            product_us = self._compute(name, d, work_of(name, calls), MIN_REDUCTION)
        return gradient_us(
            name,
            d,
            kernel_us,
            product_us,
            self.peak_flop_per_us(self._computed(name, d)),
            self.memory,
        )

    def _computed(self, name: str, d: Dims) -> Dims:
        """Calls with the dtype whose throughput limits them.

        Before tensor cores, cuDNN computes convolutions of half-precision images in fp32 (`ConvShared.cpp` asks for
        it), also where the GPU has a faster fp16 rate (P100). cuBLAS multiplies matrices in fp64 on tensor cores that can.
        """
        dtype, products = d.text("dtype", "fp32"), not name.startswith("conv2d")
        if products and (dtype == "fp64").any():
            return Dims(d.table.assign(computed=np.where(dtype == "fp64", "fp64_tensor", dtype)))
        if products or self.gpu.limits is None or self.gpu.compute_capability >= 7.0:
            return d
        return Dims(d.table.assign(computed=np.where(dtype == "fp64", "fp64", "fp32")))

    def thin_products_us(self, d: Dims, work: Work) -> Array:
        """Times of many small fp32 products by `kernel_waits.thin_products_us`, us, shape (rows,); NaN for other dtypes."""
        tiles_us = waits.thin_products_us(d, self.gpu, self.peak_flop_per_us(d))
        longer = self.start_us("bmm") + np.maximum(tiles_us, self.moving_us(work.bytes))
        fp32 = (d.text("dtype", "fp32") == "fp32") & (self.gpu.limits is not None)
        return np.where(fp32, longer, np.nan)

    def peak_flop_per_us(self, d: Dims) -> Array:
        """Attainable throughput for the dtype of each row, FLOP per microsecond."""
        peaks = {dtype: 1e3 * self.gpu.peak_gflop_per_s(dtype) for dtype in DTYPES}
        return values_of(
            d.text("computed") if "computed" in d.table else d.text("dtype", "fp32"),
            peaks,
            peaks["fp32"],
        )

    def _lookups(self, name: str, d: Dims, work: Work) -> Array:
        """Times of lookups and their gradients: `lookup_us` on a GPU, and the model of Lin et al. on a CPU."""
        if self.gpu.limits is None:
            return self._embedding(name, d, work)
        time = lookup_us(name, d, self.gpu, self.memory.moving_us, self.l2_gb_per_s)
        time = np.where(np.isfinite(time), time, self.memory.moving_us(work.bytes))
        gathers = d.op_in(("sparse", "gather", "embedding", "index_select"))
        bags = d.op_in(("bag", "embedding_bag")) & (name == "embedding_forward")
        looked_up = work.flops / np.where(d.backward(), 2.0, 1.0)  # elements of all rows
        rows_us, bags_us = (
            waits.gathered_us(looked_up / d("D"), self.gpu),
            waits.bags_us(d, looked_up, self.gpu),
        )
        loads_us = np.select([gathers, bags], [rows_us, bags_us], 0.0)
        start = np.where(gathers, self.start_us("other"), self.start_us(name))
        return np.asarray(start + np.maximum(time, loads_us))

    def _embedding(self, name: str, d: Dims, work: Work) -> Array:
        """Enhanced model of Lin et al.: the larger of DRAM time (cold traffic) and L2 time (hits).

        Narrow rows are slower.
        """
        traffic = forward_traffic(d, self.gpu)
        cold = traffic.fixed + (1.0 - traffic.hits) * traffic.weights
        warm = traffic.hits * traffic.weights
        if name == "embedding_backward":
            cold, warm = self._backward_traffic(d, traffic.fixed, traffic.weights)
        dram = self.memory.moving_us(cold)
        time = np.maximum(dram, warm / (1e3 * self.l2_gb_per_s)) * small_width_factor(traffic.width)
        if name == "embedding_forward" and self.gpu.limits is not None:
            time = np.maximum(time, ROW_LATENCY_US * traffic.longest)
        return self.start_us(name) + np.where(
            np.isfinite(time), time, self.memory.moving_us(work.bytes)
        )

    def _backward_traffic(self, d: Dims, fixed: Array, weights: Array) -> tuple[Array, Array]:
        """(DRAM, L2) bytes of a backward. If the indices are sorted, each distinct row is read and written once.

        The output gradient is read once per lookup, and repeated reads of one output row hit L2. Without sorting
        (`dense`, atomic adds) every lookup reads and writes its row, and repeats stay within L2.
        """
        distinct = distinct_weight_bytes(d)
        sparse = d.op_in(("sparse",))
        cold = np.where(sparse, fixed + weights, fixed + 2.0 * distinct)
        warm = np.where(sparse, weights, weights + np.maximum(weights - distinct, 0.0))
        return cold, warm

    def _collective(self, d: Dims, work: Work) -> Array:
        """Times of collectives: start plus size x bus factor / bandwidth of NVLink, or of PCIe without NVLink."""
        ranks, factor = bus_factor(d)
        bus = self.gpu.nvlink_gb_per_s or self.gpu.pcie_gb_per_s
        size = np.maximum(work.read, work.written)
        time = COLLECTIVE_START_US + size * factor / (1e3 * max(bus, 1.0))
        # with one rank, the library copies within the device or does nothing
        return np.where(ranks <= 1.0, self.memory.time_us(2.0 * size), time)


def bus_factor(d: Dims) -> tuple[Array, Array]:
    """(ranks, bytes on a rank's bus per byte of its buffer) of collectives, each of shape (rows,).

    With n ranks the factor is 2 (n - 1) / n for all-reduce, 1 for broadcast, reduce and send/receive, and (n - 1) / n
    for all others.
    """
    ranks = np.maximum(d("ranks", 1.0), 1.0)
    op = pd.Series(d.text("op")).str.lower()
    share = (ranks - 1.0) / ranks
    factor = np.where(op.str.contains("all_reduce|allreduce"), 2.0 * share, share)
    return ranks, np.where(op.isin(["broadcast", "reduce", "send_recv"]), 1.0, factor)


def tile_counts(name: str, d: Dims) -> tuple[Array, Array]:
    """(number of TILE x TILE output tiles, reduction length) of each call; NaN for families without tiles."""
    if name in ("gemm", "bmm"):
        b, m, depth, k = d("B", 1.0), d("M"), d("N"), d("K")
        return b * np.ceil(m / TILE) * np.ceil(k / TILE), depth
    if name.startswith("conv2d"):
        rows, depth, columns, groups = implicit_product(name, d)
        return groups * np.ceil(rows / TILE) * np.ceil(columns / TILE), depth
    nothing = np.full(d.rows, np.nan)
    return nothing, nothing


def raised_to_min_duration(
    kernel_us: Array, family: str, gpu: GpuSpec, measured_us: Array | None = None
) -> Array:
    """Kernel times raised to the duration of a family's kernel at negligible size (`physics.START_US`).

    Latencies above a host's floor do not show how long the shortest kernels take, and scaling has no lower limit. All
    transfer methods raise shorter predictions here.

    Args:
        kernel_us: predicted times, shape (rows,).
        family: a kernel family.
        gpu: the GPU of the prediction; a CPU starts no kernels, so its times are returned unchanged.
        measured_us: times of the same calls on another GPU; a call that was shorter there may be as short here.
    """
    if gpu.limits is None:
        return kernel_us
    start = np.full(len(kernel_us), Physics.of(gpu).start_us(family))
    return np.asarray(
        np.maximum(kernel_us, start if measured_us is None else np.minimum(start, measured_us))
    )
