"""The tracker on saved traces and on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline import load_trace
from pipeline.answers.traced_step import TrackedTrace, workload_name
from pipeline.answers.tracker import track
from pipeline.errors import ConfigError, InputError
from pipeline.paths import datasets_dir
from tests.commands import Steptime
from tests.trace.trace_drawing import PROPERTIES, annotation, kernel, launch, op, write


def public(name: str) -> Path:
    """A public trace; a test without them is skipped."""
    return (datasets_dir() or pytest.skip("no public data")) / "traces" / name / "kineto.json.gz"


@pytest.fixture(scope="module")
def tracked() -> TrackedTrace:
    return TrackedTrace.of(load_trace(public("v100_ddp")), batch_size=32)


def test_the_traced_gpu_gives_back_its_measurement(tracked: TrackedTrace) -> None:
    here = tracked.to(tracked.origin.name)
    assert here.predicted_us == pytest.approx(here.measured_us)
    assert here.evidence == {"measured": pytest.approx(1.0)} and here.p10_us == pytest.approx(
        here.p90_us
    )


def test_a_slower_gpu_takes_longer_and_has_an_interval(tracked: TrackedTrace) -> None:
    here, there = tracked.to(tracked.origin.name), tracked.to("T4")
    assert here.predicted_us < there.p10_us < there.predicted_us < there.p90_us
    assert there.evidence == {"transferred": pytest.approx(1.0)}
    assert there.samples_per_s < here.samples_per_s


def test_all_gpus_come_fastest_first_with_the_costs_of_a_price_list(
    tracked: TrackedTrace, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text(
        "currency: EUR\nprices: [{gpu: T4, per_hour: 3.6, date: 2026-01-15, source: mine}]\n"
    )
    table = tracked.to_all(["T4", "H100", "P4"], prices)
    assert list(table["gpu"]) == ["H100", "T4", "P4"]
    assert list(table["cost_per_million"].notna()) == [False, True, False]
    assert list(tracked.to_all("T4")["gpu"]) == ["T4"]
    assert table["cost_per_million"][1] == pytest.approx(1000.0 / table["samples_per_s"][1])


def test_every_call_says_how_it_was_moved(tracked: TrackedTrace) -> None:
    calls = tracked.calls("T4")
    ways = {"roofline", "link_ratio", "bandwidth_ratio", "unchanged"}
    assert set(calls["method"]) <= ways, "it holds no shapes"
    assert (np.diff(calls[["p10_us", "predicted_us", "p90_us"]].to_numpy()) >= 0).all()
    # the V100 has 2.8 times the bandwidth of a T4 and, with the clocks that each sustains, up to 3.5 times its throughput
    assert 2.5 < calls["predicted_us"].sum() / calls["latency_us"].sum() < 3.5


def test_a_step_without_a_gpu_cannot_be_moved() -> None:
    torch = pytest.importorskip("torch")
    with track(device="cpu") as tracked:
        torch.ones(8, 8).matmul(torch.ones(8, 8))
    with pytest.raises(InputError, match=r"^the tracked step: nothing ran on a GPU"):
        tracked.to("T4")


@pytest.mark.parametrize("batch_size", [0, 2.5, "8"])
def test_a_batch_is_a_number_of_samples(batch_size: object) -> None:
    with pytest.raises(InputError, match="batch_size"), track(device="cpu", batch_size=batch_size):  # type: ignore[arg-type]
        pass


def test_a_step_whose_host_is_the_longer_is_bound_by_it() -> None:
    moved = load_trace(public("rtx2080ti_linear")).to("H100")
    assert moved.active_us < 0.2 * moved.predicted_us and moved.bound == "host"


def test_fp32_convolutions_are_slower_with_less_arithmetic_whatever_the_bandwidth() -> None:
    """An H20 has two thirds of the arithmetic and 1.2 times the bandwidth."""
    trace = load_trace(public("v100dgx_resnet50"))
    fast, slow = trace.to("H100"), trace.to("H20")
    assert slow.active_us > 1.1 * fast.active_us
    for family in ("conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"):
        assert slow.families_us[family] > 1.2 * fast.families_us[family]
    assert any("convolutions stay in fp32" in note and "TF32 on H20" in note for note in slow.notes)
    assert not trace.measured.notes and not trace.to("T4").notes, "no TF32 there"


def three_steps(folder: Path) -> Path:
    """Iterations of an addition, a copy from the host, and a kernel of an unknown op on a V100."""
    # operator, its start; kernel, its start and duration
    work = (
        ("aten::add_", 1, "vectorized_add", 12, 30),
        ("aten::convolution_backward", 20, "cudnn_wgrad", 45, 50),
        ("mine::odd", 50, "odd", 96, 10),
    )
    events = []
    for i, at in enumerate((0, 200, 400)):
        events.append(annotation(f"ProfilerStep#{i}", at, at + 190))
        for number, (name, start, kernel_name, begin, took) in enumerate(work, 3 * i + 1):
            events += [
                op(name, at + start, at + start + 9),
                launch(at + start + 2, at + start + 4, number),
                kernel(kernel_name, at + begin, at + begin + took, number),
            ]
    folder.mkdir(parents=True)
    device = {**PROPERTIES[0], "name": "Tesla V100-SXM2-32GB"}
    return write(folder, events, deviceProperties=[device])


def test_a_moved_trace_keeps_its_name_and_its_families(tmp_path: Path) -> None:
    path = three_steps(tmp_path / "my_net")
    moved = load_trace(path, batch_size=8).to("A100")
    assert moved.model == "my_net" and moved.batch_size == 8
    assert list(moved.families_us) == ["conv2d_backward_weight", "elementwise", "other"]
    assert load_trace(path, model="resnet").to("T4").model == "resnet"
    assert moved.traced and moved.traced.gpu.startswith("V100")
    assert "host as traced, dtype as traced" in str(moved)
    with pytest.raises(InputError, match="batch_size=0"):
        load_trace(path, batch_size=0)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("v100x8_dlrm/rank0_kineto.json.gz", "v100x8_dlrm_rank0"),
        ("runs/gpt2.json", "gpt2"),
        ("runs/gpt2.pt.trace.json.gz", "runs_gpt2"),
        ("the tracked step", "the tracked step"),
    ],
)
def test_the_name_of_a_workload_comes_from_the_path(path: str, name: str) -> None:
    assert workload_name(Path(path)) == name


def test_a_trace_and_its_prediction_print_as_one_line(tmp_path: Path) -> None:
    path = three_steps(tmp_path / "my_net")
    trace = load_trace(path)
    moved = trace.to("T4")
    line = f"{path}: 3 iterations by ProfilerStep on {trace.device}, {len(trace)} events"
    assert str(trace) == line and trace._repr_html_().startswith("<table>")
    said, rows = str(moved), dict(moved.rows())
    assert said.startswith("my_net on T4 (traced): ") and "\n" not in said
    assert rows["throughput"].endswith("steps/s") and "memory" not in rows
    assert "traced on" in moved._repr_html_()


def test_asking_inside_the_block_is_refused() -> None:
    pytest.importorskip("torch")
    with track(device="cpu") as tracked, pytest.raises(InputError, match="nothing was tracked yet"):
        tracked.to("T4")


def test_a_trace_is_carried_to_another_limit_and_to_a_locked_clock(tmp_path: Path) -> None:
    trace, gpu = load_trace(three_steps(tmp_path / "my_net")), "V100-SXM2-32GB"
    here, own = trace.measured, trace.to(gpu, power_limit_w=300)
    low, locked = trace.to(gpu, power_limit_w=120), trace.to(gpu, clock_mhz=765)
    assert here.power and own.power and low.power and locked.power
    assert own.predicted_us == pytest.approx(here.predicted_us)
    assert own.power.joules == pytest.approx(here.power.joules)
    assert here.predicted_us < low.predicted_us and low.p10_us < low.predicted_us < low.p90_us
    assert low.power.mean_w(low.predicted_us) <= 120
    assert "120 W; power binds" in dict(low.rows())["power"] and "power" not in dict(here.rows())
    assert locked.power.clock_mhz == pytest.approx(765) and locked.power.binds == "locked clock"
    assert low.evidence == {"transferred": 1.0} and here.evidence == {"measured": 1.0}
    with pytest.raises(ConfigError, match=r"^gpu.power_limit_w=900: V100-SXM2-32GB takes 120 to"):
        trace.to(gpu, power_limit_w=900)


def test_the_shell_carries_a_trace_too(tmp_path: Path, steptime: Steptime) -> None:
    path = three_steps(tmp_path / "my_net")
    _, out, _ = steptime("replay", path, "gpu=A100", "gpu.power_limit_w=150", "--json")
    facts = json.loads(out)
    there = load_trace(path).to("A100", power_limit_w=150)
    assert facts["predicted_us"] == pytest.approx(there.predicted_us)
    assert facts["mean_w"] <= 150 and facts["power_evidence"] == "assumed"
    code, _, refused = steptime("replay", path, "gpu.sms=9")
    assert code and "gpu.sms: a trace is carried by gpu" in refused
