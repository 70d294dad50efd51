"""FLOPs and bytes against sums done by hand."""

import pandas as pd
import pytest

from pipeline.errors import UnknownNameError
from pipeline.families import family, work_of
from tests.kernels.shipped import CONVOLUTIONS, shipped


def one(**values):
    return pd.DataFrame([{"phase": "forward", "dtype": "fp32", **values}])


def test_a_linear_layer_reads_operands_and_bias_and_writes_its_output():
    found = work_of("gemm", one(op="linear", B=1, M=2, N=3, K=5))
    assert found.flops[0] == 2 * 2 * 3 * 5
    assert found.read[0] == 4 * (2 * 3 + 3 * 5 + 5)
    assert found.written[0] == 4 * 2 * 5


def test_a_convolution_counts_every_output_position():
    window = {"kernel_size": 3, "input_size": 8, "stride": 2, "padding": 1}
    found = work_of("conv2d_forward", one(op="conv", B=2, in_channels=3, out_channels=4, **window))
    assert found.flops[0] == 2 * (2 * 4 * 4 * 4) * 3 * 9
    assert found.written[0] == 4 * 2 * 4 * 4 * 4


def test_two_operands_are_read_by_add_and_one_by_its_scalar_variant():
    both = pd.concat([one(op="add", B=4, H=8), one(op="addu", B=4, H=8)])
    assert work_of("elementwise", both).read.tolist() == [256.0, 128.0]


@pytest.mark.parametrize(
    "causal, phase, products",
    [
        ("false", "forward", 2),
        ("true", "forward", 1),
        ("false", "backward", 5),
        ("true", "backward", 2.5),
    ],
)
def test_attention_multiplies_twice_and_a_causal_mask_halves_that(causal, phase, products):
    """6 heads of 64, 128 queries and keys: queries times keys, scores times values; five products in the backward pass."""
    call = one(op="flash", B=6, M=128, N=128, K=64, attributes=f'{{"causal":{causal}}}')
    found = work_of("attention", call.assign(dtype="bf16", phase=phase))
    assert found.flops[0] == products * 2 * 6 * 128 * 128 * 64
    reads = 2.5 if phase == "backward" else 1
    assert found.read[0] == reads * 2 * 6 * 64 * (128 + 2 * 128), "the mask saves no bytes"


def test_half_precision_moves_half_the_bytes():
    wide, narrow = (
        work_of("softmax", one(op="softmax", B=4, H=8).assign(dtype=dtype))
        for dtype in ("fp32", "bf16")
    )
    assert narrow.bytes[0] == wide.bytes[0] / 2


def test_own_byte_counts_outrank_the_formula():
    calls = one(op="relu", B=4, H=8, flops=0.0, bytes_read=1000.0, bytes_written=10.0)
    assert work_of("elementwise", calls).bytes[0] == 1010.0


def test_an_unknown_family_lists_the_choices():
    with pytest.raises(UnknownNameError, match="gemm"):
        family("gem")


def over_fp64(gpu: str, tera: float, family: str, **call: object) -> float:
    """Time of a kernel in fp64 over that of its arithmetic at a rate of fp64."""
    table = one(family=family, **call).assign(dtype="fp64")
    found = shipped(gpu).predict(table).iloc[0]
    assert found["evidence"] == "roofline"
    return found["kernel_us"] / (work_of(family, table).flops[0] / tera / 1e6)


@pytest.mark.parametrize(("gpu", "tera"), [("T4", 8.1 / 32), ("V100", 7.0), ("A100", 19.5)])
def test_fp64_products_take_their_arithmetic_at_the_rate_of_fp64(gpu: str, tera: float) -> None:
    assert 1.0 < over_fp64(gpu, tera, "gemm", op="mm", B=1, M=4096, N=4096, K=4096) < 1.3


@pytest.mark.parametrize("groups", [1, 64])
@pytest.mark.parametrize(("gpu", "tera"), [("T4", 8.1 / 32), ("A100", 9.7)])
def test_fp64_convolutions_take_their_arithmetic_outside_tensor_cores(
    gpu: str, tera: float, groups: int
) -> None:
    image = {"B": 64, "in_channels": 64, "out_channels": 64, "kernel_size": 3, "input_size": 56}
    for name in CONVOLUTIONS:
        assert over_fp64(gpu, tera, name, op="conv", padding=1, groups=groups, **image) > 1.0


def test_other_kernels_in_fp64_take_their_arithmetic_at_the_rate_of_fp64() -> None:
    """Products of 64 vectors of 64 elements with each other: 63 FLOP for each element, at a 64th of the rate of fp32."""
    assert (
        1.0 < over_fp64("RTX3090", 35.6 / 64, "interaction", op="fused", B=4096, F=64, D=64) < 1.3
    )


def test_frames_of_a_ctc_loss_follow_each_other() -> None:
    """512 and 1,024 frames take 0.66 and 1.12 ms, 1.01 and 1.89 ms on two GPUs (flagos-ai/FlagGems, 2723 and 3265)."""
    sizes = {"B": 32 * 512, "H": 97, "inputs": 4, "outputs": 4, "T": [512, 1024]}
    table = pd.DataFrame({"family": "loss", "op": "ctc_loss", **sizes})
    short, long = shipped("A100").predict(table)["kernel_us"]
    assert 1116 - 656 < long - short < 1894 - 1008
