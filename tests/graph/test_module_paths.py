"""Modules of operators: forward by the calls of modules, backward by autograd's sequence numbers."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.graph.capture import observe
from pipeline.graph.graph_file import read_graph, write_graph
from pipeline.graph.step_modules import held_parameters, module_paths
from pipeline.graph.table import Graph, write_nodes
from pipeline.workloads.training_step import Step


def nodes_of(model, loss=lambda y, x: y.sum(), modules=(), forward=None):
    config = {"optimizer": "sgd"}
    pool, modules = [(torch.empty(8, 4),)], [*modules] or [model]
    step = Step(modules, pool, forward or (lambda x: model(x)), loss, "meta", config)
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
        self.to("meta")

    def forward(self, x):
        y = self.outer[1](self.outer(x))
        return y * y


def test_an_operator_belongs_to_the_module_that_runs_and_its_gradient_to_the_same():
    nodes = nodes_of(Net())
    assert modules_of(nodes, "forward", "aten::addmm") == PRODUCTS
    assert modules_of(nodes, "forward", "aten::mul") == ["Net"]
    assert modules_of(nodes, "backward", ": AddmmBackward0") == PRODUCTS[::-1]
    assert modules_of(nodes, "backward", ": MulBackward0") == ["Net"]
    sums = modules_of(nodes, "backward", ": torch::autograd::AccumulateGrad")
    assert set(sums) == set(PRODUCTS) and sums[-1] == "Net.outer.0"  # by their weights


def test_copies_loss_and_optimizer_have_names_of_their_own():
    nodes = nodes_of(Net())
    for phase, module in (("data", "inputs"), ("loss", "loss"), ("optimizer", "optimizer")):
        assert {node.module for node in nodes if node.phase == phase} == {module}
    assert modules_of(nodes, "backward", ": SumBackward0") == ["loss"]
    criterion = nn.MSELoss()
    nodes = nodes_of(Net(), lambda y, x: criterion(y, torch.empty_like(y)))
    assert modules_of(nodes, "loss", "aten::mse_loss") == ["MSELoss"]
    assert modules_of(nodes, "backward", ": MseLossBackward0") == ["MSELoss"]


def test_forward_that_runs_again_in_the_backward_pass_belongs_to_its_module():
    """It ends by an exception at `y * y`, whose record PyTorch loses: what follows keeps its parent, phase and module."""
    model = Net()
    plain = nodes_of(model)
    nodes = nodes_of(model, forward=lambda x: checkpoint(model, x, use_reentrant=False))
    again = [node for node in nodes if node.attributes.get("recomputed")]
    assert [node.module for node in again if node.name == "aten::addmm"] == PRODUCTS
    assert {node.phase for node in again} == {"backward"}
    assert modules_of(nodes, "backward", ": AddmmBackward0") == PRODUCTS[::-1]
    assert modules_of(nodes, "backward", "aten::mul") == ["Net"] * 2  # the gradient, for each y
    tops = [
        [node.name for node in each if node.is_top_level and node.phase == "backward"]
        for each in (plain, nodes)
    ]
    assert tops[0] == tops[1] and nodes[-1].module == nodes[-1].phase == "optimizer"
    assert not any(node.attributes.get("recomputed") for node in plain)


def test_models_of_one_class_are_told_apart_and_code_without_modules_has_none():
    one, other = Net(), Net()
    nodes = nodes_of(one, modules=[one, other], forward=lambda x: one(x) + other(x))
    assert modules_of(nodes, "forward", "aten::mul") == ["Net", "Net2"]
    assert modules_of(nodes, "forward", "aten::add") == [None]
    nodes = nodes_of(one, forward=lambda x: x @ one.outer[0].weight.t())
    assert modules_of(nodes, "backward", ": MmBackward0") == [None]


def test_a_shared_weight_counts_once_and_a_shared_module_has_its_first_name():
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    tied[1].weight = tied[0].weight
    held = held_parameters(module_paths([tied]))
    assert held == {"Sequential": 0, "Sequential.0": 16, "Sequential.1": 0}
    layer = nn.Linear(4, 4)
    names = module_paths([nn.Sequential(layer, layer)]).values()
    assert list(names) == ["Sequential", "Sequential.0"]


def test_modules_survive_a_file_and_a_file_of_an_earlier_version_has_none(tmp_path):
    path = tmp_path / "graph.parquet"
    graph = Graph(write_nodes(nodes_of(Net())), parameters={"Net": 0, "Net.outer": 5})
    write_graph(graph, path)
    read = read_graph(path)
    assert list(read.table["module"].dropna()) == list(graph.table["module"].dropna()) != []
    assert read.parameters == graph.parameters
    write_graph(Graph(graph.table.drop(columns="module")), path)
    assert read_graph(path).table["module"].isna().all()
