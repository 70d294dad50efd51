"""Times of calls that no sample covers, derived from models of related calls on the same GPU.

The related call is predicted by its model, and scaled by what physics says the two differ by:
- a backward of softmax or layer norm moves more bytes than the forward at the same efficiency;
- another dtype moves fewer bytes and runs at another peak;
- a convolution whose window the samples lack is the matrix product that it amounts to (implicit GEMM);
- a convolution's data gradient is a convolution with the channels swapped, its weight gradient a matrix product;
- one batched product with a single batch is a plain product, and the other way round.
Intervals widen by `SPREAD`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.kernels.heuristics import Physics, implicit_product
from pipeline.kernels.prediction import Estimate, KernelModel
from pipeline.kernels.work import Dims

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
    related = _related(name, calls, models)
    if related is None:
        return None, ""
    base_name, base = related
    model = models[base_name]
    scale = physics.kernel_us(name, calls) / physics.kernel_us(base_name, base)
    if base_name != name:
        # implicit products and swapped convolutions do the same arithmetic; physics' tile counts must not interfere
        scale = np.where(np.isfinite(scale), 1.0, np.nan)
    return model.predict(base).scale(scale).widen(SPREAD), model.evidence


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
    if name == "conv2d_backward_data" and "conv2d_forward" in models:
        swapped = calls.assign(
            family="conv2d_forward", op="conv", phase="forward", dtype="fp32",
            in_channels=calls["out_channels"], out_channels=calls["in_channels"],
        )  # fmt: skip
        if models["conv2d_forward"].native(swapped).all():
            return "conv2d_forward", swapped
    if name.startswith("conv2d") and "gemm" in models:
        rows, depth, columns, groups = implicit_product(name, Dims(calls))
        whole = pd.DataFrame(
            {"family": "gemm", "op": "linear", "phase": "forward", "dtype": "fp32", "B": 1.0,
             "M": rows * groups, "N": depth, "K": columns},
            index=calls.index,
        )  # fmt: skip
        return "gemm", whole
    return None
