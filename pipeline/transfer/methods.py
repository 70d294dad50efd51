"""The methods that carry measured latencies from an origin GPU to a destination: wave, mlp, and the choice, auto.

`auto` takes per row the first that applies:
1. the same GPU: the measurement itself;
2. a covered family (`features.COVERED`): the utilisation model's prediction for the destination, times the model's
   residual on the origin to the power of `RESIDUAL_SHARE`: all of it between cards of one chip, a family's share
   otherwise, as left-out GPUs show (docs/transfer.md); for convolutions blended with the roofline's ratio, for
   convolutions and products with wave scaling;
3. wave scaling with the origin's gamma. Every row says which, in `method`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from pipeline.errors import UnknownNameError
from pipeline.hardware.same_chip import same_chip
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.families import work_of
from pipeline.kernels.min_duration import not_shorter
from pipeline.kernels.physics import Physics
from pipeline.kernels.tensor_core_convolution import on_tensor_cores as convolved
from pipeline.kernels.tensor_core_products import covered as tensor_covered
from pipeline.kernels.work import Dims
from pipeline.packs import TRANSFER, shipped_file
from pipeline.transfer import wave_scaling as wave
from pipeline.transfer.gpu_features import ARITHMETIC
from pipeline.transfer.mlp import DIMS, TransferMlp
from pipeline.transfer.probes import TENTH, Calibration
from pipeline.transfer.shipped_models import covered, estimate, load_models
from pipeline.transfer.tensor_core_model import kernel_us, tensor_model
from pipeline.transfer.utilisation import UtilisationModel
from pipeline.transfer.utilisation_terms import ways_taken

Array = npt.NDArray[np.float64]

RESIDUAL_SHARE: dict[str, float] = {
    "gemm": 0.0, "bmm": 0.0, "conv2d_forward": 0.5, "elementwise": 0.0, "softmax": 0.0, "layer_norm": 0.0,
}  # fmt: skip
"""How much of the origin's residual (measured over modelled) the destination shares, between architectures: best of
0, 0.25, 0.5, 0.75 and 1 over pairs of the development GPUs."""

ROOFLINE_SHARE: dict[str, float] = {"conv2d_forward": 0.3}
"""Weight, in log time, of the measurement scaled by the ratio of rooflines, which errs for reasons of its own: best of
0.2, 0.3, 0.4 and 0.5 over pairs of the development GPUs (docs/transfer.md)."""

WAVE_SHARE: dict[str, float] = {"conv2d_forward": 0.1}
"""Weight, in log time, of wave scaling: it errs far more, but again for other reasons. With probes none is taken."""

STEP_WAVE_SHARE = dict.fromkeys(ARITHMETIC, 0.5)
"""Weight, in log time, of wave scaling beside the cross-GPU model in the products and convolutions of a step (tracker,
`paper.py`): over the calls of a whole model the errors of the two partly cancel. Half was set beforehand; chosen without
the destination it would be a quarter or a half, with nearly the same error (docs/transfer.md)."""

WAVE_LOG_SIGMA = 0.45
"""Log error of wave scaling over the pairs of the public GPUs, for its interval."""

MLP_LOG_SIGMA = 0.35
"""Log error of the networks' ratio over the pairs of the public GPUs, for its interval."""


def by_wave(samples: pd.DataFrame, origin: GpuSpec, destination: GpuSpec, origin_gamma: bool = False) -> pd.DataFrame:
    """Wave scaling of every row; whole waves are counted where the launch geometry is known.

    Plain matrix products change their tiles between GPUs, so that the origin's blocks say little: there the simplified
    form is the better one (docs/transfer.md).

    `origin_gamma` takes the roofline of the origin for gamma, which keeps the result monotone in the destination.
    """
    measured = samples["latency_us"].to_numpy(dtype=np.float64)
    intensity = wave.intensity_of(samples)
    launches = wave.Launches.of(samples)
    fixed = wave.gamma(intensity, origin) if origin_gamma else None
    whole = wave.scale(measured, launches, origin, destination, intensity, fixed, exact=True)
    simplified = wave.scale(measured, launches, origin, destination, intensity, fixed, exact=False)
    predicted = np.where(samples["family"] == "gemm", simplified, whole)
    return _frame(samples, predicted, _half_width(WAVE_LOG_SIGMA, origin, destination), "wave", origin, destination)


UNSAMPLED = ("rnn", "batch_norm", "attention")
"""Kernel-varying families without samples to train networks on: the roofline's ratio until there are some."""


