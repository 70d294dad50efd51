"""Kernels that neither bandwidth nor peak arithmetic limits: what an H100 measured, and what follows for other GPUs."""

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
        (call("loss", "nll_loss", B=73168, H=64), 62.9),
        (call("bmm", "bmm", B=4096, M=9, N=64, K=9), 26.3),
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
    ],
)
def test_an_h100_takes_what_it_measured(one, measured_us):
    assert time_us(one) == pytest.approx(measured_us, rel=0.2)


def test_a_likelihood_takes_as_long_for_any_number_of_classes():
    few, many = (time_us(call("loss", "nll_loss", B=4096, H=classes)) for classes in (10, 100_000))
    assert few == many


@pytest.mark.parametrize("name", ["H100", "L4"])
def test_what_fits_into_l2_moves_at_most_twice_as_fast_as_in_dram(name):
    """Results in L2 push out earlier ones, which go to DRAM."""
    gpu = load_gpu(name)
    physics = Physics.of(gpu).streaming()
    small, large = (physics.moving_us(share * gpu.l2_bytes) / share for share in (0.25, 64.0))
    assert 1.5 < large / small <= 2.0
    assert Physics.of(gpu).moving_us(gpu.l2_bytes) == Physics.of(gpu).memory.moving_us(gpu.l2_bytes)


def test_unaligned_rows_of_a_measured_card_lie_between_its_fit_and_older_traces():
    """A public H100 trace has 5,707 us (5,000 cycles a row), PyTorch 2.11 on our H100 264 us for 25,632 rows of 2,603 (2,700)."""
    sizes = {"B": [301152.0, 25632.0, 25632.0], "H": [3137.0, 2603.0, 2608.0]}
    rows = pd.DataFrame(call("softmax", "softmax", **sizes)).assign(dtype="bf16")
    times = kernel_predictor(H100, "auto").predict(rows)
    assert times["p10_us"][0] < 5_707 < times["p90_us"][0]
    assert times["p10_us"][1] < 264 < times["p90_us"][1]
    assert times["kernel_us"][1] > 1.2 * times["kernel_us"][2], "aligned rows are the fit's alone"
