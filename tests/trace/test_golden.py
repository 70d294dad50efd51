"""What is read from each public trace, value by value; `REFRESH_GOLDENS=1 pytest tests/trace/test_golden.py` refreshes.

Inputs are the public traces themselves (never committed); expected values lie in golden/<trace>/output/.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipeline.overheads.extraction import extract_overheads
from pipeline.simulate.replay import replay
from pipeline.simulate.trace_program import iterations
from pipeline.trace.host_activity import activity
from pipeline.trace.kineto_fields import DEVICE_CATEGORIES
from pipeline.trace.load import load_trace

GOLDEN = Path(__file__).parent / "golden"
REFRESH = os.environ.get("REFRESH_GOLDENS") == "1"
TOLERANCE = 1e-6

TRACES = ["a100_alexnet", "a100_event_sync", "a100x8_dlrm", "rtx2080ti_linear", "rtx2080ti_resnet", "v100_ddp",
          *(f"v100x8_dlrm/rank{rank}" for rank in range(5))]  # fmt: skip


def facts(path: Path) -> dict[str, Any]:
    """The figures of one trace that a change of the reader or the critical path would move."""
    trace = load_trace(path)
    act = activity(trace)
    samples = extract_overheads(act, "golden")
    device = trace.is_category(*DEVICE_CATEGORIES)
    columns = trace.columns
    predicted = replay(path).as_dict()
    return {
        "device": trace.device, "marker": trace.marker, "events": len(trace), "notes": trace.notes,
        "by_category": {str(k): int(v) for k, v in trace.events["category"].value_counts().sort_index().items()},
        "by_phase": {str(k): int(v) for k, v in trace.events["phase"].value_counts().sort_index().items()},
        "linked": int((columns["launch"][device] >= 0).sum()), "items": len(act.item),
        "device_us": float(columns["dur_ns"][device].sum() / 1000),
        "iterations": [
            {"span_us": i.span_us, "active_us": i.active_us, "calls": len(i.calls), "items": len(i.items)}
            for i in iterations(act)
        ],
        "overheads": {
            str(kind): {"mean_us": float(v.mean()), "median_us": float(v.median()), "count": len(v)}
            for kind, v in samples.groupby("type")["value_us"]
        },
        "replay": {key: predicted[key] for key in ("iterations", "measured_us", "predicted_us", "active_predicted_us")},
    }  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_a_public_trace_is_read_as_before(datasets: Path, name: str) -> None:
    suffix = "_kineto.json.gz" if "/" in name else "/kineto.json.gz"
    found = facts(datasets / "traces" / f"{name}{suffix}")
    expected_path = GOLDEN / name / "output" / "facts.json"
    if REFRESH:
        expected_path.parent.mkdir(parents=True, exist_ok=True)
        expected_path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    _same(found, json.loads(expected_path.read_text()), name)


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
