"""Extraction, statistics, look-up and sharing of host overheads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from pipeline.errors import UnknownNameError
from pipeline.overheads.extraction import extract_overheads
from pipeline.overheads.overhead_model import (
    GLOBAL,
    MAX_SIGNATURE,
    OP,
    SIGNATURE,
    OverheadModel,
    normalised,
)
from pipeline.overheads.statistics import (
    ProfilerCost,
    calibrate,
    corrected,
    group_statistics,
    merged,
    summarise,
)
from pipeline.overheads.trace_overheads import extract_public
from pipeline.schemas import to_arrow
from pipeline.trace.load import load_trace
from tests.trace.trace_drawing import AUTOGRAD, annotation, api, kernel, launch, memcpy, op, write

#            0         10        20        30        40
#   main     [aten::mm        ]    [aten::view]
#               L0     L1
#   s7             [k---]   [k]
#   autograd                                     [evaluate_function: MmBackward0]
EVENTS = [
    op("aten::mm", 0, 18), launch(3, 5, 1), launch(9, 12, 2), kernel("k", 6, 11, 1),
    kernel("k", 20, 22, 2), op("aten::view", 23, 30),
    op("autograd::engine::evaluate_function: MmBackward0", 40, 50, AUTOGRAD),
    launch(42, 44, 3, AUTOGRAD), kernel("k", 46, 48, 3),
]  # fmt: skip


def extracted(folder: Path, events: list[dict[str, Any]] = EVENTS) -> pd.DataFrame:
    return extract_overheads(load_trace(write(folder, events)), "w")


def observed(samples: pd.DataFrame, kind: str, name: str) -> list[float]:
    return samples.loc[(samples["type"] == kind) & (samples["op"] == name), "value_us"].tolist()


def test_the_five_types_are_what_the_drawing_shows(tmp_path: Path) -> None:
    samples = extracted(tmp_path)
    backward = "autograd::engine::evaluate_function: MmBackward0"
    for name, drawn in (
        ("aten::mm", {"T2": [3], "T5": [4], "T3": [6], "T4": [2, 3]}),
        ("aten::view", {"T5": [7], "T1": [5]}),
        (backward, {"T1": [10], "T3": [6]}),
    ):
        assert {kind: observed(samples, kind, name) for kind in drawn} == drawn
    assert samples.loc[samples["op"] == backward, "signature"].str.startswith("thread 0>1").any()
    to_arrow(samples, "overhead_samples")


def test_waiting_is_no_overhead(tmp_path: Path) -> None:
    #   main  [aten::item: memcpy.......][sync......]
    events = [
        op("aten::item", 0, 500),
        api("cudaMemcpyAsync", 2, 300, 1),
        api("cudaStreamSynchronize", 301, 490, 2),
        memcpy("Memcpy DtoH (Device -> Pageable)", 290, 299, 1, 4),
    ]
    samples = extracted(tmp_path, events)
    assert samples.loc[samples["type"] == "T4", "value_us"].tolist() == [10, 10]
    assert samples.loc[samples["type"].isin(["T2", "T3", "T5"]), "value_us"].tolist() == [2, 10, 1]


def test_data_loading_is_no_t1(tmp_path: Path) -> None:
    events = [
        annotation("ProfilerStep#1", 0, 100),
        op("aten::a", 1, 2),
        annotation("enumerate(DataLoader)#_Iter.__next__", 10, 60),
        op("aten::b", 70, 80),
    ]
    samples = extracted(tmp_path, events)
    assert not (samples["type"] == "T1").any()
    assert observed(samples, "loading", "aten::b") == [68]


def test_launches_into_a_full_queue_say_nothing_about_t4(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 5000)]
    for i in range(950):
        events += [launch(2 * i, 2 * i + 1, i), kernel("k", 10_000 + 10 * i, 10_005 + 10 * i, i)]
    assert (extracted(tmp_path, events)["type"] == "T4").sum() == 900


def test_a_trace_without_gpu_has_compute_ops_as_calls(tmp_path: Path) -> None:
    #   [aten::linear [aten::t] [aten::addmm .....]   ]
    inner = [op("aten::t", 2, 4), op("aten::addmm", 6, 90), op("aten::expand", 7, 8)]
    samples = extracted(tmp_path, [op("aten::linear", 0, 100), *inner])
    assert observed(samples, "T2", "aten::linear") == [6]
    assert observed(samples, "T3", "aten::linear") == [10]
    assert not samples["type"].isin(["T4", "launch_latency"]).any()


def test_only_the_chosen_iterations_are_used(tmp_path: Path) -> None:
    steps = [annotation("ProfilerStep#1", 0, 50), annotation("ProfilerStep#2", 50, 90)]
    loaded = load_trace(write(tmp_path, [*steps, op("aten::view", 1, 2), op("aten::view", 60, 70)]))
    samples = extract_overheads(loaded, "w", np.array([False, True]))
    assert observed(samples, "T5", "aten::view") == [10]


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [("mean", 21.0), ("median", 2.0), ("trimmed_mean", 1.5), ("clipped_mean", 20.24)],
)
def test_estimators_on_values_with_one_outlier(estimator: str, expected: float) -> None:
    values = np.array([1.0, 1.0, 2.0, 2.0, 99.0])
    stats = group_statistics(values, np.zeros(5, np.int64), estimator)
    assert stats["mean_us"][0] == pytest.approx(expected, abs=0.02)
    assert stats["median_us"][0] == 2 and stats["count"][0] == 5


def test_an_unknown_estimator_lists_the_choices(tmp_path: Path) -> None:
    samples = extracted(tmp_path)
    with pytest.raises(UnknownNameError, match="trimmed_mean"):
        summarise(samples, estimator="mode")


def test_lookup_falls_back_from_signature_to_op_to_all_ops(tmp_path: Path) -> None:
    table = summarise(extracted(tmp_path))
    to_arrow(table, "overheads")
    known = table.loc[(table["type"] == "T2") & (table["op"] == "aten::mm"), "signature"].iloc[0]
    found = OverheadModel(table).find(
        "T2",
        ["aten::mm", "aten::mm_", "aten::never"],
        [[known, "other", "other"], ["calls=2", "calls=2", "calls=9"]],
    )
    assert found.level.tolist() == [SIGNATURE, OP, GLOBAL]
    assert found.value_us[:2].tolist() == [3, 3]


def test_an_item_of_many_launches_has_a_short_signature_that_still_finds_its_own_times(
    tmp_path: Path,
) -> None:
    """An optimizer over thousands of tensors: keys as long as all its launches would take gigabytes."""
    #   main  [_foreach_add: L L L ... ]   twice, with 400 and with 401 launches of 2 us each
    name, events, begin = "aten::_foreach_add_", [], 0
    for count, pause in ((400, 5), (401, 7)):
        end = begin + count * pause
        events.append(op(name, begin, end))
        for at in range(begin, end, pause):
            events += [launch(at + 1, at + 3, at), kernel("k", at + 2, at + 4, at)]
        begin = end
    samples = extracted(tmp_path, events)
    inner = samples[samples["signature"].str.endswith("@200")]
    assert inner["signature"].str.len().max() < MAX_SIGNATURE
    assert sorted(inner["value_us"]) == [3, 5] and inner["signature"].nunique() == 2
    found = OverheadModel(summarise(samples)).find("T5", [name] * 2, [list(inner["signature"])])
    assert found.value_us.tolist() == inner["value_us"].tolist()


def test_scaling_scales_host_times_but_no_device_constant(tmp_path: Path) -> None:
    table = summarise(extracted(tmp_path))
    model = OverheadModel(table).scaled(2.0)
    assert model.find("T2", ["aten::mm"], [["calls=2"]]).value_us[0] == 6
    assert model.constant("launch_latency") == OverheadModel(table).constant("launch_latency")


def test_the_profilers_cost_is_taken_off_but_never_below_zero(tmp_path: Path) -> None:
    samples, cost = extracted(tmp_path), ProfilerCost(event_us=2.0, launch_us=1.0)
    plain, less = (
        summarise(samples, **more).set_index(["type", "op", "api", "signature"])["mean_us"]
        for more in ({}, {"cost": cost})
    )
    gone = plain - less
    assert (gone >= -1e-9).all() and (less >= 0).all()
    assert set(gone["T4"].round(9)) == {1.0} and gone["T1"].max() == pytest.approx(2.0)


def _seen(kind: str, values_us: list[float], signature: str = "") -> pd.DataFrame:
    facts = {"type": kind, "op": "aten::view", "workload": "w", "api": None, "iteration": 0}
    return pd.DataFrame({"value_us": values_us, "signature": signature}).assign(**facts)


@pytest.mark.parametrize("estimator", ["mean", "clipped_mean", "trimmed_mean", "median"])
def test_noise_around_the_profilers_cost_is_not_cut_on_one_side(estimator: str) -> None:
    """Gaps of 1 us, seen as 3 us with noise of 2 us: one of six is below the cost."""
    noisy = 3.0 + 2.0 * norm.ppf((np.arange(400) + 0.5) / 400)
    cost = ProfilerCost(event_us=2.0, launch_us=0.0)
    table = summarise(_seen("T1", noisy.tolist()), estimator, cost=cost)
    assert table["mean_us"].to_numpy() == pytest.approx(1.0, abs=0.05)
    assert (summarise(_seen("T1", [0.5, 1.0]), estimator, cost=cost)["mean_us"] == 0.0).all()


SEGMENTS = [
    ("T2", 0, 3, 3), ("T2", 2, 3, 1), ("T3", 2, 3, 1), ("T5", 2, 3, 1), ("T5", 0, 3, 3),
    ("T1", 2, 3, 1), ("loading", 2, 3, 1), ("T4", 2, 3, 0),
]  # fmt: skip
"""Type, launches and nested operators of an item -> events whose cost its observation loses."""


@pytest.mark.parametrize(("kind", "launches", "nested", "events"), SEGMENTS)
def test_nested_operators_cost_the_segments_of_their_item_in_equal_parts(
    kind: str, launches: int, nested: int, events: int
) -> None:
    """An item with n launches has n + 1 segments: before the first, between two, and after the last."""
    signature = f"{','.join(['cudaLaunchKernel'] * launches)}|[[4, 4]]|{nested}"
    cost = ProfilerCost(event_us=2.0, launch_us=5.0)
    less = corrected(_seen(kind, [9.0], signature), cost)["value_us"].item()
    assert less == 9.0 - 2.0 * events - (5.0 if kind == "T4" else 0.0)


SPLIT = "torch::autograd::CppNode<SplitLookupFunction_{}_Op>"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("aten::add_", "aten::add"),
        ("aten::_reshape_alias", "aten::view"),
        ("aten::_index_put_impl_", "aten::index_put"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0"),
        ("ReshapeAliasBackward0", "ViewBackward0"),
        ("Optimizer.step#SGD.step", "Optimizer.step#Adam.step"),
        ("aten::mul.Tensor", "aten::mul"),
        (SPLIT.format("sgd"), SPLIT.format("rowwise_adagrad")),
        (
            "fbgemm::split_embedding_codegen_lookup_sgd_function",
            "fbgemm::split_embedding_codegen_lookup_adam_function",
        ),
    ],
)
def test_names_of_one_op_are_one(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)
    assert normalised(SPLIT.format("Dense")) != normalised(one), "another op without an optimizer"


def test_a_host_twice_as_slow_gets_a_factor_of_two(datasets: Path) -> None:
    samples = extract_public(datasets, "V100")
    samples = samples[samples["workload"] == "v100_ddp"]
    slower = samples.assign(value_us=samples["value_us"] * 2.0)
    calibrated = calibrate(OverheadModel(merged(samples)), slower)
    assert calibrated.scale == pytest.approx(2.0, rel=1e-6)
    assert calibrated.coverage == pytest.approx(1.0)


def test_public_traces_of_an_unknown_gpu_are_refused(datasets: Path) -> None:
    with pytest.raises(UnknownNameError, match="V100"):
        extract_public(datasets, "Voodoo2")