def by_mlp(samples: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> pd.DataFrame:
    """The pre-trained networks' ratio for kernel-varying families, wave scaling for the others.

    Kernel-varying families without samples take the roofline's ratio where their dims say how much work there is.
    """
    result = by_wave(samples, origin, destination)
    wide = _half_width(WAVE_LOG_SIGMA, origin, destination)
    for family in UNSAMPLED:
        part = samples[samples["family"].astype(str) == family]
        if part.empty:
            continue
        scaled = _frame(part, by_roofline(part, family, origin, destination), wide, "roofline", origin, destination)
        known = np.isfinite(scaled["predicted_us"].to_numpy(dtype=np.float64))
        result.loc[part.index[known]] = scaled[known]
    for family, dims in DIMS.items():
        rows = (samples["family"].astype(str) == family).to_numpy()
        path = shipped_file(TRANSFER, f"mlp_{family}.safetensors") if rows.any() else None
        if path is None:
            continue
        complete = rows & samples.reindex(columns=list(dims)).notna().all(axis=1).to_numpy()
        if not complete.any():
            continue
        part = samples[complete]
        ratio = TransferMlp.load(path).ratio(part, origin, destination)
        predicted = part["latency_us"].to_numpy(dtype=np.float64) * ratio
        wide = _half_width(MLP_LOG_SIGMA, origin, destination)
        result.loc[complete] = _frame(part, predicted, wide, "mlp", origin, destination)
    return result


def by_auto(
    samples: pd.DataFrame,
    origin: GpuSpec,
    destination: GpuSpec,
    models: dict[str, UtilisationModel] | None = None,
    calibrations: dict[str, Calibration] | None = None,
) -> pd.DataFrame:
    """The best method per row; see the module's text."""
    result = by_wave(samples, origin, destination, origin_gamma=True)
    if origin == destination:
        return result.assign(method="same_gpu", evidence="measured")
    usable = covered(samples).to_numpy(dtype=bool)
    family = samples["family"].astype(str).to_numpy()
    for name, model in (load_models() if models is None else models).items():
        at = np.flatnonzero(usable & (family == name))
        if not len(at):
            continue
        part = samples.iloc[at]
        found = (calibrations or {}).get(name)
        _, latency, low, high = estimate(model, part, destination, found)
        share = residual_share(name, origin, destination)
        if share:
            residual = _residual(model, part, origin)
            # probes have already settled the level: only the residual's variation between shapes is carried then
            level = 1.0 if found is None else float(np.exp(np.median(np.log(residual))))
            latency = latency * (residual / level) ** share
        roofline = ROOFLINE_SHARE.get(name, 0.0)
        waves = WAVE_SHARE.get(name, 0.0) if found is None else 0.0
        latency = latency ** (1.0 - roofline - waves)
        if roofline:
            latency = latency * by_roofline(part, name, origin, destination) ** roofline
        if waves:
            latency = latency * result["predicted_us"].to_numpy(dtype=np.float64)[at] ** waves
        kind = "utilisation+probes" if found is not None else "utilisation"
        bounds = {"p10_us": latency * np.exp(low), "p90_us": latency * np.exp(high)}
        row = pd.DataFrame({"predicted_us": latency, **bounds, "method": kind, "evidence": "transferred"}, part.index)
        result.iloc[at] = row
    return _raised(result, samples, destination)


def in_a_step(
    model: UtilisationModel, part: pd.DataFrame, waves: Array, origin: GpuSpec, destination: GpuSpec
) -> Array:
    """Times of one family's calls of a step on the destination, µs, shape (rows,); see `STEP_WAVE_SHARE`.

    Args:
        model: the family's cross-GPU model.
        part: calls with `op`, dims and `latency_us`, their times on the origin.
        waves: the same by wave scaling.
        origin: where they were measured.
        destination: GPU to predict.
    """
    here, there = (
        model.kernel_and_latency(part, gpu, correction=model.own(gpu.name))[0] for gpu in (origin, destination)
    )
    share = STEP_WAVE_SHARE.get(model.family, 0.0)
    measured = part["latency_us"].to_numpy(dtype=np.float64)
    return np.asarray((measured * there / here) ** (1.0 - share) * waves**share)


def on_tensor_cores(model: UtilisationModel, part: pd.DataFrame, origin: GpuSpec, destination: GpuSpec) -> Array | None:
    """Times of a step's products or convolutions in fp16, bf16 or TF32 on the destination, µs, shape (rows,).

    Between tensor cores, the measurement times the ratio of two times that are known for them on both GPUs: by their
    model for products, by physics for convolutions. A GPU without them for the dtype computes in fp32, with kernels of
    which those of the other GPU say nothing: there `model`, the family's in fp32, answers alone for the destination. None
    where the model of tensor cores does not ship.
    """
    native = _convolutions_on_tensor_cores if model.family.startswith("conv2d") else _products_on_tensor_cores()
    if native is None:
        return None

    def on(gpu: GpuSpec) -> tuple[Array, npt.NDArray[np.bool_]]:
        found = np.array(model.kernel_and_latency(part, gpu, correction=model.own(gpu.name))[0], np.float64)
        able, times = native(part, gpu)
        return np.where(able, times, found), able

    (here, on_origin), (there, on_destination) = on(origin), on(destination)
    measured = part["latency_us"].to_numpy(dtype=np.float64)
    return np.where(on_origin == on_destination, measured * there / here, there)


Native = Callable[[pd.DataFrame, GpuSpec], tuple[npt.NDArray[np.bool_], Array]]
"""Which calls a GPU's tensor cores compute, and their times there, µs, each of shape (rows,)."""


def _products_on_tensor_cores() -> Native | None:
    tensor = tensor_model()

    def native(part: pd.DataFrame, gpu: GpuSpec) -> tuple[npt.NDArray[np.bool_], Array]:
        assert tensor is not None
        able, times = tensor_covered(part, gpu), np.full(len(part), np.nan)
        if able.any():
            times[able] = kernel_us(tensor, part[able], gpu, tensor.own(gpu.name))
        return able, times

    return None if tensor is None else native


def _convolutions_on_tensor_cores(part: pd.DataFrame, gpu: GpuSpec) -> tuple[npt.NDArray[np.bool_], Array]:
    """Kernels that turn images around a convolution are calls of their own in a trace: channels lie innermost here."""
    innermost = part.assign(attributes='{"layout":"nhwc"}')
    times = Physics.of(gpu).kernel_us("conv2d_forward", innermost)
    return convolved(Dims(part), gpu) & np.isfinite(times), times


def _raised(result: pd.DataFrame, samples: pd.DataFrame, destination: GpuSpec) -> pd.DataFrame:
    """Predictions below what a kernel of their family takes at least, raised with their intervals."""
    measured = samples["latency_us"].to_numpy(dtype=np.float64)
    predicted = result["predicted_us"].to_numpy(dtype=np.float64)
    raised = predicted.copy()
    for name, at in samples.groupby(samples["family"].astype(str)).indices.items():
        raised[at] = not_shorter(predicted[at], str(name), destination, measured[at])
    columns = ["predicted_us", "p10_us", "p90_us"]
    times = result[columns].to_numpy(dtype=np.float64)
    result[columns] = times * np.where(predicted > 0, raised / np.where(predicted > 0, predicted, 1.0), 1.0)[:, None]
    return result


def by_roofline(part: pd.DataFrame, family: str, origin: GpuSpec, destination: GpuSpec) -> Array:
    """The measured latency times the ratio of roofline times, µs, shape (rows,)."""
    work = work_of(family, part, own_columns=False)

    def bound(gpu: GpuSpec) -> Array:
        return np.maximum(work.flops / gpu.peak_gflop_per_s(), work.bytes / gpu.peak_dram_gb_per_s())

    return np.asarray(part["latency_us"].to_numpy(dtype=np.float64) * bound(destination) / bound(origin))


def residual_share(family: str, origin: GpuSpec, destination: GpuSpec) -> float:
    """Share of the origin's residual that carries over, by architecture and SMs and never by bandwidth or clock."""
    return 1.0 if same_chip(origin, destination) else RESIDUAL_SHARE[family]


def _residual(model: UtilisationModel, part: pd.DataFrame, origin: GpuSpec) -> Array:
    """Measured over modelled latency on the origin, with the origin's own floors where the model knows them.

    A convolution is compared to the route that its kernel name shows, where there is one.
    """
    own = model.gpu_floors_us.get(origin.name)
    floors = None if own is None else {**model.floors_us, **own}
    taken = ways_taken(model.family, part)
    _, modelled = model.kernel_and_latency(part, origin, floors, model.own(origin.name), taken)
    return np.asarray(part["latency_us"].to_numpy(dtype=np.float64) / modelled)


def _frame(
    samples: pd.DataFrame, predicted: Array, half_width: float, method: str, origin: GpuSpec, destination: GpuSpec
) -> pd.DataFrame:
    evidence = "measured" if origin == destination else "transferred"
    return pd.DataFrame(
        {
            "predicted_us": predicted,
            "p10_us": predicted / half_width,
            "p90_us": predicted * half_width,
            "method": method,
            "evidence": evidence,
        },
        index=samples.index,
    )


def _half_width(log_sigma: float, origin: GpuSpec, destination: GpuSpec) -> float:
    return 1.0 if origin == destination else float(np.exp(TENTH * log_sigma))


METHODS: dict[str, Callable[[pd.DataFrame, GpuSpec, GpuSpec], pd.DataFrame]] = {
    "wave": by_wave,
    "mlp": by_mlp,
    "auto": by_auto,
}


def method(name: str) -> Callable[[pd.DataFrame, GpuSpec, GpuSpec], pd.DataFrame]:
    """Look a method up.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in METHODS:
        raise UnknownNameError("method", name, list(METHODS))
    return METHODS[name]
