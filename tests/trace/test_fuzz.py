"""Mutated traces are either read or refused with one line that names the file and the place; `soak` draws thousands more."""

from __future__ import annotations

import gzip
import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SteptimeError
from pipeline.simulate.replay import replay
from pipeline.trace.load import load_trace
from soak.damage import VALUES, places
from tests.trace.trace_drawing import AUTOGRAD, annotation, api, kernel, launch, memcpy, op, trace

PLACE = re.compile(r"byte|traceEvents|baseTimeNanoseconds|no operators|empty|JSON trace")
"""A refusal says where: a byte, an element, a field, or that the whole file holds nothing of use."""

SECONDS_PER_FILE = 5.0
"""No small file may take longer than this: a hang in disguise."""


def _iteration(number: int) -> list[dict[str, Any]]:
    at, ids = 100 * number, 10 * number
    return [
        annotation(f"ProfilerStep#{number}", at, at + 95),
        op("aten::linear", at + 1, at + 20),
        op(
            "aten::addmm",
            at + 2,
            at + 18,
            **{"Input Dims": [[8, 8], []], "Input type": ["float", ""]},
        ),
        launch(at + 5, at + 8, ids + 1),
        kernel("sgemm", at + 9, at + 30, ids + 1, **{"grid": [64, 1, 1], "block": [128, 1, 1]}),
        op("aten::to", at + 22, at + 40),
        api("cudaMemcpyAsync", at + 23, at + 36, ids + 2),
        memcpy("Memcpy DtoH (Device -> Pageable)", at + 31, at + 35, ids + 2, 4096),
        api("cudaStreamSynchronize", at + 36, at + 38, ids + 3),
        api("cudaStreamWaitEvent", at + 41, at + 42, ids + 4),
        op("autograd::engine::evaluate_function: AddmmBackward0", at + 50, at + 70, AUTOGRAD),
        launch(at + 55, at + 58, ids + 5, AUTOGRAD),
        kernel("sgemm", at + 60, at + 80, ids + 5, stream=20),
    ]


EVENTS = [event for number in range(3) for event in _iteration(number)]
RAW = trace(EVENTS, baseTimeNanoseconds=1_700_000_000_000_000_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def predicted_us(folder: Path) -> float:
    """The step of the unharmed trace."""
    (path := folder / "unharmed.json").write_bytes(RAW)
    return replay(path).as_dict()["predicted_us"]


def survives(content: bytes, folder: Path, predict: bool = True) -> bool:
    """Whether a file is read; a refusal is fine if it names the file on one line, anything else fails the test."""
    path = folder / "mutant.json"
    path.write_bytes(content)
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            loaded = load_trace(path)
            _consistent(loaded)
            if predict:
                figures = replay(path).as_dict()
                assert np.isfinite(figures["predicted_us"]) and figures["predicted_us"] >= 0
        return True
    except SteptimeError as refusal:
        assert str(path) in str(refusal) and "\n" not in str(refusal)
        assert PLACE.search(str(refusal).replace(str(path), "")), refusal
        return False
    finally:
        assert time.process_time() - begin < SECONDS_PER_FILE


def _consistent(loaded: Any) -> None:
    count = len(loaded)
    assert (np.diff(loaded.columns["ts_ns"]) >= 0).all() and (loaded.columns["dur_ns"] >= 0).all()
    for link in ("parent", "top", "op", "launch"):
        assert ((loaded.columns[link] >= -1) & (loaded.columns[link] < count)).all()
    assert len(loaded.events) == count


def test_gzip_data_cut_off_or_damaged_is_refused(folder: Path) -> None:
    packed = gzip.compress(RAW)
    assert not any(survives(packed[:length], folder) for length in range(3, len(packed), 11))
    for place in range(20, len(packed), 29):
        survives(packed[:place] + bytes([packed[place] ^ 0x55]) + packed[place + 1 :], folder)


def test_every_value_may_have_the_wrong_type(folder: Path) -> None:
    data = json.loads(trace(_iteration(0), baseTimeNanoseconds=5))
    for number, (holder, key) in enumerate(places(data)):
        kept = holder[key]
        for value in VALUES[number % 16 :: 16]:
            holder[key] = value
            survives(json.dumps(data).encode(), folder, predict=False)
        holder[key] = kept


def test_every_key_may_be_missing(folder: Path) -> None:
    data = json.loads(trace(_iteration(0), baseTimeNanoseconds=5))
    for number, (holder, key) in enumerate(list(places(data))):
        if isinstance(holder, dict):
            kept = holder.pop(key)
            survives(json.dumps(data).encode(), folder, predict=number % 40 == 0)
            holder[key] = kept


@pytest.mark.parametrize(
    ("start", "repeated"),
    [("", "["), ("[", '{"a":'), ('[{"ph": "X", "name": "', "xxx"), ("[", "1")],
)
def test_files_without_end_are_refused_quickly(folder: Path, start: str, repeated: str) -> None:
    assert not survives(f'{{"traceEvents": {start}{repeated * 100_000}'.encode(), folder)


@pytest.mark.parametrize("content", [b"\x1f\x8b" + bytes(100), b"PK\x03\x04" + bytes(1000)])
def test_files_of_another_kind_are_refused(folder: Path, content: bytes) -> None:
    assert not survives(content, folder)


@pytest.mark.parametrize(
    "name", ['a"b\\', "\x01\u2028\U0001f600", "", "x" * 20_000, '"ts": 5},{]}']
)
def test_odd_names_change_no_figure(folder: Path, name: str, predicted_us: float) -> None:
    """Names are text and nothing more: whatever stands in them, links and predictions stay as they are."""
    path = folder / "named.json"
    named = [{**e, "name": e["name"].replace("aten::addmm", name)} for e in EVENTS]
    path.write_bytes(trace(named, baseTimeNanoseconds=1_700_000_000_000_000_000))
    loaded = load_trace(path)
    assert len(loaded) == len(EVENTS) and set(loaded.names) >= {name}
    assert replay(path).as_dict()["predicted_us"] == pytest.approx(predicted_us)


def test_a_trace_without_work_is_refused_by_replay_alone(folder: Path) -> None:
    assert survives(RAW, folder)
    assert not survives(trace([]), folder)
    assert survives(trace([]), folder, predict=False)
