"""Steps with their own autocast and gradient scaling are captured as CUDA runs them."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from pipeline.as_on_cuda.mixed_precision import LOWER_NAMES, UPPER_NAMES, WIDEST_NAMES, autocast
from pipeline.errors import InputError
from pipeline.graph.device_calls import map_calls
from tests.workloads.small import captured_custom

ELSEWHERE = {
    "_convolution",
    "convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",  # under the named convolutions
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "_scaled_dot_product_flash_attention",  # under others, too
    "binary_cross_entropy",  # refused
}
"""Operators on PyTorch's lists that no step calls by name."""

MODULE = """
import torch
import torch.nn.functional as F
from torch import nn
from pipeline.workloads.training_step import Step

outside = torch.autocast("cuda", dtype=torch.bfloat16)
or_off = torch.autocast("cuda")


def step(config, device, model, batch_size, forward, procedure=None):
    return Step([model], [(torch.rand(batch_size, 16),)], forward, lambda y, *_: y.float().sum(), device, config,
                procedure=procedure)


def linear(device):
    return nn.Linear(16, 16, device=device)


def within(low, config, batch_size, device):
    model = linear(device)

    def forward(x):
        with low:
            return model(x)

    return step(config, device, model, batch_size, forward)


def beforehand(*given):
    return within(torch.amp.autocast("cuda", dtype=torch.bfloat16), *given)


def of_the_module(*given):
    return within(outside, *given)


def perhaps_off(*given):
    return within(or_off, *given)


def off(*given):
    return within(torch.autocast("cuda", dtype=torch.bfloat16, enabled=False), *given)


def decorated(config, batch_size, device):
    model = linear(device)

    @torch.autocast("cuda", dtype=torch.bfloat16)
    def forward(x):
        return model(x)

    return step(config, device, model, batch_size, forward)


def scaled(config, batch_size, device):
    model = linear(device)
    scaler = torch.amp.GradScaler("cuda", enabled=config["options"]["enabled"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def procedure(batch, optimizers):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch[0]).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step(config, device, model, batch_size, None, procedure)
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch, request):
    name = f"cast_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def calls_of(module, function, **options):
    return map_calls(captured_custom(f"{module}:{function}", options=options))


def test_every_operator_that_pytorch_casts_for_is_on_a_list():
    names = {
        one.removeprefix("aten::").split(".")[0]
        for one in torch._C._dispatch_get_all_op_names()
        if one.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(one, "AutocastCUDA")
    }
    assert names > {"mm", "softmax", "addcmul"}
    assert names <= {*ELSEWHERE, *f"{LOWER_NAMES} {UPPER_NAMES} {WIDEST_NAMES}".split()}


@pytest.mark.parametrize(
    "function, given, expected",
    [
        (lambda x: F.interpolate(x, scale_factor=2), "half", "float"),
        (lambda x: 1 / x, "half", "float"),
        (lambda x: torch.addcmul(x, x, x.float()), "half", "float"),
        (lambda x: F.conv2d(x, x), "float", "half"),
        (lambda x: torch.einsum("abij,abkj->abik", x, x), "float", "half"),
        (lambda x: F.gelu(x), "half", "half"),
    ],
)
def test_results_have_the_type_that_autocast_gives_them(function, given, expected):
    types = {"half": torch.bfloat16, "float": torch.float32}
    with autocast("meta", "bf16"):
        found = function(torch.empty(2, 3, 4, 4, dtype=types[given], device="meta"))
    assert found.dtype == types[expected]


@pytest.mark.parametrize(
    "function, dtype",
    [("beforehand", "bf16"), ("of_the_module", "bf16"), ("decorated", "bf16"), ("off", "fp32")],
)
def test_a_context_of_autocast_may_be_made_before_it_is_entered(module, function, dtype):
    calls = calls_of(module, function)
    assert set(calls.loc[calls["family"] == "gemm", "dtype"]) == {dtype}


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch leaves it on where there is a GPU")
def test_autocast_that_pytorch_switched_off_is_on_in_bf16_and_else_refused(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        __import__(module)  # as a notebook does, before it asks for a prediction
    with pytest.raises(InputError, match=r"torch.autocast\('cuda'\) was created before"):
        calls_of(module, "perhaps_off")
    graph = captured_custom(f"{module}:of_the_module")
    assert "it is taken as enabled" in " ".join(graph.warnings)
    calls = map_calls(graph)
    assert set(calls.loc[calls["family"] == "gemm", "dtype"]) == {"bf16"}


def test_a_scaler_checks_every_gradient_and_the_host_waits_for_what_it_found(module):
    on, off = (calls_of(module, "scaled", enabled=enabled) for enabled in (True, False))
    assert on["blocking"].sum() == 1 and off["blocking"].sum() == 0
    checked = on[(on["family"] == "optimizer") & (on["op"] == "foreach_mul")]
    assert checked["bytes_written"].tolist() == [4.0 * (16 * 16 + 16)]
    assert on[on["blocking"]].index[0] > checked.index[0]
