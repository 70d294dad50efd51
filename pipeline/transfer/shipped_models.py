"""Kernel times on GPUs without samples: the shipped utilisation models, and that of products on tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags
from pipeline.families import FAMILIES
from pipeline.families.convolutions import sampled_kind
from pipeline.families.dims import Dims, is_one_of
from pipeline.families.row_wise import narrow_rows_us, unaligned_rows_us
from pipeline.families.tensor_cores import HALF_DTYPES
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.physics import Physics, raised_to_min_duration
from pipeline.model_files import TRANSFER, shipped_file
from pipeline.transfer.gpu_features import COVERED_FAMILIES
from pipeline.transfer.output_tiles import FAMILY as TENSOR
from pipeline.transfer.probes import Calibration
from pipeline.transfer.utilisation import Correction, UtilisationModel, load_cached

HALF_FAMILIES = ("softmax", "layer_norm")
"""Families whose cross-GPU models also predict half precision."""

HALF_LOG_SPREAD = 0.3
"""Log factor by which their intervals grow: no half-precision row was sampled."""

VECTORISED_NORM_SHARE = 0.63
"""Start of PyTorch's vectorised layer norm, over that of the two kernels that ran before (A100 trace): 3.06 us on an H100."""

HALF_NORM_SHARE = 0.86
"""Instructions of layer norm in half precision over those in fp32, which load half as many elements at once. From H100
traces (ViT 0.87, TimeSformer 0.84)."""

TENSOR_FILE = f"{TENSOR}.safetensors"
"""Name of the file of products on tensor cores."""

COLUMNS = ("predicted_us", "kernel_us", "p10_us", "p90_us")


def load_models() -> dict[str, UtilisationModel]:
    """The shipped cross-GPU models by family; each file is read once per process.

    Raises:
        PackError: a file is damaged.
    """
    files = {name: shipped_file(TRANSFER, f"{name}.safetensors") for name in COVERED_FAMILIES}
    return {name: load_cached(path) for name, path in files.items() if path is not None}


def covered(calls: pd.DataFrame) -> Flags:
    """Whether the cross-GPU models cover each call, shape (rows,): forward, in fp32, of a covered family, with all dims.

    Softmax and layer norm are also covered in half precision, which halves their bytes but not their instructions.
    Convolutions with several groups or of volumes run in other kernels than those of the samples.
    """
    d = Dims(calls)
    family = d.text("family")
    dtype = d.dtype
    able = is_one_of(family, COVERED_FAMILIES) & is_one_of(dtype, ("fp32",))
    able |= is_one_of(family, HALF_FAMILIES) & is_one_of(dtype, HALF_DTYPES)
    able &= ~d.backward() & sampled_kind(d)
    for name in COVERED_FAMILIES:
        rows = able & (family == name)
        if rows.any():
            complete = np.all(
                [~np.isnan(d(dim)) for dim in FAMILIES[name].required],
                axis=0,
            )
            able &= ~rows | complete
    return np.asarray(able, dtype=bool)


def estimate(
    model: UtilisationModel, calls: pd.DataFrame, gpu: GpuSpec, calibration: Calibration | None
) -> tuple[Array, Array, Array, Array]:
    """Predict one family's calls with the calibration of probes, or with the shipped model where there is none.

    Returns:
        Kernel time and latency in µs, and the logarithms of p10 and p90 relative to them, each of shape (rows,).
    """
    if calibration is not None:
        kernel, latency, high = calibration.predict(calls)
        return kernel, latency, -high, high
    kernel, latency = model.kernel_and_latency(calls, gpu)
    low, high = (np.full(len(calls), end) for end in (model.log_p10, model.log_p90))
    return kernel, latency, low, high


