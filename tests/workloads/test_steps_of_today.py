"""Features of current training loops: values read by the host, masks, wrappers, routed experts, sparse optimizers."""

import importlib.util

import pytest
import torch

from pipeline.errors import ConfigError, InputError
from pipeline.graph.device_calls import map_calls
from pipeline.hardware.find_gpu import load_gpu
from tests.workloads.small import captured_custom, known_calls, written_module

MODULE = """
import math
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from pipeline.workloads.training_step import Step


def net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def by(run, make=net, inputs=lambda b: torch.rand(b, 64)):
    def make_step(config, batch_size, device):
        with torch.device(device):
            model = make()
        step = run(model, config["options"])
        return Step([model], [(inputs(batch_size),)], None, None, device, config, procedure=lambda b, _: step(b[0]))
    return make_step


def optimized(model, options):
    own = getattr(torch.optim, options["kind"])(model.parameters(), lr=0.1)

    def step(x):
        own.zero_grad()
        for part in x.chunk(options.get("parts", 1)):
            model(part).sum().backward()
        own.step()
    return step


def read(model, options):
    own = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        own.zero_grad()
        loss = model(x).sum()
        if options["how"] == "nan" and torch.isnan(loss):
            return
        if options["how"] == "finite" and not torch.isfinite(loss).all():
            return
        loss.backward()
        own.step()
        if options["how"] == "logged" and not math.isfinite(loss.item()):
            raise SystemExit
        if options["how"] == "kept":
            model(x).detach().cpu()
        if options["how"] == "compared" and loss > 3:
            raise SystemExit
    return step


def policy(model, options):
    def step(x):
        chosen = torch.distributions.Categorical(logits=model(x))
        chosen.log_prob(x.argmax(1)).mean().backward()
    return step


def wrapped(config, batch_size, device):
    with torch.device(device):
        model = net()
    if config["options"]["ddp"]:
        model = DDP(model)
    return Step([model], [(torch.rand(batch_size, 64),)], lambda x: model(x), lambda y, *_: y.sum(), device, config)


def masked(config, batch_size, device):
    import transformers
    sizes = transformers.BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
                                    attn_implementation="sdpa")
    with torch.device(device):
        model = transformers.BertForMaskedLM(sizes)
    ids = torch.randint(99, (batch_size, 16))
    batch = (ids, torch.ones_like(ids)) if config["options"]["mask"] else (ids,)
    def loss(ids, mask=None):
        return model(input_ids=ids, attention_mask=mask, labels=ids).loss
    return Step([model], [batch], loss, None, device, config)


def grouped(config, batch_size, device):
    dtype = torch.bfloat16 if config["options"]["half"] else torch.float32

    def make():
        weight = nn.Parameter(torch.empty(4, 64, 128, dtype=dtype))
        return nn.ParameterList([weight])

    with torch.device(device):
        weight, gate = make()[0], nn.Linear(64, 4)

    def forward(x):
        x = x.flatten(0, 1)
        ends = torch.arange(1, 5, device=x.device, dtype=torch.int32)
        rows = x[torch.argsort(gate(x).argmax(1))].to(dtype).requires_grad_()
        return F.grouped_mm(rows, weight, offs=ends)

    modules = [nn.ParameterList([weight]), gate]
    return Step(modules, [(torch.rand(batch_size, 16, 64),)], forward, lambda y, *_: y.float().sum(), device, config)


def picked(config, batch_size, device):
    how = config["options"]["how"]
    with torch.device(device):
        model = nn.Linear(64, 64)

    def forward(x):
        y = model(x)
        mask = y[:, 0] > 0
        if how == "select":
            return y.masked_select(mask[:, None])
        return y[mask] if how == "index" else y[torch.where(mask)[0]]

    batch = (torch.rand(batch_size, 64),)
    return Step([model], [batch], forward, lambda y, *_: y.sum(), device, config)


def applied(use):
    def make_step(config, batch_size, device):
        with torch.device(device):
            model = nn.Linear(64, 64)
        return Step([model], [(torch.rand(batch_size, 64),)], lambda x: use(model, x), lambda y, *_: y.sum(), device, config)
    return make_step


def attended(model, x):
    from torch.nn.attention.flex_attention import flex_attention
    y = model(x).view(1, 1, -1, 64)
    return flex_attention(y, y, y)


def looked_up(batch):
    return torch.randint(5000, (4 * batch, 5))


sparse = by(optimized, lambda: nn.EmbeddingBag(5000, 32, sparse=True, mode="sum"), looked_up)
on_cuda = applied(lambda model, x: model(x) if torch.cuda.CUDAGraph().capture_begin() else x)
flexible = applied(attended)
gradient = applied(lambda model, x: torch.func.grad(lambda y: model(y).sum())(x))
distinct = applied(lambda model, x: model(x) + torch.unique(x).sum())
reading, choosing = by(read), by(policy)
matrices = by(optimized, lambda: nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)))
"""


module = written_module("steps_of_today", MODULE)


def captured(function, batch_size=4, **options):
    return captured_custom(f"steps_of_today:{function}", batch_size, **options)


def calls_of(function, batch_size=4, **options):
    return known_calls(captured(function, batch_size, **options))


@pytest.mark.parametrize(
    "how, waits", [("never", 0), ("logged", 1), ("nan", 1), ("finite", 1), ("kept", 1)]
)
def test_a_value_that_is_logged_or_checked_is_a_wait_and_the_step_goes_on(how, waits):
    """Regression: every loop that logs `loss.item()` was refused."""
    calls = calls_of("reading", options={"how": how})
    assert list(calls["family"][calls["blocking"]]) == ["memcpy_d2h"] * waits
    assert (calls["name"] == "_foreach_add_").sum() == 1, "the update is not skipped"
    assert "item" not in vars(torch.Tensor) and torch.tensor(3.5).item() == 3.5


