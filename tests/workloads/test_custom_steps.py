"""Users' own steps: operators that the meta device lacks are captured as CUDA runs them."""

import json

import pandas as pd
import pytest

from pipeline import compare
from pipeline.answers.predict import predict
from pipeline.errors import ConfigError, InputError
from pipeline.graph.device_calls import map_calls
from tests.workloads.small import captured_custom, written_module

MODULE = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from pipeline.workloads.training_step import Step


def made(config, device, module, forward, *inputs):
    return Step([module], [inputs], forward, lambda output, *_: output.float().sum(), device, config)


def masked_attention(config, batch_size, device):
    kind, weight = config["options"]["mask"], nn.Linear(8, 8, device=device)
    mask = torch.zeros(16, 16, dtype=torch.bool if kind == "bool" else torch.float32, device=device)

    def forward(x):
        return F.scaled_dot_product_attention(weight(x), x, x, attn_mask=mask if kind else None, is_causal=not kind)

    return made(config, device, weight, forward, torch.rand(batch_size, 2, 16, 8))


def recurrent(config, batch_size, device):
    with torch.device(device):
        lstm = nn.LSTM(16, 32, num_layers=2, bidirectional=True)
        gru = nn.GRU(64, 32, batch_first=True)

    def forward(x):
        output, (hidden, _) = lstm(x)
        return gru(output.transpose(0, 1), hidden[:1])[0]

    return made(config, device, nn.ModuleList([lstm, gru]), forward, torch.rand(5, batch_size, 16))


def recomputed(config, batch_size, device):
    with torch.device(device):
        layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)])
    again = config["options"].get("again", False)

    def forward(x):
        x = (x * 1.0).requires_grad_() if "again" in config["options"] else x
        for layer in layers:
            x = layer(x) if again is None else checkpoint(layer, x, use_reentrant=again)
        return x

    return made(config, device, layers, forward, torch.rand(batch_size, 16))


def sparse_twice(config, batch_size, device):
    with torch.device(device):
        first, second = (nn.Embedding(5000, 8, sparse=True) for _ in range(2))
    pairs = [torch.randint(5000, (batch_size,)) for _ in range(3)]
    module = nn.ModuleList([first, second])
    return made(config, device, module, lambda i, j, k: first(i) + second(k) + first(j), *pairs)


def own_optimizer(config, batch_size, device):
    kind, options = config["options"]["kind"], config["options"].get("of", {})
    with torch.device(device):
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    own = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **options)

    def procedure(batch, optimizers):
        own.zero_grad()
        model(batch[0]).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        own.step()

    return Step([model], [(torch.rand(batch_size, 64),)], None, None, device, config, procedure=procedure)


def frozen(config, batch_size, device):
    with torch.device(device):
        body, head = nn.Linear(16, 16), nn.Linear(16, 4)
    body.requires_grad_(False)
    return made(config, device, nn.ModuleList([body, head]), lambda x: head(body(x)), torch.rand(batch_size, 16))


def accumulated(config, batch_size, device):
    with torch.device(device):
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

    def procedure(batch, optimizers):
        for part in batch[0].chunk(config["options"]["parts"]):
            model(part).sum().backward()

    return Step([model], [(torch.rand(batch_size, 64),)], None, None, device, config, procedure=procedure)


def unknown(config, batch_size, device):
    with torch.device(device):
        layer = nn.Linear(64, 64)
    return made(config, device, layer, lambda x: torch.linalg.inv(layer(x)), torch.rand(batch_size, 64, 64))


def doubled(config, batch_size, device, dtype=torch.float64):
    layer = nn.Linear(1024, 1024, device=device, dtype=dtype)
    return made(config, device, layer, lambda x: layer(x), torch.rand(batch_size, 1024, dtype=dtype))


def single(config, batch_size, device):
    return doubled(config, batch_size, device, torch.float32)


def turned(config, batch_size, device):
    layer = nn.Linear(64, 64, device=device)
    return made(config, device, layer, lambda x: (torch.complex(layer(x), x) @ torch.complex(x.mT, x.mT)).abs(),
                torch.rand(batch_size, 64))


def wrong(config, batch_size, device):
    raise ValueError("no such layer")


