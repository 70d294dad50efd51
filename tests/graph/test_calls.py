"""Sizes of device calls, by hand."""

import json
import math

import pytest
import torch

from pipeline.families.conv_shape import ConvShape
from pipeline.families.dims import Dims
from pipeline.graph.device_calls import map_calls
from pipeline.graph.opmap import rows
from pipeline.graph.sizes import SIZES
from pipeline.graph.sizes.optimizer import launches
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu


def call(name, *inputs, values=(), outputs=(), device="cuda", gpu=None):
    node = Node(0, name, inputs=inputs, values=values or (None,) * len(inputs), outputs=outputs)
    return map_calls(Graph(write_nodes([node])), gpu=gpu, device=device)


def fp32(*shape):
    return Tensor(shape, "fp32")


def test_linear_counts_products_twice_and_reads_its_bias():
    found = call("aten::addmm", fp32(32), fp32(1024, 64), Tensor((64, 32), "fp32", (1, 64)))
    row = found[found["family"] == "gemm"].iloc[0]
    assert (row["B"], row["M"], row["N"], row["K"], row["trans_b"]) == (1, 1024, 64, 32, 1)
    assert row["flops"] == 2 * 1024 * 64 * 32
    assert row["bytes_read"] == 4 * (1024 * 64 + 64 * 32 + 32)


def test_only_the_second_factor_of_a_layer_counts_as_turned_where_no_strides_say_it():
    """On an A100 such a product is split unless its second factor is a layer's weight."""
    factors, gpu = (fp32(1280, 1280), fp32(1280, 1024)), load_gpu("A100")
    assert len(call("aten::mm", *factors, gpu=gpu)) == 2
    assert len(call("aten::addmm", fp32(1024), *factors, gpu=gpu)) == 1


def test_bias_of_a_single_output_is_copied_first():
    found = call("aten::addmm", fp32(1), fp32(128, 64), fp32(64, 1))
    assert list(found["family"])[:2] == ["elementwise", "gemm"]


def test_broadcast_operands_are_read_once_and_scalars_have_their_own_model():
    x = fp32(100, 8)
    row = call("aten::add", x, fp32(8), outputs=(x,)).iloc[0]
    assert (row["bytes_read"], row["bytes_written"], row["op"]) == (4 * (800 + 8), 3200, "add")
    scalar = Tensor((), "fp64", (), True)
    assert call("aten::mul", x, scalar, outputs=(x,))["op"].iloc[0] == "mulu"


