"""What the Python interface finds for a GPU: its models or an altered card's, a variant, the largest batch."""

from __future__ import annotations

import pandas as pd
import pytest

from pipeline.answers.engine import STEPS
from pipeline.answers.memory_fit import estimated_largest_batch, first_digits
from pipeline.answers.predict import predict
from pipeline.answers.who_answers import kernel_predictor
from pipeline.errors import InputError
from pipeline.graph.gpu_memory import needed_bytes
from pipeline.hardware.spec import GpuSpec
from pipeline.question.question import expand


def v100(*overrides: str) -> GpuSpec:
    return expand(["gpu=V100", "model=dlrm_default", *overrides])[0].gpu


CALLS = pd.DataFrame(
    {
        "family": ["gemm", "elementwise", "embedding_forward", "concat", "memcpy_h2d"],
        "op": ["linear", "add", "lookup", "concat", "pinned"],
        "phase": "forward",
        "dtype": "fp32",
        "B": [1, 4096, 2048, None, None],
        "M": [4096, None, None, None, None],
        "N": [1024, None, None, None, None],
        "K": [1024, None, None, None, None],
        "H": [None, 4096, None, None, None],
        "E": [None, None, 1_000_000, None, None],
        "T": [None, None, 8, None, None],
        "L": [None, None, 100, None, None],
        "D": [None, None, 64, None, None],
        "bytes": [None, None, None, 1 << 28, 1 << 26],
    }
).astype({name: "Int64" for name in ("B", "M", "N", "K", "H", "E", "T", "L", "D", "bytes")})


def times(gpu: GpuSpec) -> list[float]:
    return list(kernel_predictor(gpu, "auto", None).predict(CALLS)["kernel_us"])


def test_twice_the_bandwidth_shortens_what_moves_data_and_nothing_else_much() -> None:
    real, fast = times(v100()), times(v100("gpu.dram_gb_per_s=1800"))
    gemm, add, lookup, concat, copy = (b / a for a, b in zip(real, fast, strict=True))
    assert 0.45 < add < 0.65 and 0.45 < lookup < 0.75 and 0.45 < concat < 0.65
    assert 0.8 < gemm <= 1.0
    assert copy == pytest.approx(1.0), "the link to the host is as before"


def test_a_small_change_is_a_small_change() -> None:
    for name, value in (("dram_gb_per_s", 901), ("fp32_tflop_per_s", 14.01), ("l2_mib", 6.01)):
        assert times(v100(f"gpu.{name}={value}")) == pytest.approx(times(v100()), rel=0.0012), (
            name
        )  # of 0.07 to 0.11 %


def test_no_figure_of_another_kind_gets_through() -> None:
    for text in ("gpu.dram_gb_per_s=99999", "gpu.pcie_generation=9"):
        with pytest.raises(InputError, match=r"gpu|GPU"):
            v100(text)


def test_physics_alone_is_what_kernels_roofline_predicts_where_nothing_is_fitted() -> None:
    predictor = kernel_predictor(v100(), "roofline", None)
    assert not predictor.models
    assert set(predictor.predict(CALLS)["evidence"]) <= {"roofline", "pack"}
    with pytest.raises(InputError, match="kernels=trees: no such models were fitted for V100"):
        kernel_predictor(v100(), "trees", None)


@pytest.mark.parametrize(
    ("number", "shown"),
    [(1, 1), (6, 6), (14, 14), (99, 99), (949, 940), (999, 990), (10_999, 10_000)],
)
def test_the_largest_batch_is_never_rounded_up(number: int, shown: int) -> None:
    assert first_digits(number) == shown


def test_the_largest_batch_fits_and_one_more_unit_does_not() -> None:
    from pipeline.graph.capture import capture

    point = expand(["gpu=V100", "model=dlrm_small", "batch_size=64", "gpu.memory_gib=1"])[0]
    most = estimated_largest_batch(point, STEPS.memory_bytes)
    assert most is not None
    unit = 10 ** (len(str(most)) - 2)
    need, more = (
        needed_bytes(capture(point.workload.plain(), batch).memory, point.gpu)
        for batch in (most, most + unit)
    )
    assert need <= v100("gpu.memory_gib=1").usable_memory_bytes < more


@pytest.mark.parametrize("model", ["dlrm_default", "dlrm_ddp"])
def test_more_samples_take_no_less_host_time(model: str) -> None:
    """The lookups' sort has more launches from 8 samples on; both counts have the host times of the same op."""
    host = [predict("V100", model=model, batch_size=size).host_us for size in (2, 4, 8, 16, 64)]
    assert host == sorted(host) and host[-1] < 1.1 * host[0]
