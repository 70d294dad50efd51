"""Captured graphs and the operator map against public traces (the full checks are in benchmarks/graph)."""

from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from evaluation.checks.operator_map_check import TRACES, check
from evaluation.checks.sequence_match import sequence_match, top_level_names
from evaluation.workloads import rebuilt_models
from pipeline.graph.capture import capture, observe
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.graph.table import Graph, write_nodes
from pipeline.question.options import workload_values
from pipeline.schemas import to_arrow
from pipeline.workloads import make_step


def rebuilt(model: str, first: bool = False) -> Graph:
    step = getattr(rebuilt_models, model)()
    nodes, *_ = observe(step, False, step.config, first)
    return Graph(write_nodes([node for node in nodes if node.phase != "data"]))


def imported(folder: Path, trace: str) -> Graph:
    return import_execution_trace(folder / "traces" / trace / "execution_trace.json.gz")


@pytest.mark.parametrize(
    "trace, model, first",
    [
        ("rtx2080ti_linear", "linear_stack", False),
        pytest.param("gpt2_et", "gpt2_large", True, marks=pytest.mark.nightly),
    ],
)
def test_a_rebuilt_model_matches_its_public_trace(datasets, trace, model, first):
    theirs = imported(datasets, trace)
    names = (top_level_names(graph) for graph in (rebuilt(model, first), theirs))
    assert sequence_match(*names) >= 0.95
    assert unknown_operators(theirs, map_calls(theirs)) == {}


def test_an_imported_execution_trace_gives_the_calls_of_a_captured_graph(datasets):
    """Same schema, same families, dims, FLOPs and bytes: the trace was recorded on a GPU, the other on meta."""
    graphs = rebuilt("linear_stack"), imported(datasets, "rtx2080ti_linear")
    to_arrow(graphs[1].table, "graph")
    key = ["family", "op", *"BMNKH", "tensors", "flops", "bytes_read", "bytes_written"]
    ours, theirs = (
        calls.loc[calls["phase"] != "data", key].astype(object).fillna(-1).value_counts().to_dict()
        for calls in map(map_calls, graphs)
    )
    assert ours == theirs


@pytest.mark.parametrize("name", sorted(TRACES))
def test_the_map_predicts_the_launches_of_public_traces(datasets, name):
    score, _ = check(datasets / "traces" / name, TRACES[name])
    assert score.predicted == pytest.approx(score.seen, rel=0.05)
    assert score.matched / score.predicted > 0.9 and score.matched / score.seen > 0.9


@pytest.mark.parametrize(
    "name, batch, changes",
    [
        ("dlrm_default", 512, {}),
        ("resnet50", 2, {"image_size": 64}),
        ("transformer", 2, {"layers": 1, "seq_len": 7}),
    ],
)
def test_flops_equal_those_of_pytorchs_counter(name, batch, changes):
    config = {**workload_values(name), **changes}
    calls = map_calls(capture(config, batch))
    heavy = calls["family"].str.contains("gemm|bmm|conv2d")
    step = make_step(config, batch, "meta")
    with FlopCounterMode(display=False) as counter:
        step.run(0)
    assert calls.loc[heavy, "flops"].sum() == pytest.approx(counter.get_total_flops(), rel=0.01)
