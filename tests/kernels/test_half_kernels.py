"""Half precision on an H100: kernels that gain nothing, or little, from halved bytes.

Measured times are medians of profiler traces of an H100 (AMD-AGI/TraceLens, commit 171dd747, MIT), within a fifth.
"""

from dataclasses import replace

import pandas as pd
import pytest

from pipeline.answers.kernel_predictor import load_predictor
from pipeline.answers.who_answers import kernel_predictor
from pipeline.families.tensor_products import by_element_us
from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels.physics import Physics
from pipeline.model_files import pack_models

STRIDED = '{"strided":true}'


def kernel(gpu="H100", **call):
    row = {"phase": "forward", "dtype": "bf16", "op": call["family"], **call}
    return load_predictor(load_gpu(gpu)).predict(pd.DataFrame([row])).iloc[0]


def moved(family, op, elements, attributes=STRIDED, reads=1, size=2):
    return {
        "family": family,
        "op": op,
        "B": 1,
        "H": elements,
        "bytes": size * elements,
        "inputs": size * reads * elements,
        "outputs": size * elements,
        "attributes": attributes,
    }


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
        ({"family": "gemm", "op": "linear", "B": 1, "M": 4, "N": 768, "K": 768}, 6.9),
        ({"family": "gemm", "op": "linear", "B": 1, "M": 788, "N": 768, "K": 768}, 8.3),
        ({"family": "gemm", "op": "linear", "B": 1, "M": 25089, "N": 3072, "K": 768}, 158.0),
        ({"family": "softmax", "B": 301152, "H": 3137}, 5706.6),
        ({"family": "softmax", "B": 301056, "H": 8}, 7.7),
        ({"family": "layer_norm", "op": "ln", "B": 141, "H": 512}, 3.1),
        ({"family": "layer_norm", "op": "ln", "B": 788, "H": 768}, 4.4),
        ({"family": "layer_norm", "op": "ln", "B": 25096, "H": 768}, 59.5),
        ({"family": "attention", "op": "flash", "B": 8, "M": 141, "N": 141, "K": 64}, 9.1),
        (
            {
                "family": "attention",
                "op": "flash",
                "B": 256,
                "M": 559,
                "N": 559,
                "K": 64,
                "attributes": '{"causal":true}',
            },
            113.4,
        ),
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
    assert found["kernel_us"] == pytest.approx(
        measured_us, rel=0.05 if call["family"] == "attention" else 0.25
    )
    assert found["p10_us"] <= measured_us <= found["p90_us"]


@pytest.mark.parametrize("gpu", ["V100", "T4", "A100", "H100"])
def test_strides_cost_little_where_elements_have_four_bytes(gpu):
    plain, strided = (
        kernel(gpu, dtype="fp32", **moved("copy", "transpose", 1 << 24, said, size=4))["kernel_us"]
        for said in (None, STRIDED)
    )
    assert plain <= strided < 1.25 * plain


def test_an_operand_of_another_layout_makes_a_kernel_strided():
    image, bias = (
        Tensor((8, 768, 14, 14), "bf16", ()),
        Tensor((1, 768, 1, 1), "bf16", (768, 1, 1, 1)),
    )
    turned = Tensor(image.shape, "bf16", (150528, 1, 10752, 768))
    pairs = [(image, image), (image, bias), (image, turned), (image, Tensor((), "bf16"))]
    nodes = [
        Node(i, "aten::add", order=i, inputs=pair, outputs=(image,)) for i, pair in enumerate(pairs)
    ]
    said = map_calls(Graph(write_nodes(nodes)), load_gpu("H100"))["attributes"].fillna("").tolist()
    assert ["strided" in str(one) for one in said] == [False, True, True, False]


def test_the_stride_of_a_single_row_does_not_matter():
    assert Tensor((1, 25088, 768), "bf16", (19268352, 768, 1)).contiguous
    assert not Tensor((2, 25088, 768), "bf16", (19268352, 768, 1)).contiguous


