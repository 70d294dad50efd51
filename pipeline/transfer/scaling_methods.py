"""The methods that carry measured latencies from an origin GPU to a destination: wave and auto.

For each row, `auto` takes the first of these that applies:
1. The origin is the destination: the measurement itself.
2. A covered family (`gpu_features.COVERED_FAMILIES`): the utilisation model's prediction for the destination.
   - It is multiplied by the model's residual on the origin to a power. The power is 1 between GPUs with the same chip
     and `RESIDUAL_SHARE` of the family otherwise (docs/transfer.md).
   - For convolutions it is blended with the roofline's ratio (`ROOFLINE_SHARE`) and with wave scaling (`WAVE_SHARE`).
3. Other calls: wave scaling with the origin's gamma.

The column `method` names the method of each row. The kernels of a traced step are scaled by what bounds them (`by_bound`).
`step_calls_us` predicts its products and convolutions, in a blend with another method (`STEP_WAVE_SHARE`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from pipeline.arrays import Array, Flags, Ints
from pipeline.families import work_of
from pipeline.families.dims import Dims, values_of
from pipeline.families.tensor_cores import on_tensor_cores as convolved
from pipeline.families.tensor_products import on_tensor_cores_with_dims as tensor_covered
from pipeline.hardware.find_gpu import same_chip
from pipeline.hardware.spec import GpuSpec
from pipeline.hardware.sustained import DTYPES, sustained_dram_gb_per_s
from pipeline.kernels.physics import Physics, raised_to_min_duration
from pipeline.transfer import wave_scaling as wave
from pipeline.transfer.gpu_features import COMPUTE_FAMILIES
from pipeline.transfer.probes import P90_SIGMAS, Calibration
from pipeline.transfer.shipped_models import covered, estimate, kernel_us, load_models, tensor_model
from pipeline.transfer.utilisation import UtilisationModel
from pipeline.transfer.utilisation_terms import algorithms_of_kernels

RESIDUAL_SHARE: dict[str, float] = {
    "gemm": 0.0, "bmm": 0.0, "conv2d_forward": 0.5, "elementwise": 0.0, "softmax": 0.0,
    "layer_norm": 0.0,
}  # fmt: skip
"""Exponent of the origin's residual (measured over modelled time) that is carried to the destination, by family.

It applies between different chips. Each value is the best of 0, 0.25, 0.5, 0.75 and 1 over pairs of the development
GPUs."""

ROOFLINE_SHARE: dict[str, float] = {"conv2d_forward": 0.3}
"""Weight, in log time, of the measurement scaled by the ratio of rooflines, by family.

Its errors have other causes than those of the model, so a blend has smaller errors. The value is the best of 0.2, 0.3,
0.4 and 0.5 over pairs of the development GPUs (docs/transfer.md)."""

WAVE_SHARE: dict[str, float] = {"conv2d_forward": 0.1}
"""Weight, in log time, of wave scaling, by family; 0 with probes.

The weight is small because the errors of wave scaling are much larger. It is not 0 because their causes differ from
those of the other two methods."""

TIMES = ["predicted_us", "p10_us", "p90_us"]
"""Columns of a method's times and of the ends of their intervals."""

STEP_WAVE_SHARE = dict.fromkeys(COMPUTE_FAMILIES, 0.5)
"""Weight, in log time, of wave scaling (in convolutions: of `by_bound`) beside the cross-GPU model in products of a step.

Over the calls of a whole model the errors of the two partly cancel. The value 0.5 was set in advance. A choice without
the destination's data would give 0.25 or 0.5, with nearly the same error (docs/transfer.md)."""

WAVE_LOG_SIGMA = 0.45
"""Standard deviation of the log error of wave scaling over pairs of the public GPUs; sets the width of its interval."""

CHANGED_BOUND_LOG_SIGMA = 0.6
"""The same of kernels bound by arithmetic on one GPU and by bandwidth on the other. Over pairs of the public GPUs, products
and convolutions have 0.47 to 0.57 there, and convolutions bound by arithmetic on both 0.24."""