@pytest.mark.parametrize(
    "name", ["aten::cudnn_batch_norm", "aten::native_batch_norm", "aten::_native_batch_norm_legit"]
)
@pytest.mark.parametrize(
    "training, op, reads", [(True, "batch_norm", 2), (False, "batch_norm_inference", 1)]
)
def test_batch_norm_with_known_statistics_reads_its_images_once(name, training, op, reads):
    x, channels = Tensor((8, 64, 28, 28), "fp16"), Tensor((64,), "fp32")
    row = call(name, x, *[channels] * 4, None, values=(*[None] * 5, training), outputs=(x,)).iloc[0]
    assert (row["op"], row["bytes_read"] // x.bytes, row["bytes_written"]) == (op, reads, x.bytes)


CONVOLUTIONS = {
    "line": ((4, 16, 100), (32, 16, 3), [1], [4], [4]),
    "image": ((4, 16, 20, 30), (32, 16, 3, 5), [2, 1], [1, 2], [1, 1]),
    "volume": ((4, 16, 9, 20, 30), (32, 16, 3, 5, 3), [2, 1, 3], [0, 2, 1], [1, 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_dims_of_convolutions_say_their_arithmetic(kind, transposed):
    image, weight, stride, padding, dilation = CONVOLUTIONS[kind]
    sides = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    x, y, w = fp32(*image), fp32(4, 32, *sides), fp32(*weight)
    given, result = (y, x) if transposed else (x, y)
    values = (None, None, None, stride, padding, dilation, transposed, [0] * len(stride), 1)
    inputs = (given, w, *[None] * 7)
    row = call("aten::convolution", *inputs, values=values, outputs=(result,)).head(1)
    expected = 2 * 4 * math.prod(sides) * w.numel
    assert ConvShape.of(Dims(row)).flops[0] == row["flops"][0] == expected


@pytest.mark.parametrize(
    "name", ["cudnn_convolution", "cudnn_convolution_transpose", "mkldnn_convolution"]
)
def test_convolutions_of_libraries_are_read_by_their_schema(name):
    image, weight, stride, padding, dilation = CONVOLUTIONS["image"]
    told = {"stride": stride, "padding": padding, "dilation": dilation, "groups": 2}
    told["output_padding"] = [7, 7]
    values = [
        told.get(each.name) for each in getattr(torch.ops.aten, name).default._schema.arguments
    ]
    inputs = (fp32(*image), fp32(32, 8, *weight[2:]), *[None] * (len(values) - 2))
    row = call(f"aten::{name}", *inputs, values=values, outputs=(fp32(4, 32, 10, 30),)).iloc[0]
    names = ["stride", "stride_w", "padding", "padding_w", "dilation", "groups"]
    assert list(row[names]) == [*stride, *padding, 1, 2]


def test_sum_of_rows_clears_semaphores_when_blocks_share_outputs():
    wide, narrow = (
        list(call("aten::sum", fp32(*shape), None, values=(None, [0]))["family"])
        for shape in ((1024, 512), (512, 1024))
    )
    assert (wide, narrow) == (["memset", "reduction"], ["reduction"])


def test_copies_between_like_tensors_are_memory_copies_and_others_kernels():
    x = Tensor((64, 32), "fp32", (32, 1))
    turned = Tensor((64, 32), "fp32", (1, 64))
    half = Tensor((64, 32), "bf16", (32, 1))
    calls = [call("aten::copy_", x, source).iloc[0] for source in (x, turned, half)]
    assert [list(each[["family", "op", "api"]]) for each in calls] == [
        ["memcpy_d2d", "memcpy", "cudaMemcpyAsync"],
        ["copy", "transpose", "cudaLaunchKernel"],
        ["elementwise", "cast", "cudaLaunchKernel"],
    ]


def test_work_on_host_tensors_is_no_device_call():
    x = Tensor((8,), "int64", (1,), True)
    assert call("aten::add", x, x, outputs=(x,)).empty


@pytest.mark.parametrize(
    "sizes, expected",
    [
        ([1] * 65, [(64, 64), (1, 1)]),
        ([65536 * 321], [(65536 * 320, 1), (65536, 1)]),
        ([65536 * 320, 5], [(65536 * 320, 1), (5, 1)]),
    ],
)
def test_foreach_launches_follow_multi_tensor_apply(sizes, expected):
    assert launches(sizes, 2) == expected


@pytest.mark.parametrize(("tokens", "sorts"), [(3072, False), (3073, True)])
def test_gradients_of_few_indices_are_not_sorted(tokens, sorts):
    inputs = (fp32(tokens, 64), Tensor((tokens,), "int64"), None, None, None)
    values = (None, None, 30_000, -1, False)
    found = call("aten::embedding_dense_backward", *inputs, values=values)
    assert ("sort" in set(found["family"])) is sorts
    update = found[found["family"] == "embedding_backward"].iloc[0]
    assert update["op"] == "dense"
    assert json.loads(update["attributes"] or "{}").get("sorted", True) is sorts


def test_every_row_of_the_map_names_its_evidence_and_known_size_functions():
    for row in rows().values():
        assert row.evidence, row.op
        assert {rule.size for rule in row.calls} <= set(SIZES), row.op


def test_a_trace_without_shapes_still_has_its_launches():
    found = call("aten::convolution_backward")
    assert len(found) == 6 and (found["flops"] == 0).all()


def test_an_operator_without_a_row_is_counted_with_its_bytes():
    x = fp32(8, 4)
    row = call("mylib::mystery", x, outputs=(x,)).iloc[0]
    assert (row["family"], row["bytes_read"], row["bytes_written"]) == ("other", 128, 128)
