"""Times of calls that no sample covers, derived from models of related calls on the same GPU.

The model of the related call predicts its time. The ratio of the two calls' times by physics scales it:

- A backward pass of softmax or layer norm moves more bytes than the forward pass, at the same efficiency.
- Another dtype moves fewer bytes and has another peak.
- A convolution whose window the samples lack is computed as its matrix product (implicit GEMM), where products of such
  sizes were sampled.
- A convolution's data gradient is a convolution with the channels swapped. Its weight gradient takes as long as the
  forward pass. Where no such convolution was sampled, both are implicit products. `convolutions.gradient_us` adds
  their extra time.
- A batched product with a single batch is a plain product, and the other way round.

Intervals widen by `SPREAD`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pipeline.arrays import Array
from pipeline.families.conv import with_gradients_us
from pipeline.families.conv_shape import implicit_product
from pipeline.families.convolutions import sampled_kind
from pipeline.families.dims import Dims
from pipeline.families.family import Law
from pipeline.families.tensor_cores import on_tensor_cores
from pipeline.kernels.estimate import Estimate, KernelModel, joined, merge
from pipeline.kernels.networks import ROWS_IN_DOUBLE
from pipeline.kernels.physics import PHYSICS_SPREAD, Physics

DERIVED_FAMILIES = (
    "softmax", "layer_norm", "gemm", "bmm", "conv2d_forward", "conv2d_backward_data",
    "conv2d_backward_weight", "rnn",
)  # fmt: skip
"""Families with related calls; those of `rnn` are products (`rnn_kernels.py`)."""

SPREAD = 1.7
"""Factor up and down by which the scaling widens the interval of the related model; its error counts as independent. The
interval then contains about three of four kernels (A100 DLRM trace)."""

LARGER = ({"B": 2.0}, {"B": 4.0}, {"in_channels": 2.0, "out_channels": 2.0})
"""Multiples of dims: convolutions of these sizes bound the time of a convolution. Half of height and width is a quarter
of the pixels, as is a quarter of the batch."""

OVERLAP = 1.5
"""Factor between the p90 of a larger convolution and the longest time that is accepted for the smaller one: below `SPREAD`."""


def estimate_by_related_model(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel], physics: Physics
) -> tuple[Estimate | None, str]:
    """Estimate calls through a related model; (None, "") where there is none.

    Returns:
        The estimate (kernel NaN where a row has no related call), and the evidence of the model behind it.
    """
    if name.startswith("conv2d"):
        return _convolution(name, calls, models, physics)
    related = _related_calls(name, calls, models)
    if related is None:
        return None, ""
    base_name, base = related
    model = models[base_name]
    scale = physics.kernel_us(name, calls) / physics.kernel_us(base_name, base)
    if name in ("gemm", "bmm"):  # samples in fp32 say nothing of the rate of fp64
        scale = np.where(Dims(calls).dtype == "fp64", np.nan, scale)
    if base_name != name:
        # a batch of one product has the same arithmetic; the tile counts of physics must not change the time
        scale = np.where(np.isfinite(scale), 1.0, np.nan)
    return model.predict(base).scale(scale).widen(SPREAD), model.evidence


def _convolution(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel], physics: Physics
) -> tuple[Estimate | None, str]:
    """Estimate each row by the sampled forward convolution of the same arithmetic, else by an implicit product.

    Three kinds of rows are left to physics:

    - Products with more rows than any sampled product. On 1x1 convolutions of ResNet-50 on the V100, a model is wrong
      there by a factor of up to ten, physics by a quarter.
    - Convolutions on tensor cores. Models of fp32 samples contain neither the peak of tensor cores nor the layout
      changes of images that cuDNN makes for them.
    - Convolutions with several groups or of volumes. They run in other kernels than the products and convolutions of the
      samples.
    - Convolutions in fp64, whose rate no sample shows.

    Where TF32 is allowed and the GPU has a low TF32 peak (GeForce), Winograd in fp32 can be faster. The library then
    uses Winograd, and so does the estimate.
    """
    dtype = Dims(calls).dtype
    tensor = on_tensor_cores(Dims(calls), physics.gpu)
    tf32 = tensor & (dtype == "tf32")
    single = sampled_kind(Dims(calls)) & (dtype != "fp64")
    if (tensor.all() and not tf32.any()) or not single.any():
        return None, ""
    estimate, evidence = _on_fp32_cores(name, calls, models, physics)
    if estimate is not None and not single.all():
        estimate = estimate.scale(np.where(single, 1.0, np.nan))
    if estimate is None or not tensor.any():
        return estimate, evidence
    quicker = tf32 & (estimate.kernel < physics.kernel_us(name, calls))
    return estimate.scale(np.where(tensor & ~quicker, np.nan, 1.0)), evidence


def _on_fp32_cores(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel], physics: Physics
) -> tuple[Estimate | None, str]:
    """Estimates of all rows as fp32 convolutions, with the extra time of gradients over a forward pass."""
    estimate: Estimate | None = None
    evidence = ""
    if "gemm" in models:
        larger = [_larger(calls, factors) for factors in LARGER]
        product, *bounds = _products(name, [calls, *larger], models["gemm"])
        evidence = models["gemm"].evidence
        estimate = product.scale(np.where(product.inside, 1.0, np.nan))
        longest = _longest(name, larger, bounds, physics)
        estimate = estimate.scale(np.fmin(1.0, longest / estimate.kernel))
    forward = models.get("conv2d_forward")
    if forward is not None:
        forward_calls = calls.assign(
            family="conv2d_forward", op="conv", phase="forward", dtype="fp32"
        )
        if name == "conv2d_backward_data":
            forward_calls = forward_calls.assign(
                in_channels=calls["out_channels"], out_channels=calls["in_channels"]
            )
        sampled = forward.covers(forward_calls)
        if sampled.any():
            if estimate is None:
                estimate = forward.predict(forward_calls).scale(np.where(sampled, 1.0, np.nan))
            else:
                estimate = merge(estimate, forward.predict(forward_calls[sampled]), sampled)
            evidence = forward.evidence
    if estimate is None:
        return None, ""
    if name != "conv2d_forward" and physics.gpu.limits is not None:
        estimate = estimate.scale(
            with_gradients_us(physics.calls(name, calls), estimate.kernel) / estimate.kernel
        )
    return estimate.widen(SPREAD), evidence


def _larger(calls: pd.DataFrame, factors: Mapping[str, float]) -> pd.DataFrame:
    """The calls with some dims multiplied."""
    d = Dims(calls)
    return calls.assign(**{dim: factor * d(dim) for dim, factor in factors.items()})


def _longest(
    name: str, larger: Sequence[pd.DataFrame], products: Sequence[Estimate], physics: Physics
) -> Array:
    """Upper bound of the time of implicit products, us, shape (rows,): `OVERLAP` times the p90 of `LARGER` convolutions.

    A learned model can be several times too long in a corner of its range (few columns, a long reduction), where no
    product was sampled. More images or channels never take less time.

    Args:
        name: family of the convolutions.
        larger: the larger convolutions, one table for each entry of `LARGER`.
        products: estimates of their implicit products.
        physics: figures of the GPU.
    """
    bounds = []
    for calls, product in zip(larger, products, strict=True):
        by_physics = PHYSICS_SPREAD[Law.COMPUTE] * physics.kernel_us(name, calls)
        bounds.append(np.where(product.inside, product.widen(SPREAD).p90, by_physics))
    return np.asarray(OVERLAP * np.min(bounds, axis=0))


def _products(name: str, tables: Sequence[pd.DataFrame], model: KernelModel) -> list[Estimate]:
    """Estimates of the implicit products of tables of convolutions. Equal products of all tables are predicted once."""
    products = pd.concat([_implicit_product(name, calls) for calls in tables], ignore_index=True)
    sizes = products[["M", "N", "K"]].to_numpy()
    _, first, which = np.unique(sizes, axis=0, return_index=True, return_inverse=True)
    distinct = products.iloc[first]
    blocks = [
        distinct.iloc[at : at + ROWS_IN_DOUBLE] for at in range(0, len(distinct), ROWS_IN_DOUBLE)
    ]
    estimates = joined([model.predict(block) for block in blocks])
    ends = np.cumsum([len(calls) for calls in tables])
    return [estimates.rows(rows) for rows in np.split(which.ravel(), ends[:-1])]


def _implicit_product(name: str, calls: pd.DataFrame) -> pd.DataFrame:
    """The matrix product that computes each convolution (implicit GEMM)."""
    rows, depth, columns, groups = implicit_product(name, Dims(calls))
    return pd.DataFrame(
        {
            "family": "gemm",
            "op": "linear",
            "phase": "forward",
            "dtype": "fp32",
            "B": 1.0,
            "M": rows * groups,
            "N": depth,
            "K": columns,
        },
        index=calls.index,
    )


def _related_calls(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel]
) -> tuple[str, pd.DataFrame] | None:
    """(family, calls) that replace calls of family `name`, row by row; None where no model is related."""
    model = models.get(name)
    if name in ("softmax", "layer_norm", "gemm", "bmm") and model is not None:
        stated = ["flops", "bytes_read", "bytes_written", "inputs", "outputs"]
        forward = calls.drop(columns=stated, errors="ignore").assign(phase="forward")
        return name, forward if model.covers(forward).all() else forward.assign(dtype="fp32")
    other = {"gemm": "bmm", "bmm": "gemm"}.get(name)
    if other in models:
        single = Dims(calls)("B", 1.0)
        product = calls.assign(family=other, B=single, phase="forward", dtype="fp32")
        return str(other), product
    return None
