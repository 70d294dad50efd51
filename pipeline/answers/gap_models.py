"""Models that fill the gaps of a GPU's own: products on tensor cores, fused attention, and collectives.

fp32 samples carry no information about tensor cores (bf16, fp16, TF32). There are two models of their products:

- `packs/half/<GPU>` holds a model of bf16 products, if they were measured on the GPU or on one with the same chip. It has
  priority over derived estimates.
- Elsewhere the cross-GPU model predicts (`pipeline.transfer`).

fp16 runs at the same rate through the same kernels and is predicted as bf16. The time of TF32 is that of bf16 times the ratio
that the cross-GPU model gives.

Which fused attention kernel runs depends on the GPU:

- Compute capability 8 and 12: PyTorch's flash backend (FlashAttention-2).
- Compute capability 9 and 10: cuDNN's kernel, which current PyTorch prefers there. docs/kernels.md states the version
  and the difference.
- GPUs older than Ampere: neither. There, and in fp32, the formulas of physics predict attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Flags, Texts
from pipeline.families.dims import Dims, is_one_of
from pipeline.families.tensor_cores import HALF_DTYPES, LAUNCH_CYCLES
from pipeline.families.tensor_products import (
    by_element_us,
    misaligned,
    on_tensor_cores_with_dims,
    thin_products_us,
)
from pipeline.hardware.clusters import Cluster
from pipeline.hardware.find_gpu import load_gpu, same_chip_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.collective_bandwidth import FAMILY as COLLECTIVE
from pipeline.kernels.collective_bandwidth import collective_model
from pipeline.kernels.estimate import Estimate, KernelModel, converted, merge
from pipeline.kernels.family_model import FittedModel
from pipeline.kernels.fused_attention import FAMILY as ATTENTION
from pipeline.kernels.fused_attention import AttentionModel, FittedAttention
from pipeline.kernels.physics import Physics
from pipeline.model_files import (
    HALF,
    SHARED,
    TRANSFER,
    list_packs,
    pack_models,
    read_by_gpu,
    shipped_file,
)
from pipeline.transfer.shipped_models import (
    TENSOR_FILE,
    kernel_us,
    sampled_architectures,
    tensor_model,
    time_ratio,
)


@dataclass(frozen=True)
class FallbackModel(KernelModel):
    """Two models of one family. `first` predicts the rows that it covers, and `other` the rest."""

    first: KernelModel
    other: KernelModel

    @property
    def evidence(self) -> str:
        """Evidence of rows that neither model covers: that of `first`."""
        return self.first.evidence

    def evidence_of(self, calls: pd.DataFrame) -> Texts:
        """Evidence of each row, shape (rows,)."""
        first, other = (model.evidence_of(calls) for model in (self.first, self.other))
        return np.where(self._others(calls), other, first).astype(object)

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Rows that either model covers."""
        return np.asarray(self.first.covers(calls) | self.other.covers(calls))

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Predict each row by its model. Rows that neither covers are predicted by `first`."""
        other = self._others(calls)
        if other.all() and len(other):
            return self.other.predict(calls)
        kernel_times = self.first.predict(calls)
        return (
            merge(kernel_times, self.other.predict(calls[other]), other)
            if other.any()
            else kernel_times
        )

    def _others(self, calls: pd.DataFrame) -> Flags:
        return np.asarray(~self.first.covers(calls) & self.other.covers(calls))


def with_fallback(
    models: Mapping[str, KernelModel], others: Mapping[str, KernelModel]
) -> dict[str, KernelModel]:
    """Models by family. Each model of `others` predicts the calls that the family's own model does not cover, if it has
    one.
    """
    return {
        **models,
        **{
            name: FallbackModel(models[name], model) if name in models else model
            for name, model in others.items()
        },
    }


FAMILIES = ("gemm", "bmm")
"""Families that run on tensor cores. A batch is treated as more tiles of one product."""

BATCHED = "bmm"
"""The family of batched products."""

UNSAMPLED_ARCHITECTURE_SPREAD = 1.25
"""Factor on the interval, up and down, for architectures without a measured GPU: Volta, Turing and older libraries'
kernels."""

UNSAMPLED_SPREAD = 1.2
"""Factor on the interval, up and down, for products without samples: TF32 and batched products."""

MISALIGNED_SPREAD = 1.3
"""Factor on the interval, up and down, for matrices whose rows in memory are not aligned. In the A100 DLRM trace such
products take 1.1 to 2.6 times as long."""


def among_others(estimate: Estimate, products: pd.DataFrame, gpu: GpuSpec) -> Estimate:
    """Products among other kernels (`LAUNCH_CYCLES`), thin ones, and misaligned operands that move element by element."""
    launch = np.where(Dims(products).flag("looped"), 0.0, LAUNCH_CYCLES / gpu.clock_mhz)
    small = thin_products_us(Dims(products), gpu)
    slower = (
        np.where(
            np.isfinite(small), small, np.maximum(estimate.kernel, by_element_us(products, gpu))
        )
        + launch
    )
    return estimate.scale(slower / estimate.kernel).widen(1.0 + LAUNCH_SPREAD * launch / slower)


LAUNCH_SPREAD = 0.6
"""Uncertainty of `LAUNCH_CYCLES`, as a share of it: the H100 traces show 1.4 to 5.2 us for 2.5."""


@dataclass(frozen=True)
class TensorCoreTransferModel(KernelModel):
    """The cross-GPU model with the interface of a family's model. `like` names a measured GPU with the same chip, if
    any.
    """

    gpu: GpuSpec
    family: str
    like: str | None = None
    evidence: str = "transferred"

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Products that the GPU's tensor cores compute."""
        return on_tensor_cores_with_dims(calls, self.gpu)

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Kernel times. The latency is equal, because the samples contain neither launch nor floor."""
        plain, model = calls if self.family == BATCHED else calls.assign(B=1.0), tensor_model()
        assert model is not None
        correction = None if self.like is None else model.own_correction(self.like)
        kernel_times = kernel_us(model, plain, self.gpu, correction)
        low, high = kernel_times * np.exp(model.log_p10), kernel_times * np.exp(model.log_p90)
        inside = np.ones(len(calls), dtype=bool)
        estimate = Estimate(kernel_times, kernel_times, low, high, inside, low, high)
        extra = np.where(
            is_one_of(Dims(calls).text("dtype"), ("tf32",)) | (self.family == BATCHED),
            UNSAMPLED_SPREAD,
            1.0,
        )
        extra = extra * np.where(misaligned(plain), MISALIGNED_SPREAD, 1.0)
        if self.gpu.architecture not in sampled_architectures(tuple(model.gpu_corrections)):
            extra = extra * UNSAMPLED_ARCHITECTURE_SPREAD
        return among_others(estimate, plain, self.gpu).widen(extra)


def tensor_core_transfer_models(
    gpu: GpuSpec, like: str | None = None
) -> dict[str, TensorCoreTransferModel]:
    """The cross-GPU model by family, read at its first use; empty for a device without specified limits, or if no model
    ships.
    """
    ships = gpu.limits is not None and shipped_file(TRANSFER, TENSOR_FILE) is not None
    return {name: TensorCoreTransferModel(gpu, name, like) for name in FAMILIES} if ships else {}


FAMILY = "gemm"
"""The family of the measured bf16 products."""

ALIGNED_ELEMENTS = 8.0
"""Number of half-precision elements to which the rows of a matrix in memory must be aligned."""

SIBLING_SPREAD = 1.2
"""Factor by which the interval grows, up and down, on another GPU with the same chip: clocks and power limits
differ."""


@dataclass(frozen=True)
class TensorCoreGemmModel(KernelModel):
    """A measured GPU's bf16 model. The cross-GPU model scales it to TF32 and to another GPU with the same chip."""

    gpu: GpuSpec
    measured: GpuSpec
    base: KernelModel

    @property
    def evidence(self) -> str:
        """The evidence of the model, or `transferred` on a GPU that was not measured itself."""
        return self.base.evidence if self.gpu.name == self.measured.name else "transferred"

    def evidence_of(self, calls: pd.DataFrame) -> Texts:
        """Evidence of each row, shape (rows,). TF32 is `transferred`, because no TF32 product was measured."""
        return np.where(self._half(calls), self.evidence, "transferred").astype(object)

    def covers(self, calls: pd.DataFrame) -> Flags:
        """Products on tensor cores whose dims are all known."""
        return on_tensor_cores_with_dims(calls, self.gpu) & self.base.covers(
            calls.assign(dtype="bf16")
        )

    def predict(self, calls: pd.DataFrame) -> Estimate:
        """Times of products of these sizes."""
        # the samples are forward passes of linear layers in bf16 with aligned rows in memory
        uneven, uneven_half = misaligned(calls), misaligned(calls.assign(dtype="bf16"))
        d = Dims(calls)
        even = {
            name: np.where(
                uneven_half, ALIGNED_ELEMENTS * np.ceil(d(name) / ALIGNED_ELEMENTS), d(name)
            )
            for name in ("N", "K")
        }
        stored = [name for name in ("trans_a", "trans_b") if name in calls]
        plain = calls.drop(columns=stored).assign(dtype="bf16", phase="forward", B=1.0, **even)
        kernel_times = self.base.predict(plain)
        half, sister = self._half(calls), self.gpu.name != self.measured.name
        moved = ~half | uneven | sister
        if not moved.any():
            return among_others(kernel_times, calls, self.gpu)
        ratio = time_ratio(calls.assign(B=1.0), self.gpu, plain, self.measured)
        if ratio is None:
            # without the cross-GPU model: scaled by the ratio of the peaks
            here, there = (
                Physics.of(gpu).flop_per_us(Dims(rows).dtype)
                for gpu, rows in ((self.gpu, calls), (self.measured, plain))
            )
            ratio = there / here
        spread = np.where(half, 1.0, UNSAMPLED_SPREAD) * np.where(uneven, MISALIGNED_SPREAD, 1.0)
        moved_times = kernel_times.scale(np.where(moved, ratio, 1.0))
        return among_others(moved_times, calls, self.gpu).widen(
            spread * (SIBLING_SPREAD if sister else 1.0)
        )

    def _half(self, calls: pd.DataFrame) -> Flags:
        return is_one_of(Dims(calls).text("dtype", "fp32"), HALF_DTYPES)


