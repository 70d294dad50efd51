"""Plans: the winner and the front are those of all predictions, costs and accumulation add up, and refusals are one line."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline.answers import plan as planning
from pipeline.answers.engine import Engine
from pipeline.answers.model_sources import AvailableModels
from pipeline.answers.plan import make_plan, plan
from pipeline.answers.plan_results import Limits, Objective
from pipeline.answers.plan_search import SURE
from pipeline.cli import app
from pipeline.errors import InputError
from pipeline.question.question import expand
from pipeline.readable import seconds
from pipeline.show.figures.board import save_as
from pipeline.show.figures.costs import plan_front
from tests.show.figure_texts import problems

SPACE = [
    "gpu=V100,H100,T4", "model=dlrm_small", "batch_size=64,512,4096", "model.dtype=fp32,fp16",
    "predict.cuda_graph=false,true", "predict.draws=64", "price.V100=3.06",
]  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    return Engine(AvailableModels(None))


@pytest.fixture(autouse=True)
def read_once(engine, monkeypatch):
    """All searches share models, which takes 0.1 s per GPU to read."""
    monkeypatch.setattr(planning, "engine", lambda results: engine)


@pytest.fixture(scope="module")
def predictions(engine):
    """What the engine predicts for each question of the space."""
    questions = expand(SPACE)
    return {answer.question: answer.whole() for answer in engine.predict(questions)}


@pytest.mark.parametrize("gib, fits", [(14.5, True), (14.6, False)])
def test_a_plan_takes_what_fits_into_the_usable_memory(engine, monkeypatch, gib, fits):
    """PyTorch can allocate 14.56 of a T4's 16 GiB. Beside it a V100 of 32 GiB, which is better."""
    monkeypatch.setattr(engine.steps, "memory_bytes", lambda question: int(gib * 2**30))
    chosen = make_plan(
        Objective.step,
        expand(["gpu=V100,T4", "model=dlrm_small", "batch_size=64"]),
        Limits(),
    )
    assert ("does not fit" not in chosen.lost) == fits, chosen.lost


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("tight", [0.3, 2.0])
def test_the_best_and_the_front_are_those_of_all_predictions(predictions, objective, tight):
    price = {"V100": 3.06, "T4": 0.526}
    points = [each for each in predictions if each.gpu.name in price]
    seconds = {each: predictions[each].predicted_us / each.batch_size for each in points}
    limits = Limits(samples=1_000_000, deadline_s=max(seconds.values()) * tight)
    found = make_plan(objective, points, limits)
    in_time = [each for each in points if seconds[each] <= limits.deadline_s]

    def time(each):
        return predictions[each].predicted_us if objective == Objective.step else seconds[each]

    def cost(each):
        if objective.of_energy:
            return predictions[each].power.joules / each.batch_size
        return time(each) * price[each.gpu.name]

    def sure(each):
        taken = predictions[each].draws_us / each.batch_size
        return np.mean(taken <= limits.deadline_s) >= SURE

    value = cost if objective.of_energy or objective.of_cost else time
    assert value(found.best.question) == min(map(value, filter(sure, in_time)))
    assert all(each.meets >= SURE for each in found.contenders)
    front = [
        each
        for each in in_time
        if not any(time(o) <= time(each) and cost(o) < cost(each) for o in in_time)
    ]
    assert {(time(each.question), cost(each.question)) for each in found.front} == {
        (time(each), cost(each)) for each in front
    }
    assert found.predicted == len(points) and sum(found.lost.values()) == len(points) - 1
    assert found.lost.get("over the deadline", 0) == len(points) - len(in_time)


def test_small_batches_are_accumulated_without_an_update(engine):
    points = expand(["gpu=V100", "model=dlrm_small", "batch_size=64,96,128", "predict.draws=64"])
    found = make_plan(Objective.step, points, Limits(global_batch=256))
    assert found.lost["batch does not divide the global batch"] == 1
    chosen = next(each for each in found.contenders if each.question.batch_size == 64)
    plain, part = (
        engine.predict_one(
            expand(["gpu=V100", "model=dlrm_small", "batch_size=64", *more])[0]
        ).prediction
        for more in ([], ["model.optimizer=none"])
    )
    assert chosen.batches == 4
    assert chosen.time == pytest.approx(plain.predicted_us + 3 * part.predicted_us)
    assert chosen.us_per_sample == pytest.approx(chosen.time / 256)


