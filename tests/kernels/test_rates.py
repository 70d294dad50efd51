"""Samples faster than any GPU can run are refused; numbers here are invented."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import TableError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.samples import check_rates


def products(tflop_per_s, dtype="fp32"):
    size = np.linspace(256, 4096, 40).astype(int)
    sizes = pd.DataFrame({"B": 1, "M": size, "N": size, "K": size})
    latency_us = 5.0 + 2.0 * size.astype(float) ** 3 / tflop_per_s / 1e6
    facts = {"family": "gemm", "op": "mm", "phase": "forward", "dtype": dtype}
    return sizes.assign(latency_us=latency_us, **facts)


def test_milliseconds_are_refused_before_a_fit():
    slow = products(10.0)
    with pytest.raises(
        TableError,
        match=r"samples of gemm: 40 of 40 are faster than V100 can compute.*microseconds",
    ):
        fit_family(
            slow.assign(latency_us=slow["latency_us"] / 1000), load_gpu("V100"), "gemm", "trees"
        )


def test_tf32_under_the_name_of_fp32_is_refused_and_under_its_own_is_not():
    with pytest.raises(TableError, match=r"its fp32 peak.*tf32 where"):
        check_rates(products(120.0), load_gpu("A100"), "gemm")
    check_rates(products(120.0, "tf32"), load_gpu("A100"), "gemm")
    check_rates(products(120.0, "fp16"), load_gpu("A100"), "gemm")


def test_fast_samples_single_slips_constants_and_unknown_devices_are_not_refused():
    check_rates(products(20.0), load_gpu("V100"), "gemm")  # more than the datasheet's 15.7
    slipped = products(10.0)
    slipped.loc[0, "latency_us"] = 1e-3
    check_rates(slipped, load_gpu("V100"), "gemm")
    check_rates(products(1e4), load_gpu("V100"), "softmax")
    check_rates(products(120.0).assign(latency_us=0.05), load_gpu("V100"), "gemm")
    check_rates(products(120.0), replace(load_gpu("V100"), name="local"), "gemm")
