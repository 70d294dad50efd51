"""A Hopper GPU's launches and kernels have other names than those of public traces; they mean the same."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.overheads.extraction import extract_overheads
from pipeline.trace.host_activity import Activity, activity
from pipeline.trace.load import load_trace
from pipeline.transfer.trace_calls import trace_calls

NAMES = (("cudaLaunchKernelExC", "cuda_runtime"), ("cuLaunchKernelEx", "cuda_driver"))
"""What launches cuBLAS's kernels on H100 and H200, and its category."""
PLAIN = ("INVALID", "__cudaLaunchKernel")
"""What launches PyTorch's own kernels in programs built with CUDA 13; the profiler of torch 2.11 knows it by number
alone."""


@pytest.fixture(scope="module")
def found(datasets: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Activity]:
    """What the host did in a trace of DLRM, and in the same as a Hopper GPU would name it."""
    old = datasets / "traces" / "v100x8_dlrm" / "rank0_kineto.json.gz"
    trace: dict[str, Any] = json.loads(gzip.decompress(old.read_bytes()))
    gemms = {
        e["args"]["correlation"]
        for e in trace["traceEvents"]
        if e.get("cat") == "kernel" and "gemm" in e["name"]
    }
    for number, event in enumerate(trace["traceEvents"]):
        if event.get("name") == "cudaLaunchKernel" and event.get("ph") == "X":
            event["name"] = PLAIN[number % 2]
            event["args"]["cbid"] = 505
        if event.get("args", {}).get("correlation") not in gemms or event.get("ph") != "X":
            continue
        if event["cat"] == "kernel":
            event["name"] = f"nvjet_sm90_sss_128x{number % 7}_64x4_2x1_v_bz_coopA_TNN"
        else:
            event["name"], event["cat"] = NAMES[number % 2]
    assert len(gemms) > 20
    new = tmp_path_factory.mktemp("hopper") / "kineto.json.gz"
    new.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return [activity(load_trace(path)) for path in (old, new)]


def test_overheads_do_not_depend_on_the_name_of_a_launch(found: list[Activity]) -> None:
    before, after = (extract_overheads(act, "x") for act in found)
    assert "cudaLaunchKernel" in set(before["api"].dropna())
    pd.testing.assert_frame_equal(before, after)


def test_products_are_known_by_their_new_names(found: list[Activity]) -> None:
    calls = [trace_calls(act, np.arange(min(len(act.call_event), 400))) for act in found]
    families = [table["family"].value_counts().to_dict() for table in calls]
    assert "gemm" in families[0]
    assert families[1] == families[0]