def tensor_core_gemm_model(gpu: GpuSpec) -> TensorCoreGemmModel | None:
    """The bf16 model for a GPU: its own, else that of a GPU with the same chip; None if there is neither.

    Raises:
        PackError: the pack is damaged.
    """
    names = list_packs(HALF)
    measured = load_gpu(gpu.name) if gpu.name in names else same_chip_gpu(gpu, names)
    if measured is None:
        return None
    folder: Path = pack_models(f"{HALF}/{measured.name}") / FAMILY
    return TensorCoreGemmModel(gpu, measured, FittedModel.load(folder, measured))


def with_tensor_core_gemm(
    gpu: GpuSpec, models: Mapping[str, KernelModel]
) -> dict[str, KernelModel]:
    """Models of a GPU, with tensor-core products added for calls that its own models of these families do not cover.

    Raises:
        PackError: the pack is damaged.
    """
    half = tensor_core_gemm_model(gpu)
    products: dict[str, KernelModel] = dict(
        tensor_core_transfer_models(gpu, None if half is None else half.measured.name)
    )
    if half is not None:
        products[FAMILY] = half
    return with_fallback(models, products)


FILE = "attention.json"
"""Name of the file of constants in the shared pack."""


@lru_cache(maxsize=4)
def read_fitted(path: Path) -> dict[str, FittedAttention]:
    """The fitted constants, by GPU.

    Raises:
        PackError: the file is damaged or of another format.
    """
    return read_by_gpu(path, partial(converted, kind=FittedAttention))


