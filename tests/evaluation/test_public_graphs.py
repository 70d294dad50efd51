"""Captured graphs and the operator map against public traces (the full checks are in benchmarks/graph)."""

import pytest

from evaluation.checks.operator_map_check import TRACES, check
from evaluation.checks.sequence_match import sequence_match, top_level_names
from evaluation.workloads import rebuilt_models
from pipeline.graph.capture import capture, observe
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.graph.table import Graph, write_nodes
from pipeline.question.options import workload_values
from pipeline.schemas import to_arrow


@pytest.mark.parametrize(
    "trace, model, first",
    [("rtx2080ti_linear", "linear_stack", False), ("gpt2_et", "gpt2_large", True)],
)
def test_a_rebuilt_model_matches_its_public_trace(datasets, trace, model, first):
    step = getattr(rebuilt_models, model)()
    nodes, *_ = observe(step, False, step.config, first)
    ours = top_level_names(Graph(write_nodes([node for node in nodes if node.phase != "data"])))
    imported = import_execution_trace(datasets / "traces" / trace / "execution_trace.json.gz")
    assert sequence_match(ours, top_level_names(imported)) >= 0.95
    assert unknown_operators(imported, map_calls(imported)) == {}


def test_an_imported_execution_trace_gives_the_calls_of_a_captured_graph(datasets):
    """Same schema, same families, dims, FLOPs and bytes: the trace was recorded on a GPU, the other on meta."""
    step = rebuilt_models.linear_stack()
    nodes, *_ = observe(step, False, step.config)
    ours = map_calls(Graph(write_nodes([node for node in nodes if node.phase != "data"])))
    imported = import_execution_trace(
        datasets / "traces" / "rtx2080ti_linear" / "execution_trace.json.gz"
    )
    to_arrow(imported.table, "graph")
    theirs = map_calls(imported)
    theirs = theirs[theirs["phase"] != "data"]
    key = [
        "family",
        "op",
        "B",
        "M",
        "N",
        "K",
        "H",
        "tensors",
        "flops",
        "bytes_read",
        "bytes_written",
    ]
    counts = [calls[key].astype(object).fillna(-1).value_counts() for calls in (ours, theirs)]
    assert counts[0].to_dict() == counts[1].to_dict()


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
    from torch.utils.flop_counter import FlopCounterMode

    from pipeline.workloads import make_step

    config = {**workload_values(name), **changes}
    calls = map_calls(capture(config, batch))
    heavy = calls["family"].isin(["gemm", "bmm"]) | calls["family"].str.startswith("conv2d")
    step = make_step(config, batch, "meta")
    with FlopCounterMode(display=False) as counter:
        step.run(0)
    assert calls.loc[heavy, "flops"].sum() == pytest.approx(counter.get_total_flops(), rel=0.01)
