"""Times of calls that no sample covers, derived from models of related calls on the same GPU.

The related call is predicted by its model, and scaled by what physics says the two differ by:
- a backward of softmax or layer norm moves more bytes than the forward at the same efficiency;
- another dtype moves fewer bytes and runs at another peak;
- a convolution whose window the samples lack is the matrix product that it amounts to (implicit GEMM), where products
  of such sizes were sampled;
- a convolution's data gradient is a convolution with the channels swapped, its weight gradient takes as long as the
  forward pass, where such a convolution was sampled; else both are implicit products; `gradients` adds what they take
  beyond that;
- one batched product with a single batch is a plain product, and the other way round.
Intervals widen by `SPREAD`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.kernels.estimate import Estimate, KernelModel, merge
from pipeline.kernels.physics import Physics
from pipeline.kernels.tensor_core_convolution import on_tensor_cores
from pipeline.kernels.work import Dims, implicit_product

SPREAD = 1.7
"""Factor up and down that physics' scaling adds to the base model's interval, taken as independent of it; TF32 products
and layer norm's backward in the A100 DLRM trace leave about three of four kernels inside."""


def derive(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel], physics: Physics
) -> tuple[Estimate | None, str]:
    """Estimate calls through a related model; (None, "") where there is none.

    Returns:
        The estimate (kernel NaN where a row has no related call), and the evidence of the model behind it.
    """
    if name.startswith("conv2d"):
        return _convolution(name, calls, models, physics)
    related = _related(name, calls, models)
    if related is None:
        return None, ""
    base_name, base = related
    model = models[base_name]
    scale = physics.kernel_us(name, calls) / physics.kernel_us(base_name, base)
    if base_name != name:
        # a batched product of one does the same arithmetic; physics' tile counts must not interfere
        scale = np.where(np.isfinite(scale), 1.0, np.nan)
    return model.predict(base).scale(scale).widen(SPREAD), model.evidence


def _convolution(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel], physics: Physics
) -> tuple[Estimate | None, str]:
    """Row by row: a gradient by the sampled forward convolution of the same arithmetic, else by an implicit product.

    Images make products far taller than any that was sampled; a model's guess there is off by up to ten, physics by a
    quarter (1x1 convolutions of ResNet-50 on the V100), so that such rows are left to physics. So are those that tensor
    cores compute: fp32 models know nothing of their peak, nor of the images that cuDNN turns for them. Only where TF32 is
    allowed and the card has little of it (GeForce), Winograd in fp32 may be quicker, and is what the library takes.
    """
    dtype = Dims(calls).text("dtype", "fp32")
    tensor = on_tensor_cores(Dims(calls), physics.gpu)
    tf32 = tensor & (dtype == "tf32")
    if tensor.all() and not tf32.any():
        return None, ""
    found, evidence = _on_fp32_cores(name, calls, models, physics)
    if found is None or not tensor.any():
        return found, evidence
    quicker = tf32 & (found.kernel < physics.kernel_us(name, calls))
    return found.scale(np.where(tensor & ~quicker, np.nan, 1.0)), evidence


def _on_fp32_cores(
    name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel], physics: Physics
) -> tuple[Estimate | None, str]:
    """Estimates of all rows as fp32 convolutions, with what gradients take beyond a forward pass."""
    found: Estimate | None = None
    evidence = ""
    if "gemm" in models:
        product = models["gemm"].predict(_product(name, calls))
        found, evidence = product.scale(np.where(product.inside, 1.0, np.nan)), models["gemm"].evidence
    forward = models.get("conv2d_forward")
    if forward is not None:
        alike = calls.assign(family="conv2d_forward", op="conv", phase="forward", dtype="fp32")
        if name == "conv2d_backward_data":
            alike = alike.assign(in_channels=calls["out_channels"], out_channels=calls["in_channels"])
        sampled = forward.native(alike)
        if sampled.any():
            if found is None:
                found = forward.predict(alike).scale(np.where(sampled, 1.0, np.nan))
            else:
                found = merge(found, forward.predict(alike[sampled]), sampled)
            evidence = forward.evidence
    if found is None:
        return None, ""
    if name != "conv2d_forward" and physics.gpu.limits is not None:
        found = found.scale(physics.gradient_us(name, calls, found.kernel) / found.kernel)
    return found.widen(SPREAD), evidence


def _product(name: str, calls: pd.DataFrame) -> pd.DataFrame:
    """The matrix product that each convolution amounts to."""
    rows, depth, columns, groups = implicit_product(name, Dims(calls))
    return pd.DataFrame(
        {"family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "B": 1.0,
         "M": rows * groups, "N": depth, "K": columns},
        index=calls.index,
    )  # fmt: skip


def _related(name: str, calls: pd.DataFrame, models: Mapping[str, KernelModel]) -> tuple[str, pd.DataFrame] | None:
    """(family, calls) that stand in for calls of family `name`, row by row; None where no model is related."""
    own = models.get(name)
    if name in ("softmax", "layer_norm", "gemm", "bmm") and own is not None:
        drop = [column for column in ("flops", "bytes_read", "bytes_written", "inputs", "outputs") if column in calls]
        return name, calls.drop(columns=drop).assign(phase="forward", dtype="fp32")
    other = {"gemm": "bmm", "bmm": "gemm"}.get(name)
    if other in models:
        single = Dims(calls)("B", 1.0)
        product = calls.assign(family=other, B=single, phase="forward", dtype="fp32")
        return str(other), product
    return None
