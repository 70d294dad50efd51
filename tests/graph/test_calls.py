"""Sizes of device calls, by hand."""

import time

import pytest
import torch

from pipeline.families import FAMILIES
from pipeline.graph.device_calls import map_calls
from pipeline.graph.opmap import rows
from pipeline.graph.sizes import SIZES
from pipeline.graph.sizes.optimizer import launches
from pipeline.graph.table import Graph, Node, Tensor, write_nodes
from pipeline.hardware.find_gpu import load_gpu


def call(name, *inputs, values=(), outputs=(), device="cuda", gpu=None):
    node = Node(0, name, inputs=inputs, values=values or (None,) * len(inputs), outputs=outputs)
    return map_calls(Graph(write_nodes([node])), gpu=gpu, device=device)


def test_linear_counts_products_twice_and_reads_its_bias():
    found = call(
        "aten::addmm",
        Tensor((32,), "fp32"),
        Tensor((1024, 64), "fp32"),
        Tensor((64, 32), "fp32", (1, 64)),
    )
    row = found[found["family"] == "gemm"].iloc[0]
    assert (row["B"], row["M"], row["N"], row["K"], row["trans_b"]) == (1, 1024, 64, 32, 1)
    assert row["flops"] == 2 * 1024 * 64 * 32
    assert row["bytes_read"] == 4 * (1024 * 64 + 64 * 32 + 32)


def test_only_the_second_factor_of_a_layer_counts_as_turned_where_no_strides_say_it():
    """On an A100 such a product is split unless its second factor is a layer's weight."""
    a, b, bias = (Tensor(shape, "fp32") for shape in ((1280, 1280), (1280, 1024), (1024,)))
    plain, layer = (
        call(*each, gpu=load_gpu("A100"))
        for each in (("aten::mm", a, b), ("aten::addmm", bias, a, b))
    )
    assert (len(plain), len(layer)) == (2, 1)


def test_bias_of_a_single_output_is_copied_first():
    found = call(
        "aten::addmm", Tensor((1,), "fp32"), Tensor((128, 64), "fp32"), Tensor((64, 1), "fp32")
    )
    assert list(found["family"])[:2] == ["elementwise", "gemm"]


def test_broadcast_operands_are_read_once():
    row = call(
        "aten::add",
        Tensor((100, 8), "fp32"),
        Tensor((8,), "fp32"),
        outputs=(Tensor((100, 8), "fp32"),),
    ).iloc[0]
    assert (row["bytes_read"], row["bytes_written"]) == (4 * (800 + 8), 3200)
    assert row["op"] == "add"


def test_scalar_operands_have_their_own_model():
    row = call(
        "aten::mul",
        Tensor((100, 8), "fp32"),
        Tensor((), "fp64", (), True),
        outputs=(Tensor((100, 8), "fp32"),),
    )
    assert row["op"].iloc[0] == "mulu"


@pytest.mark.parametrize("name, op", [("aten::max", "maximum"), ("aten::min", "minimum")])
def test_extremes_of_two_tensors_are_elementwise(name, op):
    x = Tensor((100, 8), "fp32")
    row = call(name, x, x, outputs=(x,)).iloc[0]
    assert (row["family"], row["op"], row["bytes_read"]) == ("elementwise", op, 2 * 3200)
    assert call(name, x, outputs=(Tensor((), "fp32"),)).iloc[0]["family"] == "reduction"


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


@pytest.mark.parametrize(
    "name", ["_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact2d"]
)
def test_resizing_reads_the_image_and_writes_the_resized_one(name):
    small, large = Tensor((8, 64, 16, 16), "fp32"), Tensor((8, 64, 32, 32), "fp32")
    row = call(f"aten::{name}", small, outputs=(large,)).iloc[0]
    assert (row["family"], row["bytes_read"], row["bytes_written"]) == (
        "elementwise",
        small.bytes,
        large.bytes,
    )
    back = call(f"aten::{name}_backward", large, outputs=(small,)).iloc[-1]
    assert (back["family"], back["bytes_read"], back["bytes_written"]) == (
        "elementwise",
        large.bytes,
        small.bytes,
    )


