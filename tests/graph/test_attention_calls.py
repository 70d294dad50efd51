"""Calls of fused attention: sizes, and whether it is causal, from emulated operators and from PyTorch's own."""

import json

import pandas as pd
import pytest
import torch

from pipeline.collect.cases import Maker, build_case
from pipeline.collect.cases.case import spec_from_row
from pipeline.families import work_of
from pipeline.graph.device_calls import map_calls
from pipeline.graph.opmap import rows
from pipeline.graph.table import Graph, Node, Tensor, write_nodes

Q = Tensor((2, 8, 128, 64), "bf16")
K = Tensor((2, 8, 256, 64), "bf16")
KINDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")
PREFIX = "aten::_scaled_dot_product_"


def recorded(name, causal):
    """The call of an operator as a trace records it: every argument of PyTorch's schema, all other flags set."""
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    inputs = []
    values = []
    for argument in schema.arguments:
        tensor = {"query": Q, "key": K, "value": K}.get(
            argument.name, Q if argument.name.startswith("grad_out") else None
        )
        inputs.append(tensor)
        values.append(
            None
            if tensor
            else causal
            if argument.name == "is_causal"
            else str(argument.type) == "bool" or 0.0
        )
    phase = "backward" if name.endswith("backward") else "forward"
    node = Node(0, name, phase=phase, inputs=tuple(inputs), values=tuple(values), outputs=(Q,))
    return map_calls(Graph(write_nodes([node]))).iloc[0]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("end", ["", "_backward"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_call_says_whether_it_is_causal(kind, end, causal):
    record = recorded(PREFIX + kind + end, causal)
    assert json.loads(record["attributes"]) == {"causal": causal}
    assert record[["B", "M", "N", "K"]].tolist() == [16, 128, 256, 64]
    work = (10 if end else 4) * 16 * 128 * 256 * 64
    assert record["flops"] == work * (0.5 if causal else 1.0)
    assert record["op"] == kind.partition("_")[0]


@pytest.mark.parametrize("causal", [True, False])
def test_a_stand_in_has_one_flag_and_its_dropout_last(causal):
    node = Node(
        0,
        PREFIX + "efficient_attention",
        inputs=(Q, K, K, None, None),
        values=(None,) * 3 + (causal, 0.1),
        outputs=(Q,),
    )
    assert json.loads(map_calls(Graph(write_nodes([node])))["attributes"].iloc[0]) == {
        "causal": causal,
        "dropout": True,
    }


def test_every_fused_operator_says_where_its_flag_its_dropout_and_its_mask_stand():
    mapped = [name for name in rows() if name.startswith(PREFIX)]
    assert len(mapped) == 2 * len(KINDS)
    for name in mapped:
        names = [
            a.name
            for a in getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema.arguments
        ]
        options = rows()[name].calls[0].options
        assert options["causal"] == names.index("is_causal"), name
        assert options["dropout"] == names.index("dropout_p"), name
        assert options.get("mask") == (
            names.index("attn_bias") if "attn_bias" in names else None
        ), name


@pytest.mark.parametrize("kind", ["flash_attention", "flash_attention_backward"])
def test_a_call_can_be_measured_by_itself_and_weighs_what_the_formula_says(kind):
    call = recorded(PREFIX + kind, True)
    spec = spec_from_row({**call.to_dict(), "dtype": "fp32"})
    assert spec.attributes == {"causal": True}
    case = build_case(spec, Maker(torch.device("cpu")))
    if case.prepare is not None:
        case.prepare()
    case.run()
    formula = work_of("attention", pd.DataFrame([call]), own_columns=False)
    assert formula.flops[0] == call["flops"]
    assert (
        work_of("attention", pd.DataFrame([{**call, "attributes": None}]), own_columns=False).flops[
            0
        ]
        == 2 * call["flops"]
    )
