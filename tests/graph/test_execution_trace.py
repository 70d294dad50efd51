"""Import of execution traces, from files made here and from public ones."""

import gzip
import json

import pytest

from evaluation.checks.sequence_match import sequence_match, top_level_names
from pipeline.errors import TraceError
from pipeline.graph.execution_trace import import_execution_trace


def node(number, name, parent, shapes=(), scope=0, tid=1):
    """A node of a trace, whose inputs are tensors of floats."""
    side = {
        "values": [[1, 2, 0, 4, 4, "cuda:0"]] * len(shapes),
        "shapes": list(shapes),
        "types": ["Tensor(float)"] * len(shapes),
    }
    attributes = {"rf_id": number, "scope": scope, "tid": tid, "seq_id": -1, "op_schema": ""}
    return {
        "id": number + 100,
        "name": name,
        "ctrl_deps": parent + 100,
        "inputs": side,
        "outputs": dict.fromkeys(side, ()),
        "attrs": [{"name": key, "value": value} for key, value in attributes.items()],
    }


@pytest.fixture
def trace(tmp_path):
    nodes = [
        node(1, "## forward ##", 0, scope=7),
        node(3, "aten::mm", 2, [[8, 4], [4, 2]]),
        node(2, "aten::linear", 1, [[8, 4]]),
        node(5, "autograd::engine::evaluate_function: MmBackward0", 0, tid=2),
        node(6, "MmBackward0", 5, scope=1, tid=2),
        node(7, "aten::mm", 6, [[4, 8], [8, 2]], tid=2),
        node(9, "aten::add_", 8, [[4, 2], [4, 2]]),
        node(8, "Optimizer.step#SGD.step", 0, scope=7),
    ]
    return written(tmp_path / "trace.json.gz", nodes)


def written(path, nodes):
    content = json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}).encode()
    path.write_bytes(gzip.compress(content))
    return path


def test_nodes_are_sorted_as_the_host_entered_them_and_annotations_give_phases(trace):
    graph = import_execution_trace(trace)
    table = graph.table
    names = "linear, mm, autograd::engine::evaluate_function: MmBackward0, MmBackward0, mm, add_"
    assert ", ".join(table["name"].str.removeprefix("aten::")) == names
    assert list(table["phase"]) == ["forward"] * 2 + ["backward"] * 3 + ["optimizer"]
    assert list(table["thread"]) == [0, 0, 1, 1, 1, 0]
    assert list(table["is_top_level"]) == [True, False, True, False, False, True]
    assert graph.device == "cuda"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", ""),
        (b'{"nodes": 3}', ""),
        (b'{"nodes": [{"id": 1}]}', ""),
        (gzip.compress(b"{}" * 99, mtime=0)[:20], ""),
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', ".*it has no operators"),
        (None, ".*no such file"),
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path, content, told):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TraceError, match=rf"broken\.json{told}") as caught:
        import_execution_trace(path)
    assert "\n" not in str(caught.value)


def in_a_ring(nodes):
    nodes[1]["ctrl_deps"], nodes[2]["ctrl_deps"] = nodes[2]["id"], nodes[1]["id"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda nodes: nodes[0].update(id="4"), r"nodes\[0\] has no id"),
        (lambda nodes: nodes[1].pop("name"), r"nodes\[1\] has no name"),
        (lambda nodes: nodes[1]["attrs"].pop(0), r"nodes\[1\] has no rf_id"),
        (lambda nodes: nodes[2]["inputs"].update(types=None), r"nodes\[2\] has inputs"),
        (
            lambda nodes: nodes[-2]["inputs"].update(shapes=[[4, -2], ["x"]]),
            r"node \d+ \(aten::add_\) has invalid inputs",
        ),
        (lambda nodes: nodes[1].update(id=nodes[0]["id"]), r"several nodes have the same id"),
        (in_a_ring, "is its own ancestor"),
    ],
)
def test_a_node_that_is_none_is_named(trace, change, told):
    nodes = json.loads(gzip.decompress(trace.read_bytes()))["nodes"]
    change(nodes)
    with pytest.raises(TraceError, match=told) as caught:
        import_execution_trace(written(trace, nodes))
    assert "\n" not in str(caught.value) and str(trace) in str(caught.value)


def test_packed_data_with_a_flipped_bit_is_refused(trace):
    packed = trace.read_bytes()
    refused = 0
    for place in range(10, len(packed)):
        trace.write_bytes(packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :])
        try:
            import_execution_trace(trace)
        except TraceError as error:
            refused += str(trace) in str(error)
    # bits that fill up the last byte of the packed data say nothing
    assert refused >= len(packed) - 10 - 8


def test_sequence_match_is_the_longest_common_subsequence():
    assert sequence_match("abcde", "axcye") == 3 / 5
    assert sequence_match("", "") == 1.0


def test_a_step_measured_here_gives_the_operators_of_a_captured_one(tmp_path):
    """The same DLRM run on this machine's CPU and captured on meta agree operator by operator."""
    from torch.profiler import ExecutionTraceObserver

    from pipeline.graph.capture import capture
    from pipeline.graph.table import Graph
    from pipeline.question.options import workload_values
    from pipeline.workloads import make_step

    config = {
        **workload_values("dlrm_small"),
        "rows": 50,
    }
    step = make_step(config, 16, "cpu")
    step.run(0)
    observer = ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "et.json"))
    observer.start()
    step.run(0)
    observer.stop()
    observer.unregister_callback()
    real = import_execution_trace(tmp_path / "et.json")
    ours = capture(config, 16)
    assert real.device == "cpu"

    def names(graph):
        return top_level_names(Graph(graph.table[graph.table["phase"] != "data"]))

    assert sequence_match(names(ours), names(real)) >= 0.97
