"""Records and dictionaries of the same events give the same columns, notes and errors."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.errors import TraceError
from pipeline.trace import load, typed_events
from pipeline.trace.event_columns import Columns
from pipeline.trace.file_scan import Scanner, parse_list
from tests.trace.test_fuzz import EVENTS, INSERTS, RAW, VALUES
from tests.trace.trace_drawing import trace

pytest.importorskip("msgspec")


class _Dictionaries(typed_events.EventDecoder):
    """Parses every window into dictionaries."""

    def parse(self, text: bytes) -> list[Any] | None:
        return parse_list(text)


def _read(path: Path, decoder: type[typed_events.EventDecoder]) -> dict[str, Any]:
    """Everything that a user sees of a trace, or the message of the refusal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "EventDecoder", decoder)
        try:
            read = load.load_trace(path)
        except TraceError as refusal:
            return {"refusal": str(refusal)}
    columns = {name: (str(values.dtype), values.tolist()) for name, values in read.columns.items()}
    vocabulary = {name: texts.tolist() for name, texts in read.vocabulary.items()}
    return {"columns": columns, "vocabulary": vocabulary, "notes": read.notes, "metadata": read.metadata}


def _same(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    assert _read(path, typed_events.EventDecoder) == _read(path, _Dictionaries)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("typed") / "trace.json"


def test_a_usual_trace_is_parsed_into_records(file: Path) -> None:
    file.write_bytes(RAW)
    decoder = typed_events.EventDecoder()
    batches = list(Scanner(file, decoder.parse).batches())
    assert all(decoder.is_record(batch.events[0]) for batch in batches)
    columns = Columns(file, decoder)
    for batch in batches:
        columns.add(batch)
    columns.add_held()
    assert columns.rows == len(EVENTS)
    _same(RAW, file)


def test_new_categories_text_ids_and_decimals_are_learned(file: Path) -> None:
    decoder = typed_events.EventDecoder()
    odd = {"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": "stream 7", "ts": 1.5, "dur": 2}
    flow = {"ph": "s", "cat": "async", "name": "f", "id": 1, "ts": 1.5}
    text = json.dumps([odd, flow]).encode()
    first, again = decoder.parse(text), decoder.parse(text)
    assert first == [odd, flow] and again is not None and all(map(decoder.is_record, again))


@pytest.mark.parametrize(
    "change",
    [
        {"ts": 1661203463018514.25},
        {"tid": "stream 7"},
        {"tid": "12"},
        {"cat": "Kernel"},
        {"cat": "python_function", "args": {"Python id": 3}},
        {"name": "INVALID", "cat": "cuda_runtime", "args": {"cbid": 505, "correlation": 7}},
        {"name": "INVALID", "cat": "cuda_runtime", "args": {"cbid": 7, "correlation": 7}},
        {"name": "INVALID", "cat": "cuda_runtime", "args": {"cbid": [505], "correlation": 7}},
        {"name": "µ"},
        {"args": {"external id": 5, "Bytes": 7}},
        {"args": {"External id": None, "external id": 5}},
        {"args": {"External id": 2**63}},
        {"args": {"Input dims": [], "Input type": "float", "Concrete Inputs": [1.5, None]}},
        {"ph": "B"},
        {"dur": -3},
        {"dur": 2.0625},
        {"dur": 1e16},
        {"cat": None},
        {"ph": "s"},
    ],
)
@pytest.mark.parametrize("row", [0, 1, 4, 7])
def test_an_unusual_event_gives_the_same_columns(change: dict[str, Any], row: int, file: Path) -> None:
    events = copy.deepcopy(EVENTS)
    events[row] |= change
    _same(trace(events), file)


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.integers(0, 2**32))
def test_odd_values_give_the_same_columns_or_the_same_refusal(file: Path, seed: int) -> None:
    rng = random.Random(seed)
    events = copy.deepcopy(EVENTS)
    for event in rng.sample(events, rng.choice([1, 2, 4])):
        holder = event["args"] if event.get("args") and rng.random() < 0.5 else event
        holder[rng.choice(list(holder))] = copy.deepcopy(rng.choice(VALUES))
    _same(trace(events), file)


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_bytes_give_the_same_columns_or_the_same_refusal(file: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = bytearray(RAW)
    place = rng.randrange(len(content))
    if rng.random() < 0.5:
        content[place] = rng.randrange(256)
    else:
        content[place:place] = rng.choice([insert for insert in INSERTS if insert != b"1e999"])
    _same(bytes(content), file)


def test_a_window_of_records_has_as_many_rows_as_complete_events(file: Path) -> None:
    flows = [{"ph": "s", "cat": "ac2g", "id": n, "pid": 1, "tid": 1, "ts": n, "name": "ac2g"} for n in range(5)]
    file.write_bytes(trace([*flows, *EVENTS, *flows]))
    read = load.load_trace(file)
    assert len(read) == len(EVENTS) and (np.diff(read.columns["ts_ns"]) >= 0).all()


def test_a_number_that_no_float_can_hold_is_empty_in_its_argument(file: Path) -> None:
    events = copy.deepcopy(EVENTS)
    events[0]["args"] = {"Input Dims": [[4, 77777]]}
    file.write_bytes(trace(events).replace(b"77777", b"1e999"))
    read, dictionaries = (_read(file, decoder) for decoder in (typed_events.EventDecoder, _Dictionaries))
    assert "[[4,null]]" in read["vocabulary"]["input_shapes"]
    assert (read["columns"], read["vocabulary"]) == (dictionaries["columns"], dictionaries["vocabulary"])
