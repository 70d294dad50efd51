"""Operators of users' own steps are counted as CUDA runs them, with their sizes."""

import pytest
import torch

from pipeline.errors import InputError
from pipeline.hardware.find_gpu import load_gpu
from tests.workloads.small import captured_custom, known_calls, written_module

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn
from pipeline.workloads.training_step import Step


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))


def over(function, *inputs):
    def make(config, batch_size, device):
        with torch.device(device):
            model = Scale()
        batch = tuple(each(batch_size) for each in inputs)
        forward = lambda x, *rest: function(x * model.weight, *rest)
        return Step([model], [batch], forward, lambda y, *_: y.float().sum(), device, config)
    return make


def layer(make_layer, *inputs):
    def make(config, batch_size, device):
        with torch.device(device):
            model = make_layer()
        batch = tuple(each(batch_size) for each in inputs)
        return Step([model], [batch], lambda *x: model(*x), lambda y, *_: y.float().sum(), device, config)
    return make


rows = lambda width: lambda batch: torch.rand(batch, width)
heads = lambda count, width: lambda batch: torch.rand(batch, count, 16, width)
image = lambda batch: torch.rand(batch, 4, 8, 8)
labels = lambda *shape: lambda batch: torch.randint(4, (batch, *shape))

vmapped = over(lambda x: torch.vmap(lambda row: torch.relu(row @ torch.ones(16, 8, device=x.device)))(x), rows(16))
mish = over(F.mish, rows(16))
rms = layer(lambda: nn.Sequential(nn.Linear(16, 16), nn.RMSNorm(16)), rows(16))
group = layer(lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8)), image)
shuffled = over(lambda x: F.pixel_shuffle(x, 2), image)
rotated = over(lambda x: torch.rot90(x, 1, [2, 3]), image)
larger = over(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), image)
norm = over(lambda x: torch.linalg.vector_norm(x, 2, dim=1), rows(100))
gap = over(lambda x: F.pairwise_distance(x, x + 1), rows(100))
joined = over(lambda x: torch.logsumexp(x, 1), rows(100))
margins = over(lambda x, y, z: F.multi_margin_loss(x, y) + F.multilabel_margin_loss(x, z), rows(16), labels(), labels(16))
drawn = over(lambda x: torch.distributions.Beta(x.exp(), x.exp()).rsample() + torch.distributions.Gamma(x.exp(), x.exp()).rsample(),
             rows(16))
running = over(lambda x: x.cummax(1)[0] + x.logcumsumexp(1), rows(16))

plain = over(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), heads(4, 8), heads(4, 8), heads(4, 8))
wide = over(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), heads(4, 8), heads(4, 8), heads(4, 16))
half = lambda x: x.bfloat16()
wide_half = over(lambda q, k, v: F.scaled_dot_product_attention(half(q), half(k), half(v)),
                 heads(4, 8), heads(4, 8), heads(4, 16))
few = over(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), heads(4, 8), heads(2, 8), heads(2, 8))
few_half = over(lambda q, k, v: F.scaled_dot_product_attention(half(q), half(k), half(v), enable_gqa=True),
                heads(4, 8), heads(2, 8), heads(2, 8))

with_end = layer(lambda: nn.EmbeddingBag(100, 8, mode="sum", include_last_offset=True),
                 lambda b: torch.randint(100, (10 * b,)), lambda b: torch.arange(0, 10 * b + 1, 10))
