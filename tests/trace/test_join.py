"""Joining profiler traces with execution traces."""

from __future__ import annotations

import json
from pathlib import Path

from trace_drawing import op, write

from pipeline.trace.join import BY_ID, BY_ORDER, join_execution_trace
from pipeline.trace.load import load_trace


def execution_trace(folder: Path, names: list[str]) -> Path:
    """An execution trace of schema 1.0.1 with the ops given, record function ids from 1."""
    nodes = [
        {"id": 10 + i, "name": name, "rf_id": 1 + i, "parent": 1, "tid": 1, "scope": 0, "inputs": [], "input_shapes": [],
         "input_types": [], "outputs": [], "output_shapes": [], "output_types": []} for i, name in enumerate(names)
    ]  # fmt: skip
    path = folder / "et.json"
    path.write_text(json.dumps({"schema": "1.0.1", "nodes": nodes}))
    return path


def test_record_function_ids_join_where_both_sides_have_them(tmp_path: Path) -> None:
    events = [op("aten::a", 0, 5, **{"Record function id": 2}), op("aten::b", 6, 9, **{"Record function id": 1})]
    joined = join_execution_trace(
        load_trace(write(tmp_path, events)), execution_trace(tmp_path, ["aten::b", "aten::a"])
    )
    assert joined.how == BY_ID and joined.share_of_events == joined.share_of_nodes == 1.0
    assert dict(joined.pairs.to_numpy().tolist()) == {0: 11, 1: 10}


def test_order_joins_otherwise_and_the_matched_share_is_told(tmp_path: Path) -> None:
    events = [op("aten::a", 0, 5), op("aten::a", 6, 9), op("aten::c", 10, 12)]
    joined = join_execution_trace(
        load_trace(write(tmp_path, events)), execution_trace(tmp_path, ["aten::a", "aten::b", "aten::a", "aten::d"])
    )
    assert joined.how == BY_ORDER and joined.share_of_events == 2 / 3 and joined.share_of_nodes == 0.5
    assert dict(joined.pairs.to_numpy().tolist()) == {0: 10, 1: 12}


def test_a_public_pair_of_one_run_matches_almost_whole(datasets: Path) -> None:
    folder = datasets / "traces" / "v100x8_dlrm"
    joined = join_execution_trace(load_trace(folder / "rank0_kineto.json.gz"), folder / "rank0_execution_trace.json.gz")
    assert joined.share_of_events > 0.9
