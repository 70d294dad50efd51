"""Modules of operators: forward by the calls of modules, backward by autograd's sequence numbers."""

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.graph.capture import observe
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.step_modules import held_parameters, module_paths
from pipeline.graph.table import Graph, write_nodes
from pipeline.workloads.training_step import Step


def nodes_of(model, loss=None, modules=None, forward=None, **config):
    config = {"optimizer": "sgd", **config}
    batch = (torch.empty(8, 4),)
    step = Step(
        modules or [model],
        [batch],
        forward or (lambda x: model(x)),
        loss or (lambda y, x: y.sum()),
        "meta",
        config,
    )
    return observe(step, False, config)[0]


PRODUCTS = ["Net.outer.0", "Net.outer.1", "Net.outer.1"]
"""The modules of the products of a forward pass."""


def modules_of(nodes, phase, name):
    """Modules of the operators of a name, in host order."""
    return [node.module for node in nodes if node.phase == phase and node.name.endswith(name)]


class Net(nn.Module):
    """`outer` holds two layers, of which the second runs twice; the result is multiplied by itself outside any other module."""

    def __init__(self):
        super().__init__()
        self.outer = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 6))

    def forward(self, x):
        y = self.outer[1](self.outer(x))
        return y * y


def on_meta(model):
    return model.to("meta")


def test_an_operator_belongs_to_the_module_that_runs_and_its_gradient_to_the_same():
    nodes = nodes_of(on_meta(Net()))
    assert modules_of(nodes, "forward", "aten::addmm") == PRODUCTS
    assert modules_of(nodes, "forward", "aten::mul") == ["Net"]
    assert modules_of(nodes, "backward", ": AddmmBackward0") == PRODUCTS[::-1]
    assert (
        modules_of(nodes, "backward", "aten::mm")[-1] == "Net.outer.0"
    )  # the inputs have no gradient
    assert modules_of(nodes, "backward", ": MulBackward0") == ["Net"]


def test_what_adds_up_a_gradient_belongs_to_the_module_of_the_weight():
    nodes = nodes_of(on_meta(Net()))
    sums = modules_of(nodes, "backward", ": torch::autograd::AccumulateGrad")
    assert set(sums) == {"Net.outer.0", "Net.outer.1"}
    assert sums[-1] == "Net.outer.0"


def test_copies_loss_and_optimizer_have_names_of_their_own():
    nodes = nodes_of(on_meta(Net()))
    names = {
        phase: {node.module for node in nodes if node.phase == phase}
        for phase in ("data", "loss", "optimizer")
    }
    assert names == {"data": {"inputs"}, "loss": {"loss"}, "optimizer": {"optimizer"}}
    assert modules_of(nodes, "backward", ": SumBackward0") == ["loss"]
    criterion = nn.MSELoss()
    nodes = nodes_of(on_meta(Net()), lambda y, x: criterion(y, torch.empty_like(y)))
    assert modules_of(nodes, "loss", "aten::mse_loss") == ["MSELoss"]
    assert modules_of(nodes, "backward", ": MseLossBackward0") == ["MSELoss"]


def test_forward_that_runs_again_in_the_backward_pass_belongs_to_its_module():
    model = on_meta(Net())
    nodes = nodes_of(model, forward=lambda x: checkpoint(model, x, use_reentrant=False))
    again = [node for node in nodes if node.attributes.get("recomputed")]
    assert [node.module for node in again if node.name == "aten::addmm"] == PRODUCTS
    assert {node.phase for node in again} == {"backward"}
    assert modules_of(nodes, "backward", ": AddmmBackward0") == PRODUCTS[::-1]
    assert not any(node.attributes.get("recomputed") for node in nodes_of(model))


def test_what_follows_a_forward_that_stops_early_keeps_its_parent_phase_and_module():
    """The second forward ends by an exception at `y * y`, whose record PyTorch loses."""
    model = on_meta(Net())
    nodes = nodes_of(model, forward=lambda x: checkpoint(model, x, use_reentrant=False))
    assert modules_of(nodes, "forward", "aten::mul") == ["Net"]
    products = [node for node in nodes if node.name == "aten::mul" and node.phase == "backward"]
    assert [(node.module, node.is_top_level) for node in products] == [
        ("Net", False)
    ] * 2  # y times the gradient, for each y
    plain = [
        node.name for node in nodes_of(model) if node.is_top_level and node.phase == "backward"
    ]
    assert [node.name for node in nodes if node.is_top_level and node.phase == "backward"] == plain
    assert (nodes[-1].phase, nodes[-1].module, nodes[-1].is_top_level) == (
        "optimizer",
        "optimizer",
        True,
    )


def test_models_of_one_class_are_told_apart_and_code_without_modules_has_none():
    one = on_meta(Net())
    other = on_meta(Net())
    nodes = nodes_of(one, modules=[one, other], forward=lambda x: one(x) + other(x))
    assert modules_of(nodes, "forward", "aten::mul") == ["Net", "Net2"]
    assert modules_of(nodes, "forward", "aten::add") == [None]
    weights = dict(one.named_parameters())
    nodes = nodes_of(one, forward=lambda x: torch.func.functional_call(one, weights, (x,)))
    assert modules_of(nodes, "forward", "aten::addmm") == PRODUCTS
    weight = one.outer[0].weight
    nodes = nodes_of(one, forward=lambda x: x @ weight.t())
    assert (
        modules_of(nodes, "forward", "aten::mm")
        == modules_of(nodes, "backward", ": MmBackward0")
        == [None]
    )


def test_a_mapped_module_has_the_same_modules():
    model = on_meta(Net())
    nodes = nodes_of(model, forward=lambda x: torch.vmap(model)(x))
    assert {"Net.outer.0", "Net.outer.1"} <= {
        node.module for node in nodes if node.phase == "forward"
    }


def test_a_module_that_fails_leaves_the_others_their_names():
    model = on_meta(Net())

    def forward(x):
        with pytest.raises(RuntimeError):
            model.outer(x.t())
        return model(x)

    assert modules_of(nodes_of(model, forward=forward), "forward", "aten::mul") == ["Net"]


def test_a_shared_weight_counts_once_and_a_shared_module_has_its_first_name():
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    tied[1].weight = tied[0].weight
    assert held_parameters(module_paths([tied])) == {
        "Sequential": 0,
        "Sequential.0": 16,
        "Sequential.1": 0,
    }
    layer = nn.Linear(4, 4)
    assert list(module_paths([nn.Sequential(layer, layer)]).values()) == [
        "Sequential",
        "Sequential.0",
    ]


def test_modules_survive_a_file_and_a_file_of_an_earlier_version_has_none(tmp_path):
    graph = Graph(write_nodes(nodes_of(on_meta(Net()))), parameters={"Net": 0, "Net.outer": 5})
    write_graph(graph, tmp_path / "graph.parquet")
    read = read_graph(tmp_path / "graph.parquet")
    assert [node.module for node in read.nodes()] == [node.module for node in graph.nodes()]
    assert list(read.parameters.items()) == [("Net", 0), ("Net.outer", 5)]
    earlier = Graph(graph.table.drop(columns="module"))
    write_graph(earlier, tmp_path / "earlier.parquet")
    assert pd.isna(read_graph(tmp_path / "earlier.parquet").table["module"]).all()
