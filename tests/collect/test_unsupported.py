"""What the device cannot run in a dtype is told in one line, and skipped by name in a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.collect.device import UnsupportedByDeviceError, is_unsupported, reporting_unsupported
from pipeline.collect.measured_steps import collect_step
from pipeline.collect.microbenchmarks import measure_calls
from pipeline.errors import MeasurementError, SteptimeWarning
from pipeline.question.question import expand

ONEDNN = (
    "could not create a primitive descriptor for the LSTM forward propagation primitive. Run"
    " workload with environment variable ONEDNN_VERBOSE=all to get additional diagnostic"
    " information."
)
GNMT = "gpu=V100 model=gnmt model.width=16 model.vocabulary=100 model.seq_len=4 model.dtype=bf16"


def lacks_lstm(*_: Any, **__: Any) -> Any:
    """What the fused LSTM in bf16 says on a processor without AVX-512."""
    raise RuntimeError(ONEDNN)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.linalg.inv(torch.eye(4).half()),
        lambda: torch.fft.fft(torch.zeros(4).bfloat16()),
        lambda: torch.ops.aten._thnn_fused_lstm_cell(*torch.ones(3, 4, 4)),
    ],
)
def test_what_pytorch_really_says_of_such_operators_is_recognised(call: Any) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert is_unsupported(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ValueError("not supported"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"),
    ],
)
def test_other_errors_keep_their_kind(error: Exception) -> None:
    with (
        pytest.raises(type(error)) as caught,
        reporting_unsupported("x", "bf16", torch.device("cpu")),
    ):
        raise error
    assert caught.value is error


def test_a_step_that_the_cpu_cannot_run_is_one_line_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch._VF, "lstm", lacks_lstm)
    config = expand(GNMT.split())[0].section("model")
    with pytest.raises(UnsupportedByDeviceError) as caught:
        collect_step(config, 2, "cpu", tmp_path)
    told = str(caught.value)
    assert told.startswith("gnmt at batch 2: this CPU (") and "\n" not in told
    assert "in bf16" in told and "LSTM" in told and "model.dtype=fp32" in told
    assert "ONEDNN_VERBOSE" not in told
    assert caught.value.exit_code == MeasurementError.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_kernel_that_the_cpu_cannot_run_is_skipped_by_name_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "bmm", lacks_lstm)
    calls = pd.DataFrame({"family": ["bmm", "elementwise"], "op": ["bmm", "relu"]})
    calls = calls.assign(phase="forward", dtype=["bf16", "fp32"], B=2, M=8, N=8, K=8, H=8)
    with pytest.warns(
        SteptimeWarning,
        match=r"bmm bmm: this CPU .* cannot run it in bf16 \(could not create .*skipped",
    ):
        found = measure_calls(calls, "cpu", 0.2, sampled=False)
    assert list(found["family"]) == ["elementwise"]