def kernel_of(gpu: GpuSpec) -> str | None:
    """The fused kernel that PyTorch runs on a GPU: `flash2`, `cudnn`, or None (before Ampere, or not an NVIDIA GPU)."""
    return gpu.generation.fused_attention


def nearest(gpu: GpuSpec, names: Mapping[str, Any]) -> GpuSpec | None:
    """The measured GPU with the same kernels that is nearest in compute capability, then in bandwidth; None if there is
    none.
    """
    kind = kernel_of(gpu)
    specs = [spec for spec in map(load_gpu, names) if kind is not None and kernel_of(spec) == kind]

    def distance(spec: GpuSpec) -> tuple[float, float]:
        bandwidth = abs(float(np.log(spec.dram_gb_per_s / gpu.dram_gb_per_s)))
        return round(abs(spec.compute_capability - gpu.compute_capability), 3), bandwidth

    return min(specs, key=distance, default=None)


def attention_model(gpu: GpuSpec) -> AttentionModel | None:
    """The shipped model for a GPU: its own, else that of the nearest GPU with the same kernels; None if there is none.

    Raises:
        PackError: the shipped file is damaged.
    """
    if gpu.limits is None or kernel_of(gpu) is None or (path := shipped_file(SHARED, FILE)) is None:
        return None
    fitted = read_fitted(path)
    measured = load_gpu(gpu.name) if gpu.name in fitted else nearest(gpu, fitted)
    return None if measured is None else AttentionModel(gpu, measured, fitted[measured.name])


GAP_FAMILIES = (*FAMILIES, ATTENTION, COLLECTIVE)
"""Families with such models."""


def with_gaps_filled(
    gpu: GpuSpec, models: Mapping[str, KernelModel], cluster: Cluster | None = None
) -> Mapping[str, KernelModel]:
    """Models of a GPU, with others for calls of `GAP_FAMILIES` that its own do not cover.

    Raises:
        PackError: a shipped file is damaged.
    """
    others, collectives, attention = (
        dict(models),
        collective_model(gpu, cluster),
        attention_model(gpu),
    )
    if collectives is not None:
        others.setdefault(COLLECTIVE, collectives)
    return with_fallback(
        with_tensor_core_gemm(gpu, others), {} if attention is None else {ATTENTION: attention}
    )