def leaves(config, batch_size, device):
    sys.exit(3)
"""


module = written_module("steps_of_mine", MODULE)


def captured(function, batch_size=4, **options):
    return captured_custom(
        **{"target": f"steps_of_mine:{function}", "batch_size": batch_size, **options}
    )


def calls_of(function, **options) -> pd.DataFrame:
    return map_calls(captured(function, **options))


@pytest.mark.parametrize("dtype, size", [("fp32", 4), ("fp16", 2)])
@pytest.mark.parametrize("mask", [None, "float", "bool"])
def test_a_mask_is_read_by_the_kernel_that_takes_one(dtype, size, mask):
    """Regression: FlashAttention takes no mask, but half precision was timed as if it did, without reading the mask."""
    found = calls_of("masked_attention", dtype=dtype, options={"mask": mask})
    attention = found[found["family"] == "attention"]
    assert set(attention["op"]) == {"flash" if dtype == "fp16" and mask is None else "efficient"}
    said = {"causal": mask is None} | ({"mask": 16 * 16 * size} if mask else {})
    chosen = {"chosen": True} if mask is None and dtype == "fp16" else {}  # it depends on the card
    assert [json.loads(text) for text in attention["attributes"]] == [said | chosen] * 2
    assert (found["op"] == "where").sum() == (mask == "bool"), "truth values become numbers"
    full = 4 * (4 * 2) * 16 * 16 * 8 * (1.0 if mask else 0.5)
    assert list(attention["flops"]) == [full, 2.5 * full]


def test_recurrent_layers_are_one_call_each_way_with_their_own_arithmetic():
    graph = captured("recurrent")
    rnn = map_calls(graph).query("family in ['rnn', 'gemm']")
    # gates, widths of both layers, directions, tokens, batch
    lstm = 2 * 4 * ((16 + 32) + (64 + 32)) * 32 * 2 * 5 * 4
    gru = 2 * 3 * (64 + 32) * 32 * 5 * 4
    assert list(rnn["phase"]) == ["forward", "forward", "backward", "backward"]
    assert list(rnn["flops"]) == [lstm, gru, 2 * gru, 2 * lstm]
    names = {"aten::lstm", "aten::gru", "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"}
    assert names <= set(graph.table["name"])


@pytest.mark.parametrize("again, alive", [(None, 2 + 3 + 1), (False, 2 + 2 + 2), (True, 2 + 2 + 3)])
def test_what_is_recomputed_takes_memory_while_it_is_used(again, alive):
    """In tensors of a part's size. Without recomputation: the batch and its product, each ReLU's result, and a gradient. With
    it: the batch, its product, the inputs of the other parts, and of the last part its two results, or a result and a
    gradient; PyTorch's older form holds the result while it computes the gradient of the part's input, too.
    """
    memory = captured("recomputed", 65536, options={"again": again}).memory
    assert memory.peak == pytest.approx(alive * 65536 * 16 * 4, rel=1e-3)


@pytest.mark.parametrize("optimizer, name", [("sgd", "add_"), ("adagrad", "coalesce")])
def test_a_sparse_table_that_is_looked_up_twice_is_updated_once_by_the_rows_of_both(
    optimizer, name
):
    """Regression: the sum of its two gradients counted whole tables, and the update counted only the first lookup's rows."""
    graph = captured("sparse_twice", optimizer=optimizer)
    calls = map_calls(graph)
    assert not (calls["bytes_read"] > 5000 * 8 * 4).any(), "nothing reads a whole table"
    joins = calls[calls["family"] == "concat"]
    assert list(joins["bytes_read"]) == [8 * 8, 8 * 8 * 4]
    nodes = [n for n in graph.nodes() if n.name == f"aten::{name}" and n.phase == "optimizer"]
    assert [node.attributes["sparse_rows"] for node in nodes] == [8, 4]


