"""Reading only the nodes that capture keeps gives what reading all of them gives."""

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ExecutionTraceObserver

from pipeline.graph.execution_trace import read_execution_trace
from pipeline.graph.normalise import prune
from pipeline.graph.trace_reader import read_selected


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """A meta step with Python kernels (layer norm, GELU, whose schema holds quotes) and names with odd characters."""
    path = tmp_path_factory.mktemp("trace") / "et.json"
    x, w = torch.empty(8, 16, device="meta"), torch.empty(16, 16, device="meta", requires_grad=True)
    observer = ExecutionTraceObserver()
    observer.register_callback(str(path))
    observer.start()
    with torch.profiler.record_function("## forward ## (a) [b] {c}"):
        y = F.layer_norm(F.gelu(x @ w, approximate="tanh"), (16,))
    y.sum().backward()
    observer.stop()
    observer.unregister_callback()
    return path


def test_chosen_nodes_are_those_of_the_whole_file(trace):
    assert read_selected(trace, prune) == prune(read_execution_trace(trace))
    assert 0 < len(read_selected(trace, prune)) < len(read_execution_trace(trace))


def test_only_chosen_nodes_are_parsed(trace, monkeypatch):
    parsed = []
    from pipeline.graph import trace_reader as lean

    monkeypatch.setattr(lean, "parse", lambda data: parsed.append(data) or {"attrs": [], "ctrl_deps": 0})
    read_selected(trace, lambda nodes: [nodes[3]])
    assert len(parsed) == 1


@pytest.mark.parametrize("name", ['with \\"quotes\\"', "with \\\\ backslash"])
def test_a_layout_that_is_not_understood_is_read_as_a_whole(trace, tmp_path, name):
    data = trace.read_bytes().replace(b'"name": "aten::gelu"', f'"name": "{name}"'.encode(), 1)
    other = tmp_path / "odd.json"
    other.write_bytes(data)
    assert read_selected(other, prune) == prune(read_execution_trace(other))
    assert any("with" in node["name"] for node in read_selected(other, prune))
