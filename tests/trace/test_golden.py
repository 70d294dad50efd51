"""What is read from whole traces, value by value, within a relative tolerance of 1e-6.

    REFRESH_GOLDENS=1 pytest tests/trace/test_golden.py      # writes the expected values anew

Each case is a folder of golden/: the trace lies in `input/`, the expected values in `output/facts.json`. The public
traces are read from the folder of public data, and skipped without it. Two traces are our own:

- `cpu_dlrm`: four training steps of a small DLRM, recorded on a CPU with `torch.profiler`, and an execution trace.
- `drawn_gpu`: six steps on two streams, drawn and not measured. One step (H, K, D: a copy to the device, a kernel, a
  copy from the device; the lookup waits for the product, and stream 7 for the lookup; host times vary a little)::

    main      [to][linear: K][_embedding_bag: record, wait, K][add_ K][mse_loss: K]            [item: D, wait][step: K K]
    autograd                                                           [AddmmBackward0: K K]
    s7        [H]   [gemm   ]                                 [add][mse]  [gemm  ][gemm   ]      [D]           [sgd][sgd]
    s20                             [lookup        ]
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.graph.device_calls import map_calls, unknown_operators
from pipeline.graph.execution_trace import import_execution_trace
from pipeline.overheads.extraction import extract_overheads
from pipeline.simulate.replay import replay
from pipeline.simulate.trace_program import iterations
from pipeline.trace.host_activity import activity
from pipeline.trace.kineto_fields import DEVICE_CATEGORIES
from pipeline.trace.load import load_trace

GOLDEN = Path(__file__).parent / "golden"
REFRESH = os.environ.get("REFRESH_GOLDENS") == "1"
TOLERANCE = 1e-6

OWN = ["cpu_dlrm", "drawn_gpu"]
PUBLIC = [
    "a100_alexnet",
    "a100_event_sync",
    "a100x8_dlrm",
    "rtx2080ti_linear",
    "v100_ddp",
    "v100x8_dlrm/rank0",
]


def counts(column: pd.Series) -> dict[str, int]:
    """How often each text occurs; categories that do not occur count 0."""
    return {str(text): int(count) for text, count in column.value_counts().items()}


def facts(path: Path) -> dict[str, Any]:
    """The figures of one trace that a change of the reader or the critical path would move."""
    trace = load_trace(path)
    act = activity(trace)
    samples = extract_overheads(act, "golden")
    device = trace.is_category(*DEVICE_CATEGORIES)
    columns, events = trace.columns, trace.events
    predicted = replay(path).as_dict()
    leads = any("steptime predict gpu=NAME" in note for note in predicted["notes"])
    assert leads == (trace.device == "cpu")
    return {
        "device": trace.device,
        "marker": trace.marker,
        "events": len(trace),
        "notes": trace.notes,
        "by_category": counts(events["category"]),
        "by_phase": counts(events["phase"]),
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
        "by_phase": counts(graph.table["phase"]),
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
    expected = flat(json.loads(expected_path.read_text()))
    assert flat(found) == {
        place: near(value) if isinstance(value, float) else value
        for place, value in expected.items()
    }


def near(value: float) -> Any:
    return pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """The single values in dictionaries and lists, by their place."""
    if not isinstance(value, (dict, list)):
        return {place: value}
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for name, part in parts for k, v in flat(part, f"{place}.{name}").items()}


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
