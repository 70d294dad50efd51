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
from pipeline.paths import datasets_dir
from pipeline.trace.host_activity import Activity, activity
from pipeline.trace.load import load_trace
from pipeline.transfer.trace_calls import trace_calls

NAMES = (("cudaLaunchKernelExC", "cuda_runtime"), ("cuLaunchKernelEx", "cuda_driver"))
"""What launches cuBLAS's kernels on H100 and H200, and its category."""
PLAIN = {"rtx2080ti_linear/kineto": "INVALID", "v100x8_dlrm/rank0_kineto": "__cudaLaunchKernel"}
"""What launches PyTorch's own kernels in programs built with CUDA 13; the profiler of torch 2.11 knows it by number
alone. A trace of linear layers and one of DLRM (with shapes) have one of them each."""


@pytest.fixture(scope="module", params=PLAIN)
def paths(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A trace of linear layers or of DLRM (with shapes), and the same as a Hopper GPU would name it."""
    folder = datasets_dir()
    if folder is None:
        pytest.skip("no public data")
    old = folder / "traces" / f"{request.param}.json.gz"
    trace: dict[str, Any] = json.loads(gzip.decompress(old.read_bytes()))
    gemms = {
        e["args"]["correlation"]
        for e in trace["traceEvents"]
        if e.get("cat") == "kernel" and "gemm" in e["name"]
    }
    for number, event in enumerate(trace["traceEvents"]):
        if event.get("name") == "cudaLaunchKernel" and event.get("ph") == "X":
            event["name"] = PLAIN[request.param]
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
    return old, new


@pytest.fixture(scope="module")
def found(paths: tuple[Path, Path]) -> tuple[Activity, Activity]:
    """What the host did in both."""
    return activity(load_trace(paths[0])), activity(load_trace(paths[1]))


def test_overheads_do_not_depend_on_the_name_of_a_launch(found: tuple[Activity, Activity]) -> None:
    before, after = (extract_overheads(act, "x") for act in found)
    assert "cudaLaunchKernel" in set(before["api"].dropna())
    pd.testing.assert_frame_equal(before, after)


def test_products_are_known_by_their_new_names(found: tuple[Activity, Activity]) -> None:
    calls = [trace_calls(act, np.arange(min(len(act.call_event), 400))) for act in found]
    families = [table["family"].value_counts().to_dict() for table in calls]
    assert ("gemm" in families[0]) == (
        "dlrm" in str(found[0].trace.path)
    )  # the other trace was recorded without shapes
    assert families[1] == families[0]
