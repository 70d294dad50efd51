"""The probe of this machine's CPU as a host: what it compares, and the file that it writes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from pipeline import cli, predict
from pipeline.answers.who_answers import observations_in, shipped_overheads
from pipeline.collect import host_probe
from pipeline.collect.host_probe import (
    DONOR,
    PROBE_LOG_SD,
    known_host,
    probe_factor,
    probe_samples,
)
from pipeline.errors import MeasurementError, SteptimeWarning
from pipeline.hardware.hosts import load_host
from pipeline.overheads.overhead_model import OverheadModel
from pipeline.overheads.statistics import ProfilerCost, merged


@pytest.fixture(scope="module")
def observations() -> pd.DataFrame:
    return observations_in(shipped_overheads(DONOR))


def test_a_host_that_is_slower_by_a_factor_has_this_factor(observations: pd.DataFrame) -> None:
    here, times = OverheadModel(merged(observations)), observations["value_us"]
    for factor in (0.5, 3.0):
        other = observations.assign(value_us=times * factor)
        assert probe_factor(other, here) == pytest.approx(factor, rel=0.06)
    probed = probe_samples(observations)
    assert set(probed["type"]) == {"T1", "T5"} and not (probed["op"] == "aten::mm").any()
    slow_driver = times.mask(~observations.index.isin(probed.index), times * 9)
    assert probe_factor(observations.assign(value_us=slow_driver), here) == pytest.approx(
        1.0, rel=0.06
    )
    with pytest.raises(MeasurementError, match="operators in common"):
        probe_factor(observations.assign(op="mine::op"), here)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One round of one step, which nothing disturbs."""
    monkeypatch.setattr(host_probe, "ROUNDS", 1)
    monkeypatch.setattr(host_probe, "WORKLOADS", {"dlrm_ddp": 16})
    monkeypatch.setattr(host_probe, "thread_time", host_probe.perf_counter)


@pytest.mark.usefixtures("quick")
def test_what_the_profiler_costs_here_is_not_taken_for_a_slow_host(
    observations: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The donor's own traces are a host like the donor's, if the profiler costs here what it cost there: 1 us."""
    monkeypatch.setattr(host_probe, "extract_traces", lambda traces: observations)
    monkeypatch.setattr(host_probe, "warm_up", lambda *_: 0.0)  # no time of this machine counts
    for here_us, factor in ((1.0, 1.0), (0.0, 1.2)):
        cost = ProfilerCost(here_us, here_us)
        monkeypatch.setattr(host_probe, "profiler_cost", lambda device, cost=cost: cost)
        host = host_probe.probe_host("x", observations)
        assert host.scale == pytest.approx(factor, rel=0.06) and host.log_sd == PROBE_LOG_SD
    monkeypatch.setattr(host_probe, "thread_time", lambda: host_probe.perf_counter() / 2)
    with pytest.warns(SteptimeWarning, match="left the probe 50% of a core"):
        busy = host_probe.probe_host("x", observations)
    assert 0.7 < busy.log_sd < 0.75 and "other programs" in busy.what, (
        "it may be twice as fast: 0.69, beside 0.22"
    )


@pytest.mark.usefixtures("quick")
def test_the_command_writes_a_host_that_predicts(tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    result = CliRunner().invoke(cli.app, ["host", "--out", str(file)])
    assert result.exit_code == 0 and f"host={file}" in result.output, result.output
    host = load_host(str(file))
    assert (host.name, host.observations, host.log_sd) == ("lab", DONOR, PROBE_LOG_SD)
    assert 0.05 < host.scale < 50
    assert "torch" in file.read_text()
    assert predict("H100", "dlrm_small", host=str(file)).host == "lab"
    again = CliRunner().invoke(cli.app, ["host", "--out", str(file)])
    assert again.exit_code != 0 and "exists already" in str(again.exception)
    wrong = CliRunner().invoke(cli.app, ["host", "--out", str(tmp_path / "a b.yaml")])
    assert wrong.exit_code != 0 and "letters, digits" in str(wrong.exception)


def test_the_known_host_launches_without_the_profiler() -> None:
    """10 us recorded between operators and of a launch are 9: the profiler took 1 us of each."""
    row = {"op": "aten::mm", "api": "cudaLaunchKernel", "signature": "", "value_us": 10.0}
    kinds = ("T1", "T4")
    seen = pd.DataFrame([{"type": kind, **row, "workload": "x"} for kind in kinds])
    found = [
        known_host(seen).find(kind, ["aten::mm"], [[""]], ["cudaLaunchKernel"]) for kind in kinds
    ]
    assert [float(each.value_us[0]) for each in found] == [9.0, 9.0]
