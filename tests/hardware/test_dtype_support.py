"""Which GPUs have TF32 and bf16, against the figures of their files."""

from __future__ import annotations

import pytest

from pipeline.hardware.dtype_support import has_bf16, has_tf32, refuses_bf16
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.local_device import cpu_spec
from pipeline.hardware.spec import list_gpus


def test_the_files_state_a_rate_where_the_gpu_has_the_dtype_and_none_where_it_has_not() -> None:
    for spec in list_gpus():
        assert has_tf32(spec) == (spec.tf32_gflop_per_s is not None), spec.name
        assert has_bf16(spec) == (spec.bf16_gflop_per_s is not None), spec.name


@pytest.mark.parametrize("gpu, refused", [("P4", True), ("P100", True), ("V100", False), ("T4", False), ("A100", False),
                                          ("MI250", False)])  # fmt: skip
def test_pytorch_refuses_bf16_before_volta(gpu: str, refused: bool) -> None:
    assert refuses_bf16(load_gpu(gpu)) == refused


def test_a_cpu_takes_paths_of_its_own() -> None:
    assert has_bf16(cpu_spec()) and not refuses_bf16(cpu_spec())