@pytest.mark.parametrize(
    ("objective", "more", "limits", "said"),
    [
        ("time_per_epoch", [], {}, "give the --samples"),
        ("step", [], {"deadline_s": 1.0}, "give its --samples"),
        ("step", [], {"budget": -1.0, "samples": 1}, "--budget -1: give a number above 0"),
        (
            "time_per_epoch",
            [],
            {"samples": 10**9, "deadline_s": 1.0},
            "no point meets --deadline; the nearest is V100",
        ),
        ("cost_per_epoch", ["price.V100=3"], {"samples": 10**9, "budget": 1e-6}, "USD an epoch"),
        (
            "step",
            [],
            {"memory_gib": 1e-6},
            "does not fit (1); the nearest: V100 batch_size=64 needs",
        ),
        (
            "step",
            ["batch_size=48"],
            {"global_batch": 100},
            "batch does not divide the global batch (1)",
        ),
        ("step", ["gpu=local"], {}, "name GPUs instead of gpu=local"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(objective, more, limits, said):
    given = {"gpu": "V100", "model": "dlrm_small", "batch_size": "64", "predict.draws": "64"}
    given |= dict(text.split("=", 1) for text in more)
    with pytest.raises(InputError) as caught:
        make_plan(
            Objective(objective),
            expand([f"{key}={value}" for key, value in given.items()]),
            Limits(**limits),
        )
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_wrong_words_are_refused(monkeypatch):
    with pytest.raises(InputError, match="unknown objective 'fastest': choose one of step"):
        plan("fastest", "V100", "dlrm_small")
    with pytest.raises(InputError, match="'two hours' is no time"):
        seconds("two hours")
    assert [seconds(text) for text in ("90s", "30min", "2h", "1.5d")] == [90, 1800, 7200, 129600]
    monkeypatch.setattr("sys.argv", ["steptime"])
    empty = CliRunner().invoke(app, ["plan", "step"])
    assert "the space is empty" in str(empty.exception)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory_gib": "16GB"}, "memory=16GB: give a number"),
        ({"max_watts": [1]}, r"max_watts=\[1\]: give a number"),
        ({"global_batch": 2048.5}, "global_batch=2048.5: give a whole number"),
        ({"samples": "many"}, "samples: 'many' is no number"),
        ({"deadline_s": "soon"}, "deadline: 'soons' is no time"),
    ],
)
def test_a_constraint_in_python_is_read_as_that_of_the_command(given, said):
    with pytest.raises(InputError, match=said):
        plan("step", "V100", "dlrm_small", **given)


def test_the_figure_shows_the_front(predictions, tmp_path):
    chosen = make_plan(Objective.samples_per_s, list(predictions), Limits())
    save_as(plan_front(chosen), tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert "cost of a million samples (USD)" in text and chosen.best.question.gpu.name in text
    (line,) = (each for each in plan_front(chosen).axes[0].lines if each.get_label() == "front")
    assert list(line.get_xdata()) == [each.us_per_sample for each in chosen.front]
    assert problems(plan_front(chosen)) == []


def test_a_cost_needs_a_price(monkeypatch):
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    with pytest.raises(InputError, match=r"cost_per_epoch: no price of V100; give price__V100="):
        plan("cost_per_epoch", "V100", "dlrm_small", samples=1000)


def test_the_command_and_python_agree():
    words = ["plan", "time_per_epoch", "gpu=V100,T4", "model=dlrm_small", "batch_size=64,1024"]
    words += ["predict.draws=64", "price.V100=3.06", "--samples", "1000000"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0 and "front of time against cost" in shown.output
    printed = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    options = {"batch_size": "64,1024", "predict__draws": 64, "price__V100": 3.06}
    same = plan("time_per_epoch", "V100,T4", "dlrm_small", samples=1_000_000, **options)
    assert printed == json.loads(json.dumps(same.as_dict()))
    assert printed["best"]["time_per_epoch_s"] == pytest.approx(
        1e6 / printed["best"]["samples_per_s"]
    )
    assert np.isclose(
        printed["best"]["cost_per_epoch"] * printed["best"]["samples_per_dollar"], 1e6
    )
