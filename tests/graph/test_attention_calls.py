"""Calls of fused attention: sizes, and whether it is causal, from emulated operators and from PyTorch's own."""

import json

import pytest
import torch

from pipeline.graph.device_calls import map_calls
from pipeline.graph.table import Graph, Node, Tensor, write_nodes

Q = Tensor((2, 8, 128, 64), "bf16")
K, MASK = Tensor((2, 8, 256, 64), "bf16"), Tensor((128, 256), "bf16")
KINDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
PREFIX = "aten::_scaled_dot_product_"


def recorded(name, causal):
    """The call of an operator as a trace records it: every argument of PyTorch's schema, all other flags set."""
    given = {"query": Q, "key": K, "value": K, "attn_bias": MASK}
    given |= {"is_causal": causal, "dropout_p": 0.1}
    told = []
    for argument in getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema.arguments:
        usual = Q if argument.name.startswith("grad_out") else str(argument.type) == "bool" or 0.0
        told.append(given.get(argument.name, usual))
    inputs = tuple(each if isinstance(each, Tensor) else None for each in told)
    values = tuple(None if isinstance(each, Tensor) else each for each in told)
    phase = "backward" if name.endswith("backward") else "forward"
    node = Node(0, name, phase=phase, inputs=inputs, values=values, outputs=(Q,))
    return map_calls(Graph(write_nodes([node]))).iloc[0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("end", ["", "_backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_call_says_whether_it_is_causal_drops_numbers_and_reads_a_mask(
    kind, end, causal
):
    record = recorded(PREFIX + kind + end, causal)
    mask = {"mask": MASK.bytes} if kind in ("efficient_attention", "cudnn_attention") else {}
    assert json.loads(record["attributes"]) == {"causal": causal, "dropout": True} | mask
    assert record[["B", "M", "N", "K"]].tolist() == [16, 128, 256, 64]
    work = (10 if end else 4) * 16 * 128 * 256 * 64
    assert record["flops"] == work * (0.5 if causal else 1.0)
    assert record["op"] == kind.partition("_")[0]


def test_a_stand_in_has_one_flag_and_its_dropout_last():
    values = (None, None, None, False, 0.1)
    name = PREFIX + "efficient_attention"
    node = Node(0, name, inputs=(Q, K, K, None, None), values=values, outputs=(Q,))
    found = map_calls(Graph(write_nodes([node])))["attributes"].iloc[0]
    assert json.loads(found) == {"causal": False, "dropout": True}
