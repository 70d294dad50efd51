"""Captured graphs and the operator map against public traces (the full checks are in benchmarks/graph)."""

import sys
from pathlib import Path

import pytest
import yaml

from pipeline.graph.calls import map_calls
from pipeline.graph.capture import capture, observe
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.graph.match import sequence_match, top_level_names
from pipeline.graph.table import Graph, write_nodes
from pipeline.paths import config_dir

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "graph"))


def test_a_stack_of_linear_layers_matches_its_public_trace(datasets):
    from rebuilt import linear_stack

    step = linear_stack()
    nodes, _ = observe(step, False, step.config)
    ours = top_level_names(Graph(write_nodes([node for node in nodes if node.phase != "data"])))
    theirs = top_level_names(
        import_execution_trace(datasets / "traces" / "rtx2080ti_linear" / "execution_trace.json.gz")
    )
    assert sequence_match(ours, theirs) >= 0.95


@pytest.mark.parametrize("name, gpu", [("rtx2080ti_linear", "RTX2080Ti"), ("v100x8_dlrm", "V100")])
def test_the_map_predicts_the_launches_of_public_traces(datasets, name, gpu):
    from check_opmap import check

    score, _ = check(datasets / "traces" / name, gpu)
    assert score.predicted == pytest.approx(score.seen, rel=0.05)
    assert score.matched / score.predicted > 0.95


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

    config = {**yaml.safe_load((config_dir() / "model" / f"{name}.yaml").read_text()), **changes}
    calls = map_calls(capture(config, batch))
    heavy = calls["family"].isin(["gemm", "bmm"]) | calls["family"].str.startswith("conv2d")
    step = make_step(config, batch, "meta")
    with FlopCounterMode(display=False) as counter:
        step.run(0)
    assert calls.loc[heavy, "flops"].sum() == pytest.approx(counter.get_total_flops(), rel=0.01)