@pytest.mark.parametrize("family, rows", [("bmm", 589_824), ("gemm", 1)])
def test_many_thin_products_take_about_as_long_as_their_bytes(family, rows):
    """Talking heads of CaiT-XXS24 (576 x 4 times 4 x 4) and positions of ConViT, whose steps leave no more time."""
    call = {"B": rows, "M": 39_337_984 // rows if rows == 1 else 576, "N": 4, "K": 4}
    moved_us = 2 * call["B"] * call["M"] * 8 / 0.9e6
    assert (
        moved_us / 1.2
        < kernel("RTX4090", family=family, op=family, **call)["kernel_us"]
        < 3 * moved_us
    )


def test_moving_a_long_sum_of_few_outputs_by_element_uses_all_sms():
    """Weight gradient of CaiT's talking heads, 4 x 4 outputs of 7 million terms, as one tile: one SM takes 82 times as long."""
    call = pd.DataFrame(
        [{"family": "gemm", "op": "mm", "B": 1, "M": 4, "N": 7_375_872, "K": 4, "dtype": "fp16"}]
    )
    one_sm = replace(load_gpu("RTX3090"), sms=1)
    alone, split = by_element_us(call, one_sm)[0], by_element_us(call, load_gpu("RTX3090"))[0]
    assert split == pytest.approx(alone / 82, rel=0.02)


def test_strided_parts_of_a_concatenation_move_slower_and_start_as_early():
    start_us = Physics.of(load_gpu("H100")).start_us("concat")
    plain, strided = (
        kernel("H100", **moved("concat", "cat", 1 << 20, said))["kernel_us"] - start_us
        for said in (None, STRIDED)
    )
    assert strided == pytest.approx(1.06 / 0.82 * plain, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "measured_us"),
    [
        ({"family": "elementwise", "op": "mulu", "B": 4096, "H": 1024}, None),
        ({"family": "softmax", "B": 49104, "H": 954}, 89.4),
        ({"family": "softmax", "B": 65536, "H": 315, "phase": "backward"}, None),
        ({"family": "layer_norm", "op": "ln", "B": 16384, "H": 1024, "phase": "backward"}, 120.2),
    ],
)
def test_fp16_takes_the_times_of_bf16_where_a_pack_has_samples_of_that_alone(call, measured_us):
    half, brain = (
        load_predictor(load_gpu("H100"), [pack_models("H100")])
        .predict(pd.DataFrame([{"phase": "forward", "op": call["family"], "dtype": dtype} | call]))
        .iloc[0]
        for dtype in ("fp16", "bf16")
    )
    assert half["kernel_us"] == pytest.approx(brain["kernel_us"])
    assert measured_us is None or half["kernel_us"] == pytest.approx(measured_us, rel=0.05)


@pytest.mark.parametrize(("gpu", "rows"), [("H100", 1_474_560), ("H200", 2_727_936)])
def test_rows_of_softmax_in_a_warp_are_limited_by_their_elements_whatever_the_memory(gpu, rows):
    spec = load_gpu(gpu)
    call = {"family": "softmax", "op": "softmax", "phase": "forward", "B": rows, "H": 384}
    found = kernel_predictor(spec, "auto").predict(pd.DataFrame([call | {"dtype": "fp16"}]))
    clocks = found["kernel_us"].iloc[0] * spec.sms * spec.clock_mhz
    assert rows * 384 / clocks == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(
    ("rows", "measured_us"), [(16384, 176.2), (8430, 92.2), (4096, 42.0)]
)  # our H100: gradients of GPT-2's query, key and value
def test_wide_parts_of_a_concatenation_move_as_fast_as_their_bytes(rows, measured_us):
    size = 4 * rows * 3840
    call = {"family": "concat", "op": "cat", "phase": "backward", "dtype": "fp32", "tensors": 3}
    call |= {"bytes": size, "inputs": size, "outputs": size, "B": rows, "H": 3840}
    found = kernel_predictor(load_gpu("H100"), "auto").predict(pd.DataFrame([call]))
    assert found["kernel_us"].iloc[0] == pytest.approx(measured_us, rel=0.1)


def test_a_pack_without_a_dtype_leaves_it_to_the_rules_since_ada():
    call = moved("elementwise", "mulu", 1 << 22, None) | {"family": "elementwise", "dtype": "bf16"}
    with_pack, rules = (
        load_predictor(load_gpu("H100"), folders).predict(pd.DataFrame([call]))["kernel_us"].iloc[0]
        for folders in ([pack_models("H100")], [])
    )
    assert with_pack == pytest.approx(rules, rel=0.01)
