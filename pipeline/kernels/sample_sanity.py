"""Detection of samples that are faster than their GPU can compute.

Typical causes are latencies in milliseconds instead of microseconds, and TF32 products that are labelled fp32.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pipeline.errors import TableError
from pipeline.hardware.find_gpu import LOCAL
from pipeline.hardware.spec import GpuSpec
from pipeline.kernels.work import Dims, matrix_product

PRODUCTS = ("gemm", "bmm")
"""Families whose kernels need at least the counted FLOPs. Convolutions are excluded: Winograd kernels need fewer."""

MAX_PEAK_MULTIPLE = 4.0
"""Multiple of the GPU's peak FLOP/s that no correct sample reaches. Boost clocks and peaks that were measured too low
give ratios below 2. TF32 on an A100 is 8 times as fast as its fp32, and milliseconds give a factor of 1000."""

MAX_FAULTY_SHARE = 0.05
"""Share of a family's samples up to which such rows are accepted as errors of single measurements."""


def check_rates(samples: pd.DataFrame, gpu: GpuSpec, name: str) -> None:
    """Reject a family's samples (one row per call) if more than `MAX_FAULTY_SHARE` exceed `MAX_PEAK_MULTIPLE` peaks.

    Raises:
        TableError: the samples are rejected; the message names the first such row.
    """
    if name not in PRODUCTS or samples.empty or gpu.name == LOCAL:  # some figures of the local machine are assumed
        return
    if samples["latency_us"].nunique() == 1:  # the model learns a constant from such samples, in any unit
        return
    dtype = (
        samples["dtype"].fillna("fp32").astype(str) if "dtype" in samples.columns else pd.Series("fp32", samples.index)
    )
    peaks = {each: gpu.peak_gflop_per_s(each) for each in dtype.unique() if getattr(gpu, f"{each}_gflop_per_s", None)}
    peak = dtype.map(peaks).to_numpy(dtype=np.float64, na_value=np.nan)
    latency = samples["latency_us"].to_numpy(dtype=np.float64)
    times_peak = matrix_product(Dims(samples)).flops / 1e3 / latency / peak
    beyond = np.flatnonzero(times_peak > MAX_PEAK_MULTIPLE)
    if len(beyond) <= MAX_FAULTY_SHARE * len(samples):
        return
    row = int(beyond[0])
    raise TableError(
        f"samples of {name}: {len(beyond)} of {len(samples)} are faster than {gpu.name} can compute (row {row}: "
        f"{times_peak[row]:,.0f} times its {dtype.iloc[row]} peak): latency_us must be microseconds, and dtype what was "
        "computed in (tf32 where PyTorch was allowed to use it)"
    )
