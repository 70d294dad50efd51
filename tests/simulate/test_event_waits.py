"""Waits for events where the trace names them: what had been launched when the event was recorded, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.simulate.replay import replay
from pipeline.simulate.trace_selection import TraceSelection, learn
from pipeline.trace.load import load_trace
from tests.trace.trace_drawing import annotation, api, kernel, launch, op, wait, write


def test_a_host_waits_for_an_event_and_not_for_what_was_launched_behind_it_or_in_an_earlier_step(
    tmp_path: Path,
) -> None:
    # main [mm: L0, record, L1, wait for the event][add, no calls .......]
    # s7        [k0----][k1 ------------------------------]
    behind, before = [], []
    for step in range(4):
        at, i = 1000 * step, 10 * step
        common = [
            annotation(f"ProfilerStep#{step}", at, at + 900),
            op("aten::mm", at + 1, at + 40),
            launch(at + 2, at + 4, i + 1),
            op("aten::add", at + 41, at + 841),
        ]
        behind += [
            *common,
            kernel("k0", at + 8, at + 30, i + 1),
            api("cudaEventRecord", at + 5, at + 6, i + 2),
            launch(at + 7, at + 9, i + 3),
            kernel("k1", at + 31, at + 431, i + 3),
            api("cudaEventSynchronize", at + 10, at + 32, i + 4),
            wait(i + 4, at + 10, i + 2, 7),
        ]
        before += [
            *common,
            kernel("k0", at + 8, at + 408, i + 1),
            api("cudaEventRecord", at + 7, at + 8, i + 3),
            api("cudaEventSynchronize", at + 5, at + 6, i + 2),
            wait(i + 2, at + 5, i - 7, 7),
        ]
    for events in (behind, before):
        assert replay(write(tmp_path, events)).as_dict()["error"] == pytest.approx(0.0, abs=0.01)


def test_a_stream_waits_for_what_had_been_launched_when_the_event_was_recorded(
    tmp_path: Path,
) -> None:
    # main  L0(s7) record L1(s7) wait(s8) L2(s9) L3(s8)
    # s7    [k0 ][k1 ............]
    # s9                     [k2]              the next launch of the thread is not on the stream that waits
    # s8                        [k3]           awaits k0, not k1
    events = [
        op("aten::mm", 0, 40),
        launch(1, 2, 1),
        kernel("k0", 4, 10, 1),
        api("cudaEventRecord", 3, 4, 2),
        launch(5, 6, 3),
        kernel("k1", 11, 90, 3),
        api("cudaStreamWaitEvent", 7, 8, 4),
        wait(4, 7, 2, 7, 8),
        launch(9, 10, 5),
        kernel("k2", 12, 20, 5, stream=9),
        launch(11, 12, 6),
        kernel("k3", 14, 24, 6, stream=8),
    ]
    source = TraceSelection.of(load_trace(write(tmp_path, events)))
    _, waits = learn([source])
    iteration = source.chosen[0]
    names = source.act.trace.names[source.act.call_event[iteration.calls]]
    edges = waits.edges(source.act, source.keys, iteration)
    assert {names[waiter]: [names[c] for c in calls] for waiter, calls in edges.items()} == {
        "k3": ["k0"]
    }


def test_a_kernel_that_waits_for_another_stream_says_nothing_of_launches(tmp_path: Path) -> None:
    # main  L0(s7) record wait(s8) L1(s8)
    # s7    [k0 .................]
    # s8                          [k1]  begins 94 us behind its launch: not its latency, nor that of the next step
    events = []
    for step in range(4):
        at, i = 300 * step, 10 * step
        events += [
            annotation(f"ProfilerStep#{step}", at, at + 250),
            op("aten::mm", at + 1, at + 40),
            launch(at + 2, at + 4, i + 1),
            kernel("k0", at + 8, at + 100, i + 1),
            api("cudaEventRecord", at + 5, at + 6, i + 2),
            api("cudaStreamWaitEvent", at + 6, at + 7, i + 3),
            wait(i + 3, at + 6, i + 2, 7, 8),
            launch(at + 7, at + 9, i + 4),
            kernel("k1", at + 101, at + 111, i + 4, stream=8),
        ]
    result = replay(write(tmp_path, events)).as_dict()
    assert result["overheads"]["launch_latency"]["mean_us"] == 6
    assert result["error"] == pytest.approx(0.0, abs=0.01)


def test_a_stream_waits_for_all_events_that_it_was_told_and_once(tmp_path: Path) -> None:
    # main  L0(s7) record L1(s9) record wait(s8) wait(s8) L2(s8) L3(s8)
    # s8    [k2][k3]     k2 awaits k0 and k1, k3 nothing
    events = [op("aten::mm", 0, 40)]
    for i, stream in enumerate((7, 9)):
        events += [
            launch(1 + 4 * i, 2 + 4 * i, 1 + i),
            kernel(f"k{i}", 6 + i, 10 + i, 1 + i, stream=stream),
            api("cudaEventRecord", 3 + 4 * i, 4 + 4 * i, 3 + i),
            api("cudaStreamWaitEvent", 9 + 2 * i, 10 + 2 * i, 5 + i),
            wait(5 + i, 9 + 2 * i, 3 + i, stream, 8),
            launch(14 + 2 * i, 15 + 2 * i, 7 + i),
            kernel(f"k{2 + i}", 20 + 10 * i, 25 + 10 * i, 7 + i, stream=8),
        ]
    source = TraceSelection.of(load_trace(write(tmp_path, events)))
    _, waits = learn([source])
    iteration = source.chosen[0]
    names = source.act.trace.names[source.act.call_event[iteration.calls]]
    edges = waits.edges(source.act, source.keys, iteration)
    assert {names[k]: {names[c] for c in calls} for k, calls in edges.items()} == {
        "k2": {"k0", "k1"}
    }
    seen = waits.learn(source.act, source.keys, [iteration]).seen
    assert list(seen.values()) == [2, 2], "of a wait in ten steps, one late start says little"
