"""Half precision on an H100: kernels that gain nothing, or little, from halved bytes.

Measured times are medians of profiler traces of an H100 (AMD-AGI/TraceLens, commit 171dd747, MIT), within a fifth.
"""

from dataclasses import replace

import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.model_files import pack_models

STRIDED = '{"strided":true}'


def kernel(gpu="H100", **call):
    row = {"phase": "forward", "dtype": "bf16", "op": call["family"], **call}
    return load_predictor(load_gpu(gpu)).predict(pd.DataFrame([row])).iloc[0]


def moved(family, op, elements, attributes=STRIDED, reads=1, size=2):
    size = {"bytes": size * elements, "inputs": size * reads * elements, "outputs": size * elements}
    return {"family": family, "op": op, "B": 1, "H": elements, "attributes": attributes, **size}


@pytest.mark.parametrize(
    ("call", "measured_us"),
    [
        (
            {"family": "bmm", "B": 96, "M": 3137, "N": 64, "K": 3137},
            1897.1,
        ),  # rows of an odd number of elements
        ({"family": "bmm", "B": 96, "M": 3137, "N": 3137, "K": 64, "trans_b": 0}, 1693.7),
        ({"family": "bmm", "B": 37632, "M": 8, "N": 8, "K": 64}, 107.9),
        ({"family": "bmm", "B": 37632, "M": 8, "N": 64, "K": 8}, 40.7),
        (
            {"family": "gemm", "op": "linear", "B": 1, "M": 141, "N": 512, "K": 30522},
            41.3,
        ),  # rows of an even number
        (
            {"family": "gemm", "op": "linear", "B": 1, "M": 141, "N": 512, "K": 512},
            5.8,
        ),  # short layers
        ({"family": "gemm", "op": "linear", "B": 1, "M": 788, "N": 768, "K": 768}, 8.3),
        ({"family": "gemm", "op": "linear", "B": 1, "M": 25089, "N": 3072, "K": 768}, 158.0),
        ({"family": "softmax", "B": 301152, "H": 3137}, 5706.6),
        ({"family": "softmax", "B": 301056, "H": 8}, 7.7),
        ({"family": "layer_norm", "op": "ln", "B": 141, "H": 512}, 3.1),
        ({"family": "layer_norm", "op": "ln", "B": 25096, "H": 768}, 59.5),
        (
            moved("elementwise", "mul", 9157376),
            27.9,
        ),  # a broadcast operand: the table of rotary embeddings
        (moved("copy", "transpose", 9157376), 29.3),
        (moved("elementwise", "add", 9157376, reads=2), 34.8),
        (moved("concat", "cat", 9157376), 42.0),
        (moved("copy", "transpose", 19273728, '{"strided":true,"scattered":true}'), 153.8),
        (moved("elementwise", "gelu", 77073408, None), 127.8),
        (
            {
                "family": "conv2d_forward",
                "op": "conv",
                "B": 128,
                "in_channels": 3,
                "out_channels": 768,
                "kernel_size": 16,
                "input_size": 224,
                "stride": 16,
            },
            1198.3,
        ),
    ],
)
def test_half_precision_kernels_of_an_h100_take_what_a_profiler_measured(call, measured_us):
    found = kernel(**call)
    assert found["kernel_us"] == pytest.approx(measured_us, rel=0.25)
    assert found["p10_us"] <= measured_us <= found["p90_us"]


@pytest.mark.parametrize("gpu", ["V100", "H100"])
def test_strides_cost_little_where_elements_have_four_bytes(gpu):
    plain, strided = (
        kernel(gpu, dtype="fp32", **moved("copy", "transpose", 1 << 24, said, size=4))["kernel_us"]
        for said in (None, STRIDED)
    )
    assert plain <= strided < 1.25 * plain


def test_an_operand_of_another_layout_makes_a_kernel_strided():
    image = Tensor((8, 768, 14, 14), "bf16", ())
    turned = replace(image, strides=(150528, 1, 10752, 768))
    bias = Tensor((1, 768, 1, 1), "bf16", (768, 1, 1, 1))
    others = [image, bias, turned, Tensor((), "bf16")]
    nodes = [
        Node(i, "aten::add", order=i, inputs=(image, other), outputs=(image,))
        for i, other in enumerate(others)
    ]
    said = map_calls(Graph(write_nodes(nodes)), load_gpu("H100"))["attributes"].fillna("")
    assert said.str.contains("strided").tolist() == [False, True, True, False]
    assert Tensor((1, 25088, 768), "bf16", (19268352, 768, 1)).contiguous, "a single row"


@pytest.mark.parametrize("family, batch, rows", [("bmm", 589_824, 576), ("gemm", 1, 39_337_984)])
def test_many_thin_products_take_about_as_long_as_their_bytes(family, batch, rows):
    """Talking heads of CaiT-XXS24 (576 x 4 times 4 x 4) and positions of ConViT, whose steps leave no more time."""
    call = {"family": family, "op": family, "B": batch, "M": rows, "N": 4, "K": 4}
    moved_us = 2 * batch * rows * 8 / 0.9e6
    assert moved_us / 1.2 < kernel("RTX4090", **call)["kernel_us"] < 3 * moved_us


@pytest.mark.parametrize(
    ("call", "measured_us"),
    [
        ({"family": "softmax", "B": 49104, "H": 954}, 89.4),
        ({"family": "layer_norm", "op": "ln", "B": 16384, "H": 1024, "phase": "backward"}, 120.2),
    ],
)
def test_fp16_takes_the_times_of_bf16_where_a_pack_has_samples_of_that_alone(call, measured_us):
    asked = {"phase": "forward", "op": call["family"], **call}
    table = pd.DataFrame([{**asked, "dtype": dtype} for dtype in ("fp16", "bf16")])
    half, brain = load_predictor(load_gpu("H100"), [pack_models("H100")]).predict(table)[
        "kernel_us"
    ]
    assert half == pytest.approx(brain) == pytest.approx(measured_us, rel=0.05)