THREAD_GB_PER_S = 0.04
"""DRAM bandwidth that a resident thread can use, GB/s: 24 bytes under way, at a latency of 600 ns.

On an H100, batch norm in 48 to 64 blocks of 512 threads reaches 0.026 (backward) and 0.04 (docs/notes/transfer.md)."""


def by_wave(
    samples: pd.DataFrame, origin: GpuSpec, destination: GpuSpec, origin_gamma: bool = False
) -> pd.DataFrame:
    """Wave scaling of every row; whole waves are counted where the launch geometry is known.

    Matrix products (`gemm`) use the simplified form. Their tiles differ between GPUs, so the origin's number of blocks
    does not hold on the destination (docs/transfer.md).

    `origin_gamma` computes gamma from the roofline of the origin. The result is then monotone in the destination's
    figures.
    """
    g = wave.gamma(wave.intensity_of(samples), origin if origin_gamma else destination)
    whole, launches = (samples["family"] != "gemm").to_numpy(), wave.Launches.of(samples)
    predicted = wave.scale(Dims(samples)("latency_us"), launches, origin, destination, g, whole)
    return with_interval(samples, predicted, WAVE_LOG_SIGMA, "wave", origin, destination)


def by_auto(
    samples: pd.DataFrame,
    origin: GpuSpec,
    destination: GpuSpec,
    models: dict[str, UtilisationModel] | None = None,
    calibrations: dict[str, Calibration] | None = None,
) -> pd.DataFrame:
    """The method that suits each row best; the module's docstring lists the order."""
    result = by_wave(samples, origin, destination, origin_gamma=True)
    if origin == destination:
        return result.assign(method="same_gpu", evidence="measured")
    usable = covered(samples)
    family = samples["family"].astype(str).to_numpy()
    for name, model in (load_models() if models is None else models).items():
        at = np.flatnonzero(usable & (family == name))
        if not len(at):
            continue
        part = samples.iloc[at]
        calibration = (calibrations or {}).get(name)
        _, latency, low, high = estimate(model, part, destination, calibration)
        share = residual_share(name, origin, destination)
        if share:
            residual = _residual(model, part, origin)
            # probes already determine the level, so only the residual's variation between shapes is carried
            level = 1.0 if calibration is None else float(np.exp(np.median(np.log(residual))))
            latency = latency * (residual / level) ** share
        roofline = ROOFLINE_SHARE.get(name, 0.0)
        waves = WAVE_SHARE.get(name, 0.0) if calibration is None else 0.0
        latency = latency ** (1.0 - roofline - waves)
        if roofline:
            latency = latency * by_roofline(part, name, origin, destination) ** roofline
        if waves:
            latency = latency * result["predicted_us"].to_numpy(dtype=float)[at] ** waves
        kind = "utilisation" if calibration is None else "utilisation+probes"
        ends = latency, latency * np.exp(low), latency * np.exp(high)
        times = dict(zip(TIMES, ends, strict=True))
        row = pd.DataFrame({**times, "method": kind, "evidence": "transferred"}, part.index)
        result.iloc[at] = row
    return at_least_min_duration(result, samples, destination)


def step_calls_us(
    model: UtilisationModel, part: pd.DataFrame, waves: Array, origin: GpuSpec, destination: GpuSpec
) -> Array:
    """Times of one family's calls of a step on the destination, µs, shape (rows,); see `STEP_WAVE_SHARE`.

    Args:
        model: the family's cross-GPU model.
        part: calls with `op`, dims and `latency_us`, their times on the origin.
        waves: their times on the destination by wave scaling, µs, shape (rows,).
        origin: GPU of the measurements.
        destination: GPU to predict.
    """
    here, there = (
        model.kernel_and_latency(part, gpu, correction=model.own_correction(gpu.name))[0]
        for gpu in (origin, destination)
    )
    share = STEP_WAVE_SHARE.get(model.family, 0.0)
    measured = part["latency_us"].to_numpy(dtype=float)
    return (measured * there / here) ** (1.0 - share) * waves**share


