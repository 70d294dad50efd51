"""FLOPs and bytes against sums done by hand."""

import pandas as pd
import pytest

from pipeline.errors import UnknownNameError
from pipeline.kernels.families import family, work_of


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


def test_half_precision_moves_half_the_bytes():
    rows = [one(op="softmax", B=4, H=8).assign(dtype=dtype) for dtype in ("fp32", "bf16")]
    wide, narrow = (work_of("softmax", row) for row in rows)
    assert narrow.bytes[0] == wide.bytes[0] / 2


def test_own_byte_counts_outrank_the_formula():
    calls = one(op="relu", B=4, H=8, flops=0.0, bytes_read=1000.0, bytes_written=10.0)
    assert work_of("elementwise", calls).bytes[0] == 1010.0


def test_an_unknown_family_lists_the_choices():
    with pytest.raises(UnknownNameError, match="gemm"):
        family("gem")