def predict_calls(
    calls: pd.DataFrame,
    gpu: GpuSpec,
    models: dict[str, UtilisationModel] | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
) -> pd.DataFrame:
    """Times of calls on a GPU, from its spec and optional probes.

    Args:
        calls: rows with `family`, `op` and dims (NeuSight's or the calls schema's, which have the same names).
        gpu: the destination.
        models: cross-GPU models by family; the shipped ones by default.
        calibrations: calibrations with probes of that GPU, by family.

    Returns:
        Same rows and index, with `predicted_us` (latency, floor included), `kernel_us`, `p10_us` and `p90_us` (of the
        kernel). NaN where no model covers the call; the caller then uses its roofline.
    """
    models = load_models() if models is None else models
    result = pd.DataFrame(np.nan, index=calls.index, columns=list(COLUMNS))
    usable = covered(calls)
    family = calls["family"].astype(str).to_numpy()
    for name, model in models.items():
        at = np.flatnonzero(usable & (family == name))
        if not len(at):
            continue
        part = calls.iloc[at]
        kernel, latency, low, high = estimate(
            model,
            part,
            gpu,
            (calibrations or {}).get(name),
        )
        raised = raised_to_min_duration(kernel, name, gpu)
        half = is_one_of(Dims(part).dtype, HALF_DTYPES)
        if half.any():
            raised = np.where(
                half,
                half_rows_us(kernel, name, Dims(part), gpu),
                raised,
            )
            low = np.where(half, -np.hypot(low, HALF_LOG_SPREAD), low)
            high = np.where(half, np.hypot(high, HALF_LOG_SPREAD), high)
        # the latency, with floor and launch, is raised only where the kernel alone takes longer
        latency = np.maximum(latency, raised)
        result.iloc[at] = np.column_stack(
            [
                latency,
                raised,
                raised * np.exp(low),
                raised * np.exp(high),
            ]
        )
    return result


def half_rows_us(kernel_us: Array, family: str, d: Dims, gpu: GpuSpec) -> Array:
    """Times of half-precision softmax and layer norm, from those of a model of bytes and instructions.

    Rows of softmax that lie in a warp, or are wide and not aligned, move one element at a time.
    """
    figures = Physics.of(gpu)
    if family == "layer_norm":
        start = figures.start_us(family) * VECTORISED_NORM_SHARE
        return np.maximum(HALF_NORM_SHARE * kernel_us, start)
    elements_us = np.maximum(narrow_rows_us(d, figures), unaligned_rows_us(d, figures))
    return np.maximum(kernel_us, figures.start_us(family) + elements_us)


def tensor_model() -> UtilisationModel | None:
    """The shipped cross-GPU model of products on tensor cores; None where it does not ship.

    Raises:
        PackError: the file is damaged.
    """
    path = shipped_file(TRANSFER, TENSOR_FILE)
    return None if path is None else load_cached(path)


@lru_cache(maxsize=4)
def sampled_architectures(gpus: tuple[str, ...]) -> frozenset[str]:
    """Architectures of the GPUs that a model was trained on."""
    return frozenset(load_gpu(name).architecture for name in gpus)


def kernel_us(
    model: UtilisationModel, calls: pd.DataFrame, gpu: GpuSpec, correction: Correction | None = None
) -> Array:
    """Kernel times on a GPU in µs, shape (rows,); none is shorter than the shortest kernel of the samples.

    On architectures without samples, `raised_to_min_duration` also applies, whose limit comes from kernels of older traces.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        _, us = model.kernel_and_latency(calls.assign(op="linear"), gpu, correction=correction)
    sampled = gpu.architecture in sampled_architectures(tuple(model.gpu_corrections))
    return us if sampled else raised_to_min_duration(us, "gemm", gpu)


def time_ratio(
    calls: pd.DataFrame, gpu: GpuSpec, others: pd.DataFrame, other: GpuSpec
) -> Array | None:
    """Kernel times of calls on `gpu` over those of `others` on `other`, shape (rows,); None without the shipped model.

    Args:
        calls: covered products.
        gpu: their GPU.
        others: covered products, one for each row of `calls`.
        other: their GPU; its deviation from the common model is used for both GPUs.
    """
    model = tensor_model()
    if model is None:
        return None
    correction = model.own_correction(other.name)
    ratio = kernel_us(model, calls, gpu, correction) / kernel_us(model, others, other, correction)
    return np.where(
        np.isfinite(ratio) & (ratio > 0),
        ratio,
        1.0,
    )