def on_tensor_cores(
    model: UtilisationModel, part: pd.DataFrame, origin: GpuSpec, destination: GpuSpec
) -> Array | None:
    """Times of a step's products or convolutions in fp16, bf16 or TF32 on the destination, µs, shape (rows,).

    The formula depends on whether each GPU has tensor cores for the dtype:
    - Both or neither: the measurement times the ratio of the modelled times on the two GPUs.
    - One of the two: the modelled time on the destination, because the two GPUs run different kernels.

    Modelled times on tensor cores come from the tensor-core model for products and from physics for convolutions. A GPU
    without tensor cores for the dtype computes in fp32, and `model`, the family's model in fp32, gives its times.

    Returns None where no tensor-core model is shipped.
    """
    tensor = tensor_model()
    if tensor is None and not model.family.startswith("conv2d"):
        return None

    def on(gpu: GpuSpec) -> tuple[Array, Flags]:
        """Modelled times on a GPU, and which of them are those of its tensor cores."""
        us = np.array(
            model.kernel_and_latency(part, gpu, correction=model.own_correction(gpu.name))[0],
            np.float64,
        )
        if tensor is None or model.family.startswith("conv2d"):
            able, tensor_us = _convolutions_on_tensor_cores(part, gpu)
            return np.where(able, tensor_us, us), able
        able = tensor_covered(part, gpu)
        if able.any():
            us[able] = kernel_us(
                tensor,
                part[able],
                gpu,
                tensor.own_correction(gpu.name),
            )
        return us, able

    (here, on_origin), (there, on_destination) = on(origin), on(destination)
    measured = part["latency_us"].to_numpy(dtype=float)
    return np.where(on_origin == on_destination, measured * there / here, there)


def _convolutions_on_tensor_cores(part: pd.DataFrame, gpu: GpuSpec) -> tuple[Flags, Array]:
    """Convolutions that tensor cores compute, and their times with channels innermost (NHWC).

    In a trace, the kernels that change the layout of images around a convolution are separate calls.
    """
    innermost = part.assign(attributes='{"layout":"nhwc"}')
    times = Physics.of(gpu).kernel_us("conv2d_forward", innermost)
    return convolved(Dims(part), gpu) & np.isfinite(times), times


def at_least_min_duration(
    result: pd.DataFrame, samples: pd.DataFrame, destination: GpuSpec
) -> pd.DataFrame:
    """Raise predictions below the shortest kernel time of their family; intervals are scaled with them."""
    measured = samples["latency_us"].to_numpy(dtype=float)
    predicted = result["predicted_us"].to_numpy(dtype=float)
    raised = predicted.copy()
    for name, at in samples.groupby(samples["family"].astype(str)).indices.items():
        raised[at] = raised_to_min_duration(
            predicted[at],
            str(name),
            destination,
            measured[at],
        )
    factor = np.divide(
        raised,
        predicted,
        out=np.ones_like(raised),
        where=predicted > 0,
    )
    return result.assign(**result[TIMES].astype(float).mul(factor, axis=0))


def by_roofline(part: pd.DataFrame, family: str, origin: GpuSpec, destination: GpuSpec) -> Array:
    """The measured latency times the ratio of roofline times, µs, shape (rows,)."""
    work = work_of(family, part, own_columns=False)

    def bound(gpu: GpuSpec) -> Array:
        return np.maximum(
            work.flops / gpu.peak_gflop_per_s(), work.bytes / gpu.peak_dram_gb_per_s()
        )

    return part["latency_us"].to_numpy(dtype=float) * bound(destination) / bound(origin)


