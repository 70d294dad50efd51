"""Answers about power: what a limit does to a step, and what an answer says of its energy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pipeline.answers.plan import plan
from pipeline.answers.predict import predict
from pipeline.errors import ConfigError, InputError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.power import idle_w
from pipeline.prediction import Prediction
from pipeline.show.comparison_columns import energy_cells
from pipeline.show.figures.energy import draw_energy, energy_table
from pipeline.summary_rows import predictions_of, summary_row

STEP = {"gpu": "V100", "model": "dcgan", "batch_size": 256, "predict__draws": 64}


def under(**options: object) -> Prediction:
    return predict(**{**STEP, **options})  # type: ignore[arg-type]


def test_a_limit_costs_time_and_saves_energy() -> None:
    usual, own, low = (under(), under(gpu__power_limit_w=250), under(gpu__power_limit_w=125))
    assert own.predicted_us == usual.predicted_us and low.predicted_us > 1.1 * usual.predicted_us
    facts = [step.as_dict() for step in (usual, low)]
    assert facts[1]["joules_per_step"] < facts[0]["joules_per_step"]
    assert facts[1]["mean_w"] <= 125 and facts[1]["clock_mhz"] < facts[0]["clock_mhz"]
    for step, fact in zip((usual, low), facts, strict=True):
        joules = fact["joules_per_step"]
        assert fact["mean_w"] == pytest.approx(joules / step.predicted_us * 1e6)
        assert fact["mean_w_p10"] < fact["mean_w"] < fact["mean_w_p90"]
        assert fact["samples_per_kwh"] == pytest.approx(3.6e6 * 256 / joules)
    assert low.power and (low.power.binds, low.power.limit_w) == ("power", 125)
    assert "125 W; power binds" in dict(low.rows())["power"]


def test_a_locked_clock_is_the_clock() -> None:
    locked = under(gpu__clock_mhz=690)
    assert locked.power and locked.power.clock_mhz == pytest.approx(690)
    assert locked.power.binds == "locked clock" and locked.predicted_us > under().predicted_us


def test_energy_is_that_of_all_gpus_and_watts_are_of_one_and_a_node_has_them_and_the_rest() -> None:
    alone, two = under(), under(devices=2)
    facts = [step.as_dict() for step in (alone, two)]
    assert facts[1]["joules_per_step"] == pytest.approx(2 * facts[0]["joules_per_step"], rel=0.1)
    assert facts[1]["mean_w"] == pytest.approx(facts[0]["mean_w"], rel=0.1)
    assert facts[1]["node_w"] == pytest.approx(2 * (facts[1]["mean_w"] + facts[1]["rest_w"]))


HYBRID = {"gpu": "H100", "model": "dlrm_ddp", "batch_size": 16384, "predict__draws": 64}
LAYERS = {**HYBRID, "model": "gpt", "model__layers": 2, "batch_size": 2}


@pytest.mark.parametrize(
    "options",
    [
        {**LAYERS, "devices": 2, "parallel__tp": 2},
        {**LAYERS, "devices": 4, "parallel__pp": 2, "parallel__micro_batches": 4},
        {**HYBRID, "devices": 2, "parallel": "hybrid"},
    ],
)
def test_a_step_that_is_put_together_has_energy_and_a_limit(options: dict[str, object]) -> None:
    usual, own, low = (
        predict(**options, **at)  # type: ignore[arg-type]
        for at in ({}, {"gpu__power_limit_w": 700}, {"gpu__power_limit_w": 200})
    )
    assert usual.power and own.power and low.power
    assert own.predicted_us == pytest.approx(usual.predicted_us)
    assert own.power.joules == pytest.approx(usual.power.joules)
    assert low.predicted_us > 1.05 * usual.predicted_us
    assert low.power.mean_w(low.predicted_us) < 200 < usual.power.mean_w(usual.predicted_us)


def test_micro_batches_need_the_energy_of_as_many_steps() -> None:
    nn = torch.nn
    net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    batch = (torch.ones(8192, 1024),) * 2
    step = {"model": net, "batch": batch, "loss": nn.MSELoss(), "batch_size": 8192}
    one, four = under(**step), under(**step, parallel__micro_batches=4)
    assert one.power and four.power
    assert four.power.joules == pytest.approx(4 * one.power.joules, rel=0.03)
    with pytest.raises(ConfigError, match="updates weights twice"):
        under(parallel__micro_batches=4)


def test_the_gpu_idles_while_samples_are_loaded() -> None:
    usual, waits = under(), under(loader=256 / 2e-6 / under().predicted_us)
    assert usual.power and waits.power and waits.bound == waits.power.binds == "loader"
    idle = waits.predicted_us - usual.predicted_us
    assert waits.predicted_us == pytest.approx(2 * usual.predicted_us)
    watts = 1e6 * (waits.power.joules - usual.power.joules) / idle
    assert watts == pytest.approx(idle_w(load_gpu("V100")), rel=0.1)


def test_this_machine_is_measured_as_it_is() -> None:
    with pytest.raises(ConfigError, match="gpu__power_limit_w"):
        predict(gpu="local", model="dcgan", gpu__power_limit_w=50)


def test_a_comparison_of_limits_shows_energy_and_its_knee() -> None:
    limits = {limit: under(gpu__power_limit_w=limit) for limit in (100, 150, 250)}
    table = energy_table(list(limits.values()))
    assert table["option"].tolist() == ["100 W", "150 W", "250 W"] and table["knee"].sum() == 1
    assert table["joules"].iloc[2] == pytest.approx(limits[250].power.joules / 256)  # type: ignore[union-attr]
    assert "joules" in draw_energy(table).axes[0].get_ylabel()
    assert list(energy_cells(limits[100], list(limits.values()))) == ["W", "J/step"]


def test_power_is_kept_in_a_summary() -> None:
    low = under(gpu__power_limit_w=125)
    (read,) = predictions_of(summary_row(low))
    assert read.power and low.power
    assert read.power.joules == pytest.approx(low.power.joules)
    assert replace(read.power, joules=low.power.joules) == low.power


def test_a_plan_finds_the_limit_of_least_energy_only_where_watts_were_measured() -> None:
    space = {"model": "dcgan", "batch_size": 256, "gpu__power_limit_w": "125,200,250"}
    found = plan("samples_per_kwh", "V100", **space)
    joules = {choice.question.overrides: choice.joules_per_sample for choice in found.contenders}
    assert found.best.joules_per_sample == min(joules.values()) and found.tie is None
    withheld = plan("samples_per_kwh", "A100", **space)
    assert withheld.tie and len(withheld.tie.predictions) == 3
    assert "limit of least energy is withheld" in withheld.summary
    assert not energy_table([choice.prediction for choice in withheld.contenders])["knee"].any()


def test_watts_of_all_gpus_constrain_a_plan() -> None:
    space = {**STEP, "devices": 2, "gpu__power_limit_w": "125,200,250"}
    found = plan("samples_per_s", max_watts=400, **space)
    assert found.lost == {"over the watts": 1, "slower": 1}
    values = found.best.as_dict(None)
    assert 300 < 2 * values["mean_w"] <= 400
    assert values["samples_per_kwh"] == pytest.approx(3.6e6 / found.best.joules_per_sample)
    with pytest.raises(InputError, match=r"no point meets --max-watts; the nearest is V100 .* W, "):
        plan("samples_per_s", max_watts=100, **space)


def test_electricity_counts_beside_the_rent_only_where_it_has_a_price() -> None:
    usual, paid = under(price__V100=1.0), under(price__V100=1.0, electricity=0.5, devices=1)
    facts, more = usual.as_dict(), paid.as_dict()
    kw = (more["mean_w"] + 0.5 * 250) / 1e3
    assert facts["electricity_per_million"] is None and more["node_w"] == pytest.approx(1e3 * kw)
    million_hours = 1e6 / paid.samples_per_s / 3600
    assert more["electricity_per_million"] == pytest.approx(million_hours * kw * 0.5)
    cost = facts["cost_per_million"] + more["electricity_per_million"]
    assert more["cost_per_million"] == pytest.approx(cost)
    assert paid.samples_per_price == pytest.approx(1e6 / cost)
    assert facts["predicted_us"] == more["predicted_us"]
    assert "electricity" in dict(paid.rows()) and "electricity" not in dict(usual.rows())


def test_electricity_moves_the_cheapest_limit_of_a_plan() -> None:
    space = {"model": "dcgan", "batch_size": 256, "gpu__power_limit_w": "125,250", "price__V100": 1}
    for price, best in ((0.001, 250), (50.0, 125)):
        found = plan("samples_per_dollar", "V100", electricity=price, **space)
        assert found.best.question.gpu.power_limit_w == best