def test_a_comparison_that_decides_is_refused():
    with pytest.raises(
        InputError,
        match=r"Tensor.item\(\) cannot be called on meta tensors in steps_of_today.py, line",
    ):
        captured("reading", options={"how": "compared"})


def test_distributions_that_check_their_arguments_are_captured(monkeypatch):
    # whoever compiled before in this process has switched the checks off, as torch.compile does
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    assert calls_of("choosing")["blocking"].any()


@pytest.mark.parametrize("kind, reads", [("Adafactor", True), ("ASGD", True), ("Muon", False)])
def test_optimizers_that_read_or_count_on_the_device_are_captured(kind, reads):
    found = calls_of("matrices", options={"kind": kind})
    update = found[found["phase"] == "optimizer"]
    assert update["bytes_written"].sum() >= 2 * 64 * 64 * 4 and update["blocking"].any() == reads


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_a_mask_of_a_library_is_taken_to_hide_something():
    """`transformers` asks the device whether it does, which refused every batch with an `attention_mask`."""
    plain, masked = (
        calls_of("masked", options={"mask": mask}).query("family == 'attention'")
        for mask in (False, True)
    )
    assert len(plain) == len(masked) == 2
    assert "mask" not in plain["attributes"].iloc[0] and "mask" in masked["attributes"].iloc[0]


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="newer PyTorch")
@pytest.mark.parametrize(
    "half, gpu, family, kernels, waits",
    [(True, "H100", "bmm", 3, 0), (True, "A100", "gemm", 12, 3), (False, "H100", "gemm", 12, 3)],
)
def test_grouped_products_count_every_row_once_and_run_as_pytorch_runs_them_there(
    half, gpu, family, kernels, waits
):
    """Regression: refused in fp32, and unknown in bf16, in which every routed model of `transformers` runs."""
    calls = map_calls(captured("grouped", 8, options={"half": half}), load_gpu(gpu))
    of_gate = (calls[["M", "N", "K"]] == 4).any(axis=1)
    found = calls[calls["family"].isin(["gemm", "bmm"]) & ~of_gate]
    once = 2.0 * 8 * 16 * 64 * 128  # tokens, widths
    assert found["flops"].sum() == 3 * once  # forward, and the gradients of rows and of weights
    assert list(found["family"]) == [family] * kernels and calls["blocking"].sum() == waits
    assert set(found["dtype"]) == {"bf16" if half else "fp32"}


@pytest.mark.parametrize("how", ["index", "select", "where"])
def test_what_is_picked_by_truth_values_needs_to_be_told_their_share(how):
    for share in (0.25, 0.5):
        calls = calls_of("picked", 64, options={"how": how}, picked=share)
        waits = calls.loc[calls["family"] == "memcpy_d2h", "blocking"]
        assert len(waits) and waits.any(), "the host waits for how many there are"
        rows = calls[(calls["name"] == "index") & (calls["op"] == "index")]
        assert list(rows["bytes_written"]) == [64 * share * 64 * 4]
    with pytest.raises(InputError, match=r"give the share that is true, model.picked=0.5"):
        captured("picked", options={"how": how})


@pytest.mark.parametrize("share", [0, 1.5, "half", True])
def test_a_share_is_a_share(share):
    with pytest.raises(ConfigError, match=f"model.picked={share}: give the share"):
        captured("picked", options={"how": "index"}, picked=share)


def test_a_gradient_by_torch_func_is_a_backward_pass() -> None:
    """Forward: the model's product, and that of its input's gradient. Backward: the gradient of the latter's weight."""
    products = map_calls(captured("gradient")).query("family == 'gemm'")
    assert products["phase"].value_counts().to_dict() == {"forward": 2, "backward": 1}


@pytest.mark.parametrize(
    "function, advice",
    [
        ("on_cuda", "on the `device` that the function receives"),
        ("flexible", "write it as F.scaled_dot_product_attention"),
        ("distinct", "the size of its result depends on data"),
    ],
)
def test_what_cannot_be_captured_says_what_to_do_in_a_line_that_can_be_read(function, advice):
    with pytest.raises(InputError, match=r"steps_of_today.py, line \d+") as refused:
        captured(function)
    said = str(refused.value)
    assert advice in said and len(said) < 420 and "\n" not in said


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize(
    "kind, additions, states", [("SparseAdam", 3, 2), ("Adagrad", 2, 1), ("SGD", 1, 0)]
)
def test_a_sparse_optimizer_of_the_steps_own_updates_the_rows_of_all_parts_once(
    kind, additions, states, parts
):
    """`SparseAdam` found no row in a gradient without data: its update was left out, and nothing said so."""
    graph = captured("sparse", options={"kind": kind, "parts": parts})
    calls = known_calls(graph)
    last = calls["node_id"] > calls["node_id"][calls["op"] == "sparse"].max()
    rows = calls.loc[last & (calls["op"] == "index_add"), "B"]
    used = 5000 * (1 - (1 - 1 / 5000) ** 80)  # of 80 rows, uniformly
    looked_up = 80 if kind == "SGD" else round(used)
    assert len(rows) == additions + (parts > 1) and rows.iloc[-1] == looked_up
    assert (calls["op"] == "coalesce").sum() == (kind != "SGD")
    assert graph.memory.optimizer == states * 5000 * 32 * 4
    assert not (calls["bytes_read"] > 5000 * 32).any(), "nothing reads the table"