@pytest.mark.parametrize(
    "kind, of, op, launches, states",
    [
        ("AdamW", {"fused": True}, "fused_adamw", 1, 2),
        ("Adam", {"amsgrad": True}, "foreach", 8, 3),
        ("SGD", {"momentum": 0.9, "fused": True}, "fused_sgd", 1, 1),
        ("Adagrad", {"fused": True}, "fused_adagrad", 1, 1),
        ("RMSprop", {}, "foreach", 5, 1),
    ],
)
def test_an_optimizer_of_the_steps_own_goes_by_lists_and_keeps_its_state(
    kind, of, op, launches, states
):
    """Regression: on the meta device it ran parameter by parameter, and the memory need lacked its state."""
    graph = captured("own_optimizer", options={"kind": kind, "of": of})
    calls, size = map_calls(graph), 2 * 4 * (64 * 64 + 64)
    update = calls.query("phase == 'optimizer' and bytes_read > 1000")
    update = update[update["op"].str.startswith(op)]
    assert len(update) == launches and graph.memory.optimizer == states * size
    if op.startswith("fused"):
        moved = update[["bytes_read", "bytes_written"]].values.tolist()
        assert moved == [[(2 + states) * size, (1 + states) * size]]
    norms = calls.loc[calls["op"] == "foreach_norm", "bytes_read"]
    assert list(norms) == [size], "gradients are clipped by lists, too"


def test_frozen_weights_get_no_gradient():
    graph = captured("frozen", optimizer="adam")
    backward = map_calls(graph).query("family == 'gemm' and phase == 'backward'")
    assert len(backward) == 1  # the head's weight; nothing below it learns
    assert graph.memory.gradients == 4 * (16 * 4 + 4)


def test_a_batch_in_parts_keeps_the_activations_of_one_part():
    whole, parts = (
        captured("accumulated", 65536, options={"parts": n}).memory.peak / (65536 * 64 * 4)
        for n in (1, 4)
    )
    assert whole == pytest.approx(4, rel=5e-3)  # the batch, what each tanh gives, and a gradient
    assert parts == pytest.approx(1 + 3 / 4, rel=5e-3)  # parts are views of the batch


@pytest.mark.parametrize(
    "function, operator", [("unknown", "aten::linalg_inv_ex"), ("turned", "aten::mm")]
)
def test_what_is_not_modelled_makes_the_answer_a_lower_bound(function, operator):
    asked = {"model": "custom", "model__target": f"steps_of_mine:{function}"}
    found = predict("V100", **asked)
    assert operator in found.unmodelled_us
    assert list(found.lower_bound) == found.as_dict()["lower_bound"]
    (text,) = (text for text in found.warnings if text.startswith("lower bound: "))
    assert all(name in text for name in found.lower_bound) and ("warning", text) in found.rows()
    share = sum(found.unmodelled_us.values()) / sum(found.families_us.values())
    assert found.unmodelled_share == pytest.approx(share) and share > 0.01
    assert "at least" in str(found)
    assert compare("V100", **asked)._repr_html_().count("≥") == 2


def test_a_step_in_fp64_is_modelled_at_the_rate_of_the_gpu():
    def asked(name, gpu="T4", **options):
        target = f"steps_of_mine:{name}"
        return predict(gpu, "custom", model__target=target, batch_size=4096, **options)

    doubled = asked("doubled")
    assert doubled.families_us["gemm"] > 10 * asked("single").families_us["gemm"]
    faster = asked("doubled", gpu__fp64_tflop_per_s=0.5)
    for found, tera in (
        (doubled, 0.2531),
        (faster, 0.5),
    ):  # no error beats two products at the peak
        assert 1.3 > found.p10_us / (2 * 2 * 4096 * 1024**2 / (tera * 1e6)) > 1
    found = asked("doubled", "V100")
    assert found.lower_bound == found.warnings == () and found.unmodelled_share == 0


def test_a_step_that_ends_its_process_is_named_with_its_line():
    with pytest.raises(InputError, match=r"SystemExit: 3 in steps_of_mine.py"):
        captured("leaves")


@pytest.mark.parametrize(
    "target, says",
    [
        ("./steps_of_mine.py:wrong", "not its file: steps_of_mine:wrong"),
        ("steps_of_mine", "module:function"),
        ("nowhere:f", "no module"),
    ],
)
def test_a_target_is_a_function_of_a_module(target, says):
    with pytest.raises((ConfigError, InputError), match=says):
        captured("wrong", target=target)