uneven = layer(lambda: nn.EmbeddingBag(100, 8, mode="sum"),
               lambda b: torch.randint(100, (b + b // 2,)), lambda b: torch.arange(b))


spectrum = over(lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho") * 2, n=128), rows(128))
class Weighed(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag, self.scale = nn.EmbeddingBag(100000, 8, mode="sum", max_norm=1.0), nn.Linear(5, 5)

    def forward(self, i, w):
        return self.bag(i, per_sample_weights=self.scale(w))


weighed = layer(Weighed, lambda b: torch.randint(100000, (b, 5)), rows(5))
least = over(lambda x: torch.amin(x, 1) + torch.prod(x, 1) + torch.argmin(x, 1) + torch.eye(4, device=x.device).sum(), rows(16))


def weighted(config, batch_size, device):
    mode, numbers = config["options"].get("mode", "sum"), config["options"].get("weighted", True)
    with torch.device(device):
        bag = nn.EmbeddingBag(900, 8, mode=mode, sparse=True)
    bags = torch.arange(0, 6 * batch_size, 6)
    forward = lambda i, o, w: bag(i, o, per_sample_weights=w if numbers else None)
    pool = [(torch.randint(900, (6 * batch_size,)), bags, torch.rand(6 * batch_size))]
    return Step([bag], pool, forward, lambda y, *_: y.sum(), device, config)


def broken(config, batch_size, device):
    with torch.device(device):
        rows = nn.Embedding(900, 8, sparse=True)

    def procedure(batch, optimizers):
        rows(batch[0]).sum().backward()  # fails on the meta device, so that fake tensors are tried
        rows.weight @ rows.weight

    return Step([rows], [(torch.randint(900, (batch_size,)),)], None, None, device, config, procedure=procedure)


def speech(config, batch_size, device):
    with torch.device(device):
        top = nn.Linear(8, 6)
    where = device if config["options"]["place"] == "device" else "cpu"
    labels = torch.randint(1, 6, (batch_size, 5))

    def loss(out, x, y):
        lengths = torch.full((len(x),), 20, device=where), torch.full((len(x),), 3, device=where)
        return nn.functional.ctc_loss(out.log_softmax(-1).transpose(0, 1), y, *lengths)

    return Step([top], [(torch.rand(batch_size, 20, 8), labels)], lambda x, y: top(x), loss, device, config)


def allowing(config, batch_size, device):
    torch.set_float32_matmul_precision("high")
    return layer(lambda: nn.Linear(64, 64), rows(64))(config, batch_size, device)
"""


module = written_module("operators_of_mine", MODULE)


@pytest.fixture(autouse=True)
def usual_products():
    """Products in full precision again after each test."""
    yield
    torch.set_float32_matmul_precision("highest")


def captured(function, batch_size=4, **options):
    given = {"optimizer": "none", **options}
    return captured_custom(f"operators_of_mine:{function}", batch_size, **given)


def calls_of(function, batch_size=4, gpu=None, **options):
    return known_calls(captured(function, batch_size, **options), gpu).set_index("name")


def test_what_runs_under_vmap_has_the_sizes_of_all_samples():
    calls = calls_of("vmapped", 32)
    products = calls.loc[calls["family"] == "gemm", "flops"]
    assert products.tolist() == [2.0 * 32 * 16 * 8] * 2, "forward, and the gradient of x"
    assert calls.loc["relu", "flops"] == 32 * 8


BESIDE = {"mul", "sum", "ones_like", "add_", "convolution", "convolution_backward", "addmm", "mm"}
BESIDE |= {"copy_"}
"""Operators beside the one that is tried."""


@pytest.mark.parametrize(
    "function, forward, backward",
    [
        ("mish", ["mish"], ["mish_backward"]),
        ("shuffled", ["pixel_shuffle"], ["pixel_unshuffle"]),
        ("larger", ["upsample_bilinear2d"], ["upsample_bilinear2d_backward"] * 2),
        ("rotated", ["flip"], ["flip"]),
        ("joined", ["logsumexp"] * 9, ["sub", "exp"]),
        pytest.param(
            "rms",
            ["_fused_rms_norm"],
            ["_fused_rms_norm_backward"] * 2,
            marks=pytest.mark.skipif(
                not hasattr(torch.ops.aten, "_fused_rms_norm_backward"), reason="newer PyTorch"
            ),
        ),
        ("group", ["native_group_norm"] * 3, ["native_group_norm_backward"] * 4),
    ],
)
def test_an_operator_launches_what_cuda_launches_for_it(function, forward, backward):
    calls = calls_of(function)
    for phase, expected in (("forward", forward), ("backward", backward)):
        found = [name for name in calls.index[calls["phase"] == phase] if name not in BESIDE]
        assert found == expected


@pytest.mark.parametrize("function, name", [("norm", "linalg_vector_norm"), ("gap", "norm")])
def test_a_norm_reduces_the_dimension_that_it_is_asked_for_and_not_the_one_of_its_order(
    function, name
):
    call = calls_of(function, 8).loc[name]
    assert (call["op"], call["bytes_written"]) == ("norm_columns", 4 * 8)


def test_attention_counts_values_of_another_width():
    once = 2.0 * 4 * 4 * 16 * 16 * 8  # samples, heads, queries, keys, width
    for function, work in (("plain", [2 * once, 5 * once]), ("wide", [3 * once, 7 * once])):
        assert calls_of(function).query("family == 'attention'")["flops"].tolist() == work


@pytest.mark.parametrize(
    "function, kernels",
    [
        ("plain", {"efficient"}),
        ("wide_half", {"efficient"}),
        ("few", set()),
        ("few_half", {"flash"}),
    ],
)
def test_fused_attention_is_what_cuda_has_a_kernel_for(function, kernels):
    calls = calls_of(function)
    assert set(calls["op"][calls["family"] == "attention"]) == kernels
    assert (calls["family"] == "bmm").any() != bool(kernels)


@pytest.mark.parametrize("function, lookups", [("with_end", 10), ("uneven", 1.5)])
def test_a_bag_counts_every_lookup(function, lookups):
    calls = calls_of(function, 32)
    found = calls[calls["family"].str.startswith("embedding_")]
    assert found[["B", "flops"]].values.tolist() == [[32, 32 * lookups * 8]] * 2


def test_a_fourier_transform_is_a_pass_over_its_elements():
    calls = calls_of("spectrum", 8)
    passes = calls[calls["op"] == "fft"]
    lines, halves = 8 * 128, 8 * 65  # real numbers, and complex ones of 8 bytes
    moved = passes[["bytes_read", "bytes_written"]].values.tolist()
    assert moved[:2] == [[4 * lines, 8 * halves], [8 * halves, 4 * lines]] and len(moved) == 4
    assert set(passes["flops"]) <= {2.5 * lines * 7, 5.0 * lines * 7}


def test_what_looks_rows_up_does_not_read_the_table():
    """Regression: an operator that the map did not know counted its whole table."""
    read = calls_of("weighed", 8)["bytes_read"]
    assert read["_embedding_bag_per_sample_weights_backward"] == 2 * 40 * 32 + 8 * 40
    assert read["embedding_renorm_"] == 40 * 32 + 8 * 40


@pytest.mark.parametrize("gpu, dtype", [("A100", "tf32"), ("V100", "fp32")])
def test_tf32_that_the_user_allowed_is_used(gpu, dtype):
    calls = calls_of("allowing", gpu=load_gpu(gpu))
    assert set(calls.loc[["addmm", "mm"], "dtype"]) == {dtype}


@pytest.mark.parametrize(
    ("function", "written"),
    [
        ("margins", {"multi_margin_loss": 4, "multilabel_margin_loss_backward": 256}),
        ("drawn", {"_sample_dirichlet": 512, "_dirichlet_grad": 512, "_standard_gamma": 256}),
        ("running", {"cummax": 256 + 512, "logcumsumexp": 256}),
        ("least", {"amin": 16, "prod": 16, "eye": 64}),
    ],
)
def test_operators_without_a_shape_function_in_pytorch_touch_their_elements_once(function, written):
    """Of 4 x 16 elements; a beta distribution draws pairs."""
    calls = calls_of(function)
    assert {name: calls.loc[[name], "bytes_written"].max() for name in written} == written


@pytest.mark.parametrize("place, reads, states", [("host", 0, 2 * 3 + 1), ("device", 2, 2 * 5 + 1)])
def test_a_ctc_loss_goes_frame_by_frame_and_reads_lengths_on_the_device(place, reads, states):
    """20 frames of 4 samples with targets of 5, of which the longest has 3 labels."""
    calls = calls_of("speech", options={"place": place})
    passes = calls.loc[calls["op"] == "ctc_loss", ["T", "H", "bytes_written"]]
    assert passes.values.tolist() == [[20, states, 4 * 20 * states * 4]] * 2
    assert list(calls.loc[calls["family"] == "memcpy_d2h", "blocking"]) == [True] * reads


@pytest.mark.parametrize(
    "options, extra",
    [({}, ["mul"]), ({"mode": "mean", "weighted": False}, ["div"]), ({"weighted": False}, [])],
)
def test_a_sparse_bag_repeats_gradients_and_scales_each_row(options, extra, capfd):
    """Regression: with weights per sample, the operator failed on fake tensors with a hundred lines of PyTorch's internals."""
    calls = known_calls(captured("weighted", options=options, optimizer="sgd"))
    made = calls[calls["name"].str.endswith("_embedding_bag_backward")]
    assert list(made["op"]) == ["sparse", *extra] and set(made["bytes_written"]) == {4 * 6 * 8 * 4}
    scaled, added = calls[calls["phase"] == "optimizer"].to_dict("records")
    assert (scaled["op"], added["op"]) == ("mulu", "index_add")  # times the learning rate
    assert scaled["bytes_written"] == scaled["bytes_read"] == 4 * 6 * 8 * 4
    # a sector for each row, once for rows that are looked up again
    assert added["bytes_written"] <= 4 * 6 * 32 and capfd.readouterr().err == ""


def test_an_operator_that_fails_on_fake_tensors_writes_nothing_of_pytorchs_internals(capfd):
    with pytest.raises(InputError, match="its code fails: "):
        captured("broken", options={})
    assert capfd.readouterr().err == ""
