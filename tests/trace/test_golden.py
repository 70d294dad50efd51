"""What is read from whole traces, value by value, within a relative tolerance of 1e-6.

    REFRESH_GOLDENS=1 pytest tests/trace/test_golden.py      # writes the expected values anew

Each case is a folder of golden/: the trace lies in `input/`, the expected values in `output/facts.json`. Two traces are
our own and are part of the repository: `cpu_dlrm`, recorded by `record_cpu_step.py`, and `drawn_gpu`, made by
`draw_gpu_steps.py`. The others are public; they are read from the folder of public data, and skipped without it.
"""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.overheads.extraction import extract_overheads
from pipeline.simulate.replay import replay
from pipeline.simulate.trace_program import iterations
from pipeline.trace.host_activity import activity
from pipeline.trace.kineto_fields import DEVICE_CATEGORIES
from pipeline.trace.load import load_trace
from tests.trace import draw_gpu_steps, record_cpu_step
from tests.trace.trace_drawing import trace as trace_bytes

GOLDEN = Path(__file__).parent / "golden"
REFRESH = os.environ.get("REFRESH_GOLDENS") == "1"
TOLERANCE = 1e-6

OWN = ["cpu_dlrm", "drawn_gpu"]
PUBLIC = [
    "a100_alexnet",
    "a100_event_sync",
    "a100x8_dlrm",
    "rtx2080ti_linear",
    "rtx2080ti_resnet",
    "v100_ddp",
    *(f"v100x8_dlrm/rank{rank}" for rank in range(5)),
]


def facts(path: Path) -> dict[str, Any]:
    """The figures of one trace that a change of the reader or the critical path would move."""
    trace = load_trace(path)
    act = activity(trace)
    samples = extract_overheads(act, "golden")
    device = trace.is_category(*DEVICE_CATEGORIES)
    columns = trace.columns
    predicted = replay(path).as_dict()
    return {
        "device": trace.device,
        "marker": trace.marker,
        "events": len(trace),
        "notes": trace.notes,
        "by_category": {
            str(k): int(v) for k, v in trace.events["category"].value_counts().sort_index().items()
        },
        "by_phase": {
            str(k): int(v) for k, v in trace.events["phase"].value_counts().sort_index().items()
        },
        "linked": int((columns["launch"][device] >= 0).sum()),
        "items": len(act.item),
        "device_us": float(columns["dur_ns"][device].sum() / 1000),
        "iterations": [
            {
                "span_us": i.span_us,
                "active_us": i.active_us,
                "calls": len(i.calls),
                "items": len(i.items),
            }
            for i in iterations(act)
        ],
        "overheads": {
            str(kind): {"mean_us": float(v.mean()), "median_us": float(v.median()), "count": len(v)}
            for kind, v in samples.groupby("type")["value_us"]
        },
        "replay": {
            key: predicted[key]
            for key in ("iterations", "measured_us", "predicted_us", "active_predicted_us")
        },
    }


def graph_facts(path: Path) -> dict[str, Any]:
    """The figures of one execution trace that a change of its import or of the operator map would move."""
    graph = import_execution_trace(path)
    calls = map_calls(graph)
    sums = calls.groupby("family", observed=True)[["flops", "bytes_read", "bytes_written"]].sum()
    return {
        "nodes": len(graph.table),
        "device": graph.device,
        "unknown": unknown_operators(graph, calls),
        "by_phase": {
            str(k): int(v) for k, v in graph.table["phase"].value_counts().sort_index().items()
        },
        "families": {
            str(family): {
                "calls": int((calls["family"] == family).sum()),
                **{k: float(v) for k, v in row.items()},
            }
            for family, row in sums.iterrows()
        },
    }


def compare(found: dict[str, Any], expected_path: Path) -> None:
    """Compare with the stored values; write them instead where a refresh is asked for."""
    if REFRESH:
        expected_path.parent.mkdir(parents=True, exist_ok=True)
        expected_path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    _same(found, json.loads(expected_path.read_text()), expected_path.parent.parent.name)


@pytest.mark.parametrize("name", OWN)
def test_a_trace_of_our_own_is_read_as_before(name: str) -> None:
    compare(
        facts(GOLDEN / name / "input" / "kineto.json.gz"), GOLDEN / name / "output" / "facts.json"
    )


def test_our_own_execution_trace_is_read_as_before() -> None:
    case = GOLDEN / "cpu_dlrm"
    compare(
        graph_facts(case / "input" / "execution_trace.json.gz"),
        case / "output" / "graph_facts.json",
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_trace_is_read_as_before(datasets: Path, name: str) -> None:
    suffix = "_kineto.json.gz" if "/" in name else "/kineto.json.gz"
    compare(facts(datasets / "traces" / f"{name}{suffix}"), GOLDEN / name / "output" / "facts.json")


def test_the_drawn_trace_is_what_its_script_draws() -> None:
    drawn = json.loads(trace_bytes(draw_gpu_steps.draw(), baseTimeNanoseconds=0))
    assert json.loads(gzip.decompress(draw_gpu_steps.PATH.read_bytes())) == drawn


def test_the_drawn_trace_holds_every_kind_of_event_that_a_gpu_step_has() -> None:
    events = load_trace(draw_gpu_steps.PATH).events
    work = events[events["category"].isin(DEVICE_CATEGORIES)]
    assert set(events["category"]) >= {
        "cpu_op",
        "user_annotation",
        "cuda_runtime",
        "cuda_sync",
        "kernel",
        "gpu_memcpy",
    }
    assert work.groupby("stream").size().to_dict() == {
        draw_gpu_steps.MAIN_STREAM: 9 * draw_gpu_steps.STEPS,
        draw_gpu_steps.SIDE_STREAM: draw_gpu_steps.STEPS,
    }
    assert (work["launch"] >= 0).all()
    assert {"cudaStreamSynchronize", "cudaEventRecord", "cudaStreamWaitEvent"} <= set(
        events["name"]
    )
    assert events.loc[events["category"] == "cpu_op", "tid"].nunique() == 2


def test_a_cpu_step_is_recorded_as_small_files_without_paths(tmp_path: Path) -> None:
    record_cpu_step.record(tmp_path)
    for folder in (tmp_path, record_cpu_step.FOLDER):
        for name in ("kineto.json.gz", "execution_trace.json.gz"):
            packed = (folder / name).read_bytes()
            assert len(packed) < 200_000
            text = gzip.decompress(packed).decode()
            assert not [
                part for part in ("/tmp", "/home/", "/root/", str(Path.cwd())) if part in text
            ]
    assert replay(tmp_path / "kineto.json.gz").as_dict()["iterations"] == record_cpu_step.STEPS - 1


def _same(found: Any, expected: Any, place: str) -> None:
    """Equal in everything; floats within the tolerance."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), place
        for key in expected:
            _same(found[key], expected[key], f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            _same(one, other, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), place
    else:
        assert found == expected, place
