"""The kernel predictors that ship, and calls of convolutions to ask them for."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

from pipeline.answers.kernel_predictor import KernelPredictor
from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu

CONVOLUTIONS = ("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight")


@lru_cache(maxsize=8)
def shipped(gpu: str) -> KernelPredictor:
    """What predicts kernels of a GPU where no results of a run are at hand."""
    return kernel_predictor(load_gpu(gpu), "auto", None)


def convolution(
    family: str = CONVOLUTIONS[0],
    dtype: str = "fp32",
    attributes: str | None = None,
    **dims: float | None,
) -> pd.DataFrame:
    """A convolution: 3 x 3 on 128 channels of 32 images of 28 x 28, changed."""
    usual = {
        "B": 32,
        "in_channels": 128,
        "out_channels": 128,
        "kernel_size": 3,
        "input_size": 28,
        "stride": 1,
        "padding": 1,
    }
    phase = "forward" if family == CONVOLUTIONS[0] else "backward"
    said = {"family": family, "op": "conv", "phase": phase, "dtype": dtype}
    return pd.DataFrame([{**said, "attributes": attributes, **usual, **dims}])