def by_bound(calls: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> pd.DataFrame:
    """Traced kernels, scaled by the ratio of the times that bound each of them on the two GPUs.

    For a product, whose `intensity` is known, this is the longer of its arithmetic, at the peak of its dtype, and its traffic.
    For any other kernel it is its traffic, at the bandwidth that its resident threads can use. The interval is wider where
    the bound changes.
    """
    origin, destination = _on_equal_terms(origin, destination)
    launches, d = wave.Launches.of(calls), Dims(calls)
    intensity, dtype = d("intensity"), d.dtype

    def bound(gpu: GpuSpec) -> tuple[Array, Ints]:
        """Time for each byte, ns, and what bounds it: arithmetic, DRAM or threads; shape (rows,)."""
        peak = values_of(
            dtype, {name: gpu.peak_gflop_per_s(name) for name in DTYPES}, gpu.peak_gflop_per_s()
        )
        threads = launches.threads * np.fmin(launches.blocks, launches.resident(gpu))
        alone = np.where(
            np.isnan(intensity),
            np.nan_to_num(1.0 / (THREAD_GB_PER_S * threads)),
            0.0,
        )
        dram = np.full(len(calls), 1.0 / sustained_dram_gb_per_s(gpu))
        times = np.stack([np.nan_to_num(intensity / peak), dram, alone])
        return times.max(axis=0), times.argmax(axis=0)

    (here, what), (there, what_there) = bound(origin), bound(destination)
    sigma = np.where(what == what_there, WAVE_LOG_SIGMA, CHANGED_BOUND_LOG_SIGMA)
    return with_interval(
        calls, d("latency_us") * (there / here), sigma, "roofline", origin, destination
    )


def _on_equal_terms(origin: GpuSpec, destination: GpuSpec) -> tuple[GpuSpec, GpuSpec]:
    """Both GPUs; where they have one chip, with the measured peaks that both have, else with the datasheet's."""
    names = ("measured_fp32_gflop_per_s", "measured_dram_gb_per_s")
    pair = (origin, destination)
    drop: dict[str, Any] = {
        name: None for name in names if None in [getattr(gpu, name) for gpu in pair]
    }
    drop = drop if same_chip(origin, destination) else {}
    return replace(origin, **drop), replace(destination, **drop)


def residual_share(family: str, origin: GpuSpec, destination: GpuSpec) -> float:
    """Share of the origin's residual that carries over; depends on architecture and SMs, not on bandwidth or clock."""
    return 1.0 if same_chip(origin, destination) else RESIDUAL_SHARE[family]


def _residual(model: UtilisationModel, part: pd.DataFrame, origin: GpuSpec) -> Array:
    """Measured over modelled latency on the origin, with the origin's own floors where the model has them.

    A convolution is compared to the modelled time of the route that its kernel name shows, where it shows one.
    """
    of_host = model.gpu_floors_us.get(origin.name)
    floors = None if of_host is None else {**model.floors_us, **of_host}
    algorithm = algorithms_of_kernels(model.family, part)
    _, modelled = model.kernel_and_latency(
        part, origin, floors, model.own_correction(origin.name), algorithm
    )
    return part["latency_us"].to_numpy(dtype=float) / modelled


def with_interval(
    samples: pd.DataFrame,
    predicted: Array,
    sigma: Array | float,
    method: str,
    origin: GpuSpec,
    destination: GpuSpec,
) -> pd.DataFrame:
    """The rows of a method, with the interval of a standard deviation of the log error; on the origin itself it is empty."""
    moved = origin != destination
    half = np.exp(P90_SIGMAS * np.asarray(sigma) * moved)
    interval = dict(zip(TIMES, (predicted, predicted / half, predicted * half), strict=True))
    evidence = "transferred" if moved else "measured"
    return pd.DataFrame({**interval, "method": method, "evidence": evidence}, index=samples.index)


METHODS: dict[str, Callable[[pd.DataFrame, GpuSpec, GpuSpec], pd.DataFrame]] = {
    "wave": by_wave,
    "auto": by_auto,
}
