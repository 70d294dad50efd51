"""The tracker on saved traces and on this machine."""

from __future__ import annotations

import pytest

from pipeline import load_trace
from pipeline.answers.tracker import TrackedTrace, track
from pipeline.errors import InputError
from pipeline.paths import datasets_dir


@pytest.fixture(scope="module")
def tracked() -> TrackedTrace:
    folder = datasets_dir()
    if folder is None:
        pytest.skip("no public data")
    return TrackedTrace(load_trace(folder / "traces" / "v100_ddp" / "kineto.json.gz"), batch_size=32)


def test_the_traced_gpu_gives_back_its_measurement(tracked: TrackedTrace) -> None:
    here = tracked.to(tracked.origin.name)
    assert here.predicted_us == pytest.approx(here.measured_us)
    assert here.evidence == {"measured": pytest.approx(1.0)} and here.p10_us == pytest.approx(here.p90_us)


def test_a_slower_gpu_takes_longer_and_has_an_interval(tracked: TrackedTrace) -> None:
    here, there = tracked.to(tracked.origin.name), tracked.to("T4")
    assert there.predicted_us > here.predicted_us
    assert there.p10_us < there.predicted_us < there.p90_us
    assert sum(there.evidence.values()) == pytest.approx(1.0) and set(there.evidence) == {"transferred"}
    assert there.samples_per_s < here.samples_per_s


def test_all_gpus_come_fastest_first(tracked: TrackedTrace) -> None:
    table = tracked.to_all(["T4", "H100", "P4"])
    assert list(table["gpu"]) == ["H100", "T4", "P4"]
    assert table["cost_per_million"].isna().all()


def test_one_gpu_may_be_named_without_a_list(tracked: TrackedTrace) -> None:
    assert list(tracked.to_all("T4")["gpu"]) == ["T4"]


def test_every_call_says_how_it_was_moved(tracked: TrackedTrace) -> None:
    calls = tracked.calls("T4")
    assert set(calls["method"]) <= {
        "wave",
        "utilisation",
        "utilisation+wave",
        "link_ratio",
        "bandwidth_ratio",
        "unchanged",
    }
    assert ((calls["p10_us"] <= calls["predicted_us"]) & (calls["predicted_us"] <= calls["p90_us"])).all()
    # the V100 has 2.8 times the bandwidth of a T4 and, with the clocks that each sustains, up to 3.5 times its throughput
    assert 2.5 < calls["predicted_us"].sum() / calls["latency_us"].sum() < 3.5


def test_a_step_without_a_gpu_cannot_be_moved() -> None:
    torch = pytest.importorskip("torch")
    with track(device="cpu") as tracked:
        torch.ones(8, 8).matmul(torch.ones(8, 8))
    with pytest.raises(InputError, match=r"^the tracked step: nothing ran on a GPU"):
        tracked.to("T4")


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "8", None])
def test_a_batch_is_a_number_of_samples(batch_size: object) -> None:
    with pytest.raises(InputError, match="batch_size"), track(device="cpu", batch_size=batch_size):  # type: ignore[arg-type]
        pass


def test_a_loaded_trace_answers_for_all_gpus(tracked: TrackedTrace) -> None:
    table = tracked.trace.to_all(["T4", "H100"])
    assert list(table["gpu"]) == ["H100", "T4"]
    assert tracked.trace.to("T4").predicted_us == table["predicted_us"][1]


def test_a_step_whose_host_is_the_longer_is_bound_by_it() -> None:
    folder = datasets_dir()
    if folder is None:
        pytest.skip("no public data")
    moved = load_trace(folder / "traces" / "rtx2080ti_linear" / "kineto.json.gz").to("H100")
    assert moved.active_us < 0.2 * moved.predicted_us and moved.bound == "host"


def test_public_traces_of_an_a100_can_be_moved() -> None:
    folder = datasets_dir()
    if folder is None:
        pytest.skip("no public data")
    trace = load_trace(folder / "traces" / "a100_alexnet" / "kineto.json.gz")
    assert TrackedTrace(trace).origin.name == "A100-SXM4-40GB"


def test_asking_inside_the_block_is_refused() -> None:
    pytest.importorskip("torch")
    with track(device="cpu") as tracked, pytest.raises(InputError, match="nothing tracked yet"):
        tracked.to("T4")
