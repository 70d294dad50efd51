"""Predictions of data-parallel steps: what several GPUs gain, lose and cost."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from pipeline.answers.engine import engine
from pipeline.answers.kernel_predictor import TIMES, on_slowest_card
from pipeline.answers.plan import plan
from pipeline.answers.predict import predict
from pipeline.answers.step_changes import CANDIDATES, applies, changed, command
from pipeline.prediction import Prediction
from pipeline.question.question import ask
from pipeline.show.comparison import compare
from pipeline.show.figures.scaling import scaling_table
from pipeline.summary_rows import predictions_of, summary_row

GPU = "A100-SXM4-80GB"
MODEL = {"model": "dcgan", "batch_size": 64}


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
    low, high = eight.several.efficiency_p10, eight.several.efficiency_p90
    assert low is not None and high is not None and low < eight.several.efficiency < high


def test_an_exchange_that_is_not_known_makes_the_efficiency_uncertain() -> None:
    """Two cards with the same exchange, over switches that were measured and over a host that was not."""
    widths = {}
    for cluster in ("dgx-a100", "pcie4"):
        found = several(2, cluster=cluster, batch_size=512, predict__draws=64).several
        assert found is not None and found.efficiency_p10 and found.efficiency_p90
        widths[cluster] = found.efficiency_p90 - found.efficiency_p10
    assert widths["pcie4"] > 1.3 * widths["dgx-a100"] > 0.05


@pytest.mark.parametrize(("devices", "loader"), [(1, 500), (2, 1000)])
def test_a_step_takes_at_least_the_time_of_loading_its_samples(devices: int, loader: int) -> None:
    """The rate is that of the whole machine, and holds for all samples of a step."""
    named = {"gpu": GPU, "devices": devices, **MODEL}
    free, slow, fast = (
        ask([*(f"{key}={value}" for key, value in named.items()), f"loader={rate}/s"])
        for rate in (0, loader, 10**9)
    )
    steps = [engine(None).predict_one(question).whole() for question in (free, slow, fast)]
    assert steps[1].predicted_us == pytest.approx(1e6 * 64 * 1 / 500) == steps[1].p10_us
    assert steps[1].bound == "loader" and "data loading at" in steps[1].notes[-1]
    assert steps[2].predicted_us == steps[0].predicted_us < steps[1].predicted_us
    assert ("data loading is not in the step" in str(steps[0].notes)) == (devices > 1)


@pytest.mark.parametrize(
    "devices, slower", [(1, 1.0), (2, 1 + 0.015 * 0.5895), (8, 1 + 0.015 * 1.4342)]
)
def test_the_others_wait_for_the_slowest_card_and_an_exchange_takes_as_long_for_all(
    devices: int, slower: float
) -> None:
    calls = pd.DataFrame({"family": ["gemm", "collective"]})
    times = pd.DataFrame({name: [10.0, 20.0] for name in TIMES} | {"evidence": ["pack", "pack"]})
    of_slowest = on_slowest_card(times, calls, devices)
    for name in TIMES:
        assert of_slowest[name].tolist() == pytest.approx([10.0 * slower, 20.0], rel=1e-4)
    assert of_slowest["evidence"].tolist() == ["pack", "pack"]


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
    asked = {
        "gpu": "RTX4090",
        "model": "transformer",
        "model__layers": 1,
        "batch_size": 1,
        "devices": 8,
        "host": "typical-2020",
    }
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
    alone = predict(gpu=GPU, **MODEL)  # type: ignore[arg-type]
    assert alone.as_dict()["devices"] == 1 and alone.as_dict()["communication_us"] == 0
    assert predictions_of(summary_row(alone))[0].several is None


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
    assert "samples/s" in table.plot().axes[0].get_ylabel()


def test_a_plan_counts_samples_and_prices_of_all_gpus() -> None:
    space = {"gpu": GPU, "model": "dcgan", "batch_size": 64, "devices": "1,4"}
    fastest, cheapest = (plan(name, **space) for name in ("samples_per_s", "samples_per_dollar"))  # type: ignore[arg-type]
    assert fastest.best.question.devices == 4 and cheapest.best.question.devices == 1
    best = fastest.best
    assert 1e6 / best.us_per_sample == pytest.approx(
        4 * 64 / best.prediction.predicted_us * 1e6, rel=1e-6
    )
    assert cheapest.best.cost_per_sample and best.cost_per_sample
    assert cheapest.best.cost_per_sample < best.cost_per_sample < 2 * cheapest.best.cost_per_sample


def test_one_engine_predicts_the_single_gpu_once() -> None:
    answering = engine(None)
    questions = [
        ask([f"gpu={GPU}", "model=dcgan", "batch_size=64", f"devices={count}"])
        for count in (2, 4, 8)
    ]
    answers = list(answering.predict(questions))
    assert all(answer.prediction and answer.prediction.several for answer in answers)
    assert len(answering._alone) == 1
    assert replace(questions[0], variant="x").alone() == questions[2].alone()


def test_advice_knows_what_shortens_an_exchange_and_says_nothing_of_it_for_one_gpu() -> None:
    alone, four = (ask([f"gpu={GPU}", "model=dcgan", f"devices={count}"]) for count in (1, 4))
    found = {candidate.text for candidate in CANDIDATES if applies(candidate, four)}
    assert {
        "parallel.gradient_as_bucket_view=true",
        "parallel.compression=fp16",
        "parallel.broadcast_buffers=false",
    } <= found
    assert not any(
        candidate.key.startswith("parallel.")
        for candidate in CANDIDATES
        if applies(candidate, alone)
    )
    compressed = next(
        candidate for candidate in CANDIDATES if candidate.text == "parallel.compression=fp16"
    )
    after = changed(four, compressed)
    assert (
        after.ranks is not None
        and after.ranks.parallel.compression == "fp16"
        and after.devices == 4
    )
    assert "devices=4" in command(four, compressed) and "parallel.compression=none,fp16" in command(
        four, compressed
    )
