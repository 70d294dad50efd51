"""Kernels that neither bandwidth nor peak arithmetic limits: what an H100 measured, and what follows for other GPUs."""

from dataclasses import replace

import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.answers.who_answers import kernel_predictor
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics

H100 = load_gpu("H100")


def call(family, op, **values):
    return {"family": family, "op": op, "phase": "forward", "dtype": "fp32", **values}


def time_us(one, gpu=H100):
    """By the GPU's file alone: cross-GPU models and physics."""
    table = pd.DataFrame([one])
    return float(load_predictor(gpu).predict(table)["kernel_us"].iloc[0])


@pytest.mark.parametrize(
    ("one", "measured_us"),
    [
        (call("tril_index_backward", "index_put", B=2048, F=27), 147.0),
        (call("loss", "nll_loss", phase="backward", B=4096, H=50257), 10.2),
        (call("loss", "nll_loss", B=73168, H=64), 62.9),
        (call("bmm", "bmm", B=4096, M=9, N=64, K=9), 26.3),
        (call("bmm", "bmm", B=1024, M=9, N=128, K=9), 11.8),
        (
            call("pooling", "avg_pool2d", B=64, C=128, HW=1225, kernel_size=3, stride=1),
            127.9,
        ),
        (
            call(
                "pooling",
                "avg_pool2d",
                phase="backward",
                B=64,
                C=2048,
                HW=64,
                kernel_size=3,
                stride=1,
            ),
            245.6,
        ),
        (call("attention", "efficient", B=32, M=512, N=512, K=64), 79.0),
        (
            call("attention", "efficient", phase="backward", B=61, M=312, N=492, K=64),
            233.9,
        ),
        (
            call("attention", "cudnn", dtype="bf16", B=32, M=512, N=512, K=64),
            9.5,
        ),
        (
            call(
                "attention",
                "flash",
                dtype="bf16",
                B=32,
                M=512,
                N=512,
                K=64,
                attributes='{"chosen": true}',
            ),
            9.5,
        ),
        (call("layer_norm", "ln", B=2048, H=1024), 9.0),
        (call("layer_norm", "ln", B=33203, H=318), 222.2),
        (call("layer_norm", "ln", phase="backward", B=65536, H=300), 307.3),
        (
            call("embedding_forward", "bag", B=8192, T=1, E=8000000, L=100, D=64),
            136.5,
        ),
        (
            call("embedding_backward", "sparse", phase="backward", B=2048, T=1, E=15, L=1, D=128),
            2.7,
        ),
        (call("batch_norm", "batch_norm", B=64, C=32, HW=5329), 218.3),
        (
            call(
                "optimizer",
                "foreach_mul",
                bytes=20837376,
                tensors=2,
                inputs=20837376,
                outputs=20837376,
            ),
            16.8,
        ),
        (
            call("copy", "transpose", bytes=20971520, attributes='{"strided": true}'),
            42.4,
        ),
        (call("memcpy_d2h", "pageable", bytes=1 << 20), 21.0),
        (call("elementwise", "relu", B=1, H=3145728), 6.1),
    ],
)
def test_an_h100_takes_what_it_measured(one, measured_us):
    assert time_us(one) == pytest.approx(measured_us, rel=0.2)


def test_a_likelihood_takes_as_long_for_any_number_of_classes():
    few, many = (time_us(call("loss", "nll_loss", B=4096, H=classes)) for classes in (10, 100_000))
    assert few == many


def test_starts_are_shorter_since_ada_and_clock_cycles_there():
    assert Physics.of(load_gpu("A100")).start_us("concat") == 3.5
    assert Physics.of(H100).start_us("concat") == pytest.approx(1.7)
    assert Physics.of(load_gpu("RTX4090")).start_us("concat") == pytest.approx(1.7 * 1980 / 2520)


@pytest.mark.parametrize("name", ["H100", "L4", "RTX4090"])
def test_what_fits_into_l2_moves_at_most_twice_as_fast_as_in_dram(name):
    """Results in L2 push out earlier ones, which go to DRAM."""
    gpu = load_gpu(name)
    physics = Physics.of(gpu).streaming()
    small, large = (physics.moving_us(share * gpu.l2_bytes) / share for share in (0.25, 64.0))
    assert 1.5 < large / small <= 2.0
    assert Physics.of(gpu).moving_us(gpu.l2_bytes) == Physics.of(gpu).memory.moving_us(gpu.l2_bytes)


def test_half_of_the_sms_take_twice_as_long_for_sorted_positions():
    one = call("tril_index_backward", "index_put", B=4096, F=27)
    start = Physics.of(H100).start_us("tril_index_backward")
    whole, half = time_us(one) - start, time_us(one, replace(H100, name="half", sms=66)) - start
    assert half == pytest.approx(2 * whole, rel=0.01)


def test_unaligned_rows_of_a_measured_card_lie_between_its_fit_and_older_traces():
    """A public H100 trace has 5,707 us (5,000 cycles a row), PyTorch 2.11 on our H100 264 us for 25,632 rows of 2,603 (2,700)."""
    rows = pd.DataFrame(
        call(
            "softmax",
            "softmax",
            dtype="bf16",
            B=[301152.0, 25632.0, 25632.0],
            H=[3137.0, 2603.0, 2608.0],
        )
    )
    times = kernel_predictor(H100, "auto").predict(rows)
    assert times["p10_us"][0] < 5_707 < times["p90_us"][0]
    assert times["p10_us"][1] < 264 < times["p90_us"][1]
    assert times["kernel_us"][1] > 1.2 * times["kernel_us"][2], "aligned rows are the fit's alone"


def test_unaligned_rows_take_the_geometric_mean_of_their_fit_and_of_older_traces():
    """PyTorch loads eight elements of 2 bytes at once: rows of 2,604 begin beside such a vector, too. 5,000 cycles a row."""
    rows = pd.DataFrame(
        call(
            "softmax",
            "softmax",
            dtype="bf16",
            B=25632.0,
            H=[2603.0, 2604.0, 2608.0],
        )
    )
    predictor = kernel_predictor(H100, "auto")
    fit_us = predictor.models["softmax"].predict(rows).kernel
    older_us = 25_632 * 5_000 / (H100.sms * H100.boost_clock_mhz)
    found = predictor.predict(rows)["kernel_us"]
    assert list(found) == pytest.approx(
        [(fit_us[0] * older_us) ** 0.5, (fit_us[1] * older_us) ** 0.5, fit_us[2]]
    )
    assert found[0] > 1.2 * fit_us[0]
