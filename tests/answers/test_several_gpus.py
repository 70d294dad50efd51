"""Predictions of data-parallel steps: what several GPUs gain, lose and cost."""

from __future__ import annotations

import json

import pytest
import torch

from pipeline.answers.plan import plan
from pipeline.answers.predict import predict
from pipeline.prediction import Prediction
from pipeline.show.comparison import compare
from pipeline.show.figures.scaling import scaling_table
from pipeline.summary_rows import predictions_of, summary_row

GPU = "A100-SXM4-80GB"
MODEL = {"model": "dcgan", "batch_size": 64, "predict__draws": 64}


def several(devices: int, **options: object) -> Prediction:
    return predict(gpu=GPU, devices=devices, **{**MODEL, **options})  # type: ignore[arg-type]


def test_throughput_is_that_of_all_gpus_and_efficiency_its_share_of_as_many_single_ones() -> None:
    alone, eight = predict(gpu=GPU, **MODEL), several(8)  # type: ignore[arg-type]
    assert eight.global_batch == 512 and alone.several is None
    assert eight.samples_per_s == pytest.approx(512 / eight.predicted_us * 1e6)
    assert eight.several is not None
    assert eight.several.efficiency == pytest.approx(
        eight.samples_per_s / (8 * alone.samples_per_s)
    )
    assert 0.5 < eight.several.efficiency < 1
    of = eight.several
    assert of.efficiency_p10 < of.efficiency < of.efficiency_p90  # type: ignore[operator]


def test_an_exchange_that_is_not_known_makes_the_efficiency_uncertain() -> None:
    """Two cards with the same exchange, over switches that were measured and over a host that was not."""
    widths = {}
    for cluster in ("dgx-a100", "pcie4"):
        options = {"batch_size": 256, "parallel__overlap": False}
        found = several(2, cluster=cluster, **options).several
        assert found is not None and found.efficiency_p10 and found.efficiency_p90
        widths[cluster] = found.efficiency_p90 - found.efficiency_p10
    assert widths["pcie4"] > 1.3 * widths["dgx-a100"] > 0.05


@pytest.mark.parametrize(("devices", "loader"), [(1, 500), (2, 1000)])
def test_a_step_takes_at_least_the_time_of_loading_its_samples(devices: int, loader: int) -> None:
    """The rate is that of the whole machine, and holds for all samples of a step."""
    steps = [several(devices, loader=f"{rate}/s") for rate in (0, loader, 10**9)]
    assert steps[1].predicted_us == pytest.approx(1e6 * 64 * 1 / 500) == steps[1].p10_us
    assert steps[1].bound == "loader" and "data loading at" in steps[1].notes[-1]
    assert steps[2].predicted_us == steps[0].predicted_us < steps[1].predicted_us
    assert ("data loading is not in the step" in str(steps[0].notes)) == (devices > 1)


def test_kernels_of_a_step_run_on_the_slowest_card() -> None:
    alone, eight = predict(gpu=GPU, **MODEL), several(8)  # type: ignore[arg-type]
    products = [step.families_us["conv2d_forward"] for step in (alone, eight)]
    assert products[1] / products[0] == pytest.approx(1 + 0.015 * 1.4342, rel=1e-4)


def test_what_is_exposed_is_a_part_of_the_communication_and_of_the_active_time() -> None:
    step = several(4, cluster="pcie4", batch_size=512)
    assert step.several is not None
    assert (
        0 < step.several.exposed_communication_us <= step.several.communication_us <= step.active_us
    )
    faster = several(4, batch_size=512)
    assert faster.several is not None
    assert faster.several.communication_us < step.several.communication_us
    assert faster.predicted_us < step.predicted_us


def test_a_slow_link_limits_a_step_and_half_the_bytes_shorten_it() -> None:
    nn = torch.nn
    net = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(4)))
    asked = {"model": net, "batch": (torch.ones(4, 2048),) * 2, "loss": nn.MSELoss()}
    asked |= {"gpu": "RTX4090", "devices": 8, "host": "typical-2020"}
    slow = predict(**asked, overheads__host_scale=0.1)  # type: ignore[arg-type]
    assert slow.bound == "communication" and "communication-bound" in str(slow)
    half = predict(**asked, parallel__compression="bf16")  # type: ignore[arg-type]
    assert half.several and slow.several
    assert half.several.communication_us == pytest.approx(
        slow.several.communication_us / 2, rel=0.1
    )


def test_json_and_summary_keep_what_is_particular_of_several_gpus() -> None:
    step = several(2)
    values = json.loads(json.dumps(step.as_dict()))
    assert values["devices"] == 2 and values["nodes"] == 1 and values["cluster"] == "dgx-a100"
    assert values["global_batch"] == 128 and 0 < values["efficiency"] < 1
    (again,) = predictions_of(summary_row(step))
    assert again.several == step.several


def test_a_comparison_counts_the_price_of_all_gpus_and_draws_the_scaling() -> None:
    table = compare(gpu=GPU, model="dcgan", batch_size=512, devices="1,2,4")  # type: ignore[arg-type]
    per_price = [p.samples_per_price or 0.0 for p in table.predictions]
    assert (
        per_price[2] < per_price[0]
    )  # the exchange costs something, and four GPUs cost four times as much
    line = scaling_table(table.predictions).set_index("devices")
    efficiency = line["samples_per_s"] / line["ideal"]
    assert list(line.index) == [1, 2, 4] and efficiency[1] == 1.0
    assert efficiency[4] < efficiency[2] < 1 and "communication" in line["lost"][4]


def test_a_plan_counts_samples_and_prices_of_all_gpus() -> None:
    space = {"gpu": GPU, **MODEL, "devices": "1,4"}
    fastest, cheapest = (plan(name, **space) for name in ("samples_per_s", "samples_per_dollar"))  # type: ignore[arg-type]
    assert fastest.best.question.devices == 4 and cheapest.best.question.devices == 1
    best = fastest.best
    assert best.us_per_sample == pytest.approx(best.prediction.predicted_us / (4 * 64))
    assert cheapest.best.cost_per_sample and best.cost_per_sample
    assert cheapest.best.cost_per_sample < best.cost_per_sample < 2 * cheapest.best.cost_per_sample


@pytest.mark.parametrize("count", [1, 2, 8])
def test_a_step_that_ends_with_its_host_is_bound_by_it_with_any_number_of_passes(
    count: int,
) -> None:
    p = predict("V100", "dlrm_default", batch_size=512, parallel__micro_batches=count)
    assert p.predicted_us == pytest.approx(p.host_us) and p.active_us < 0.8 * p.predicted_us
    assert p.bound == "host"


def test_replicas_do_nothing_more_than_a_single_gpu_in_a_pass_that_exchanges_nothing() -> None:
    """With `no_sync`, the reducer copies no gradient and sends no buffer but in one pass of a step."""
    nn = torch.nn
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    given = {"model": net, "batch": (torch.ones(4, 8), torch.ones(4, 1)), "loss": nn.MSELoss()}
    host_us = {}
    for devices in (1, 2):
        few, many = (
            predict(GPU, devices=devices, parallel__micro_batches=count, **given)
            for count in (2, 6)
        )
        assert many.bound == "host"
        host_us[devices] = many.host_us - few.host_us
    assert host_us[2] == pytest.approx(host_us[1], rel=1e-3)
