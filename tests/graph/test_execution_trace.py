"""Import of execution traces, from files made here and from public ones."""

import gzip
import json

import pytest

from evaluation.checks.sequence_match import sequence_match, top_level_names
from pipeline.errors import TraceError
from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.paths import datasets_dir


def node(number, name, parent, shapes=(), types=(), scope=0, tid=1, values=(), **more):
    attributes = {
        "rf_id": number,
        "scope": scope,
        "tid": tid,
        "seq_id": -1,
        "op_schema": "",
        **more,
    }
    side = {
        "values": list(values) or [[1, 2, 0, 4, 4, "cuda:0"]] * len(shapes),
        "shapes": list(shapes),
        "types": list(types),
    }
    return {
        "id": number + 100,
        "name": name,
        "ctrl_deps": parent + 100,
        "inputs": side,
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "value": value} for key, value in attributes.items()],
    }


@pytest.fixture
def trace(tmp_path):
    nodes = [
        node(1, "## forward ##", 0, scope=7),
        node(3, "aten::mm", 2, [[8, 4], [4, 2]], ["Tensor(float)", "Tensor(float)"]),
        node(2, "aten::linear", 1, [[8, 4]], ["Tensor(float)"]),
        node(5, "autograd::engine::evaluate_function: MmBackward0", 0, tid=2),
        node(6, "MmBackward0", 5, scope=1, tid=2),
        node(7, "aten::mm", 6, [[4, 8], [8, 2]], ["Tensor(float)", "Tensor(float)"], tid=2),
        node(9, "aten::add_", 8, [[4, 2], [4, 2]], ["Tensor(float)", "Tensor(float)"]),
        node(8, "Optimizer.step#SGD.step", 0, scope=7),
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(
        gzip.compress(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}).encode())
    )
    return path


def test_nodes_are_sorted_as_the_host_entered_them_and_annotations_give_phases(trace):
    table = import_execution_trace(trace).table
    assert list(table["name"]) == [
        "aten::linear",
        "aten::mm",
        "autograd::engine::evaluate_function: MmBackward0",
        "MmBackward0",
        "aten::mm",
        "aten::add_",
    ]
    assert list(table["phase"]) == ["forward"] * 2 + ["backward"] * 3 + ["optimizer"]
    assert list(table["thread"]) == [0, 0, 1, 1, 1, 0]
    assert list(table["is_top_level"]) == [True, False, True, False, False, True]


def test_the_device_is_found_in_the_tensors(trace):
    assert import_execution_trace(trace).device == "cuda"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"nodes": 3}',
        b'{"nodes": [{"id": 1}]}',
        gzip.compress(b"{}" * 99, mtime=0)[:20],
    ],
)
def test_broken_files_are_named_in_one_line(tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=r"broken\.json") as caught:
        import_execution_trace(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda nodes: nodes[0].update(id="4"), r"nodes\[0\] has no id"),
        (lambda nodes: nodes[1].pop("name"), r"no `nodes`|nodes\[1\] has no name"),
        (lambda nodes: nodes[1]["attrs"].pop(0), r"nodes\[1\] has no rf_id"),
        (lambda nodes: nodes[2]["inputs"].update(types=None), r"nodes\[2\] has inputs"),
        (
            lambda nodes: nodes[-2]["inputs"].update(shapes=[[4, -2], ["x"]]),
            r"node \d+ \(aten::add_\) has invalid inputs",
        ),
        (lambda nodes: nodes[1].update(id=nodes[0]["id"]), r"several nodes have the same id"),
        (lambda nodes: nodes[-1].update(ctrl_deps=nodes[-1]["id"] + 100, id=nodes[-1]["id"]), None),
    ],
)
def test_a_node_that_is_none_is_named(trace, change, told):
    whole = json.loads(gzip.decompress(trace.read_bytes()))
    change(whole["nodes"])
    trace.write_bytes(json.dumps(whole).encode())
    if told is None:  # a parent that the file does not hold: the node stands at the top
        assert len(import_execution_trace(trace).table) == 6
        return
    with pytest.raises(TraceError, match=told) as caught:
        import_execution_trace(trace)
    assert "\n" not in str(caught.value) and str(trace) in str(caught.value)


def test_nodes_that_lie_within_each_other_are_refused_instead_of_followed_for_ever(trace):
    whole = json.loads(gzip.decompress(trace.read_bytes()))
    first, second = [dict(whole["nodes"][-1]) for _ in range(2)]
    first.update(id=1000, ctrl_deps=1001)
    second.update(id=1001, ctrl_deps=1000)
    whole["nodes"][0]["ctrl_deps"] = 1000
    trace.write_bytes(json.dumps({**whole, "nodes": [*whole["nodes"], first, second]}).encode())
    with pytest.raises(TraceError, match="is its own ancestor"):
        import_execution_trace(trace)


def test_packed_data_with_a_flipped_bit_is_refused(trace):
    packed = trace.read_bytes()
    refused = 0
    for place in range(10, len(packed)):
        trace.write_bytes(packed[:place] + bytes([packed[place] ^ 0x10]) + packed[place + 1 :])
        try:
            import_execution_trace(trace)
        except TraceError as error:
            refused += str(trace) in str(error)
    assert (
        refused >= len(packed) - 10 - 8
    )  # bits that fill up the last byte of the packed data say nothing


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        import_execution_trace(tmp_path / "nowhere.json")


def test_sequence_match_is_the_longest_common_subsequence():
    assert sequence_match("abcde", "abcde") == 1.0
    assert sequence_match("abcde", "axcye") == 3 / 5
    assert sequence_match("ab", "xxxx") == 0.0
    assert sequence_match("", "") == 1.0


@pytest.mark.parametrize("name", ["rtx2080ti_linear", "rtx2080ti_resnet", "v100x8_dlrm"])
def test_public_execution_traces_are_covered_by_the_map(name):
    folder = datasets_dir()
    if folder is None:
        pytest.skip("no public data: set STEPTIME_DATASETS")
    graph = import_execution_trace(
        sorted((folder / "traces" / name).glob("*execution_trace.json.gz"))[0]
    )
    lost = unknown_operators(graph, map_calls(graph))
    assert all(not name.startswith("aten::") for name in lost), lost
    assert len(top_level_names(graph)) > 100


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


def test_element_types_are_known_by_one_list_and_all_have_a_size():
    """Regression: eight-bit floats counted as four bytes."""
    from pipeline.families.dims import ELEMENT_BYTES
    from pipeline.graph.execution_trace import DTYPES
    from pipeline.graph.table import DTYPE_BYTES, Tensor
    from pipeline.transfer.trace_calls import HALF_PRECISION_TYPES

    assert set(DTYPES.values()) <= set(DTYPE_BYTES)
    assert all(
        ELEMENT_BYTES[name] == size for name, size in DTYPE_BYTES.items() if name in ELEMENT_BYTES
    )
    assert HALF_PRECISION_TYPES == {"c10::Half": "fp16", "c10::BFloat16": "bf16"}
    assert Tensor((3, 5), DTYPES["c10::Float8_e4m3fn"]).bytes == 15


@pytest.mark.parametrize("nodes", ["[]", "{}", '""'])
def test_a_trace_without_operators_is_refused(tmp_path, nodes):
    path = tmp_path / "empty.json"
    path.write_text(f'{{"schema": "1.1.1-chakra.0.0.4", "nodes": {nodes}}}')
    with pytest.raises(TraceError, match="it has no operators"):
        import_execution_trace(path)