CONVOLUTIONS = {
    "line": ((4, 16, 100), (32, 16, 5), [2], [2], [1]),
    "dilated line": ((4, 16, 100), (32, 16, 3), [1], [4], [4]),
    "image": ((4, 16, 20, 30), (32, 16, 3, 5), [2, 1], [1, 2], [1, 1]),
    "row of an image": ((4, 16, 20, 30), (32, 16, 1, 5), [1, 1], [0, 4], [1, 2]),
    "volume": ((4, 16, 9, 20, 30), (32, 16, 3, 5, 3), [2, 1, 3], [0, 2, 1], [1, 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_dims_of_convolutions_say_their_arithmetic(kind, transposed):
    from pipeline.families.conv_shape import ConvShape
    from pipeline.families.dims import Dims

    image, weight, stride, padding, dilation = CONVOLUTIONS[kind]
    sides = [
        (size + 2 * p - d * (k - 1) - 1) // s + 1
        for size, k, s, p, d in zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    x, y = Tensor(image, "fp32"), Tensor((4, 32, *sides), "fp32")
    given, result = (y, x) if transposed else (x, y)
    values = (None, None, None, stride, padding, dilation, transposed, [0] * len(stride), 1)
    row = call(
        "aten::convolution",
        given,
        Tensor(weight, "fp32"),
        None,
        *[None] * 6,
        values=values,
        outputs=(result,),
    )
    weights = Tensor(weight, "fp32").numel
    assert (
        ConvShape.of(Dims(row.head(1))).flops[0]
        == row.iloc[0]["flops"]
        == 2 * 4 * Tensor((*sides,), "").numel * weights
    )


@pytest.mark.parametrize(
    "name", ["cudnn_convolution", "cudnn_convolution_transpose", "mkldnn_convolution"]
)
def test_convolutions_of_libraries_are_read_by_their_schema(name):
    image, weight, stride, padding, dilation = CONVOLUTIONS["image"]
    told = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": 2,
        "output_padding": [7, 7],
    }
    arguments = [
        argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments
    ]
    x, w = Tensor(image, "fp32"), Tensor((weight[0], weight[1] // 2, *weight[2:]), "fp32")
    row = call(
        f"aten::{name}",
        x,
        w,
        *[None] * (len(arguments) - 2),
        values=[told.get(key) for key in arguments],
        outputs=(Tensor((4, 32, 10, 30), "fp32"),),
    ).iloc[0]
    found = [
        row[key] for key in ("stride", "stride_w", "padding", "padding_w", "dilation", "groups")
    ]
    assert found == [*stride, *padding, 1, 2]


def test_sum_of_rows_clears_semaphores_when_blocks_share_outputs():
    wide, narrow = Tensor((1024, 512), "fp32"), Tensor((512, 1024), "fp32")
    assert list(call("aten::sum", wide, None, values=(None, [0]))["family"]) == [
        "memset",
        "reduction",
    ]
    assert list(call("aten::sum", narrow, None, values=(None, [0]))["family"]) == ["reduction"]


def test_copies_between_like_tensors_are_memory_copies_and_others_kernels():
    x = Tensor((64, 32), "fp32", (32, 1))
    turned = Tensor((64, 32), "fp32", (1, 64))
    half = Tensor((64, 32), "bf16", (32, 1))
    kinds = {
        name: call("aten::copy_", x, source)[["family", "op", "api"]].iloc[0].tolist()
        for name, source in (("same", x), ("turned", turned), ("cast", half))
    }
    assert kinds["same"] == ["memcpy_d2d", "memcpy", "cudaMemcpyAsync"]
    assert kinds["turned"] == ["copy", "transpose", "cudaLaunchKernel"]
    assert kinds["cast"] == ["elementwise", "cast", "cudaLaunchKernel"]


def test_item_waits_for_the_device():
    row = call("aten::_local_scalar_dense", Tensor((), "fp32")).iloc[0]
    assert row["family"] == "memcpy_d2h" and row["blocking"]


def test_work_on_host_tensors_is_no_device_call():
    x = Tensor((8,), "int64", (1,), True)
    assert call("aten::add", x, x, outputs=(x,)).empty


def test_interaction_index_has_its_own_family():
    square, at = Tensor((16, 27, 27), "fp32"), Tensor((351,), "int64")
    row = call("aten::index", square, (at, at), outputs=(Tensor((16, 351), "fp32"),)).iloc[0]
    assert (row["family"], row["B"], row["F"]) == ("tril_index_forward", 16, 27)
    other = call(
        "aten::index", Tensor((16, 27), "fp32"), (at,), outputs=(Tensor((351, 27), "fp32"),)
    ).iloc[0]
    assert other["family"] == "index"


@pytest.mark.parametrize(
    "sizes, depth, expected",
    [
        ([10], 2, [(10, 1)]),
        ([1] * 64, 2, [(64, 64)]),
        ([1] * 65, 2, [(64, 64), (1, 1)]),
        ([65536 * 321], 2, [(65536 * 320, 1), (65536, 1)]),
        ([65536 * 320, 5], 2, [(65536 * 320, 1), (5, 1)]),
    ],
)
def test_foreach_launches_follow_multi_tensor_apply(sizes, depth, expected):
    assert launches(sizes, depth) == expected


@pytest.mark.parametrize(("tokens", "sorts"), [(3072, False), (3073, True)])
def test_gradients_of_few_indices_are_not_sorted(tokens, sorts):
    gradient, indices = Tensor((tokens, 64), "fp32"), Tensor((tokens,), "int64")
    found = call(
        "aten::embedding_dense_backward",
        gradient,
        indices,
        None,
        None,
        None,
        values=(None, None, 30_000, -1, False),
    )
    assert ("sort" in set(found["family"])) is sorts
    update = found[found["family"] == "embedding_backward"].iloc[0]
    assert (
        update["op"] == "dense"
        and ('"sorted":false' in update["attributes"].replace(" ", "")) is not sorts
    )


def test_foreach_on_fp16_halves_the_bytes():
    for dtype, element in (("fp32", 4), ("fp16", 2)):
        lists = (Tensor((100,), dtype), Tensor((50,), dtype))
        row = call("aten::_foreach_add_", lists, lists).iloc[0]
        assert (row["bytes"], row["tensors"], row["bytes_read"]) == (
            150 * element,
            2,
            300 * element,
        )


def test_on_the_cpu_an_operator_is_one_blocking_call():
    x, at = Tensor((16, 9, 9), "fp32"), Tensor((36,), "int64")
    found = call(
        "aten::index_put",
        x,
        (at, at),
        Tensor((16, 36), "fp32"),
        None,
        values=(None, None, None, True),
        device="cpu",
    )
    assert found[["api", "family", "blocking"]].values.tolist() == [
        ["cpu", "tril_index_backward", True]
    ]


def test_every_row_of_the_map_names_known_families_and_size_functions():
    for row in rows().values():
        assert row.evidence, row.op
        for rule in row.calls:
            assert rule.family in FAMILIES, (row.op, rule.family)
            assert rule.size in SIZES, (row.op, rule.size)


def test_a_trace_without_shapes_still_has_its_launches():
    found = call("aten::convolution_backward")
    assert len(found) == 6 and (found["flops"] == 0).all()


def test_the_launches_of_a_huge_tensor_are_counted_at_once():
    """A loop over its 1.5e7 chunks takes minutes, and a step may have hundreds of such tensors."""
    begin = time.process_time()
    found = launches([10**12, 5], 3)
    assert sum(elements for elements, _ in found) == 10**12 + 5 and found[-1][1] == 2
    assert time.process_time() - begin < 2
