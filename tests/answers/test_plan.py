"""Plans: pruning never changes the winner or the front, costs and accumulation add up, and every refusal is one line."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline.answers import plan as planning
from pipeline.answers import plan_search as searching
from pipeline.answers.engine import AvailableModels, Engine
from pipeline.answers.plan import make_plan, plan
from pipeline.answers.plan_bounds import StepBounds, knots
from pipeline.answers.plan_results import Limits, Objective
from pipeline.answers.plan_search import Search
from pipeline.cli import app
from pipeline.errors import InputError
from pipeline.question.question import expand
from pipeline.readable import seconds
from pipeline.show.figures.costs import plan_front, write_plan_front
from tests.show.figure_texts import problems

SPACE = [
    "gpu=V100,A100,H100,T4,L4,A10", "model=dlrm_small", "batch_size=64,256,1024,4096",
    "model.dtype=fp32,fp16", "predict.cuda_graph=false,true", "predict.draws=64",
]  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    return Engine(AvailableModels(None))


@pytest.fixture(autouse=True)
def read_once(engine, monkeypatch):
    """All searches share models, which takes 0.1 s per GPU to read."""
    monkeypatch.setattr(planning, "engine", lambda results: engine)


def alike(question):
    """What a prediction depends on, whatever its draws."""
    return replace(question, predict=replace(question.predict, draws=1, seed=0))


@pytest.fixture(scope="module")
def pool(engine):
    """All questions of the space, and their answers."""
    questions = expand(SPACE)
    return questions, {
        alike(answer.question): answer for answer in engine.predict(questions, keep_draws=True)
    }


def from_pool(pool):
    """A function that answers from the pool, and the questions that it was asked during the search."""
    asked = []

    def predicting(questions, keep_draws):
        asked.extend(questions if not keep_draws else [])
        return [replace(pool[1][alike(question)], question=question) for question in questions]

    return predicting, asked


def keys(choices):
    return [
        (choice.question.gpu.name, choice.question.batch_size, choice.question.variant)
        for choice in choices
    ]


def bounds_of(questions, engine):
    """Bounds of each question, and those of its step without an update."""
    steps = {}
    bounds = []
    for question in questions:
        same_step = [other for other in questions if other.workload == question.workload]
        if question.workload not in steps:
            step = steps[question.workload] = StepBounds(
                engine, {other.batch_size for other in same_step}
            )
            step.map_calls(same_step, lambda share: None)
        bounds.append(steps[question.workload].bounds_us(question, [question.batch_size])[0])
    return np.transpose(bounds)


def test_bounds_are_below_the_predictions(pool, engine):
    predicted = np.array([pool[1][alike(question)].prediction.predicted_us for question in pool[0]])
    bounds, parts = bounds_of(pool[0], engine)
    assert (
        (bounds * Search.ratio <= predicted).all() and (parts > 0).all() and (parts <= bounds).all()
    )
    assert np.median(bounds / predicted) > 0.5


def test_memory_is_not_asked_for_where_fewer_samples_do_not_fit(engine, monkeypatch):
    asked = []

    def memory_bytes(question):
        asked.append(question.batch_size)
        return question.batch_size * 2**20

    monkeypatch.setattr(engine.steps, "memory_bytes", memory_bytes)
    questions = expand(["gpu=V100", "model=dlrm_small", "batch_size=1000000,2000000,4000000"])
    with pytest.raises(
        InputError, match="does not fit \\(3\\); the nearest: V100 batch_size=1000000 needs"
    ):
        make_plan(Objective.step, questions, Limits())
    assert asked == [1000000]


@pytest.mark.parametrize("gib, fits", [(14.5, True), (14.6, False), (15.9, False)])
def test_a_plan_takes_what_fits_into_the_usable_memory(engine, monkeypatch, gib, fits):
    """PyTorch can allocate 14.56 of a T4's 16 GiB. Beside it a V100 of 32 GiB, which is better."""
    monkeypatch.setattr(engine.steps, "memory_bytes", lambda question: int(gib * 2**30))
    chosen = make_plan(
        Objective.step,
        expand(["gpu=V100,T4", "model=dlrm_small", "batch_size=64"]),
        Limits(),
        prune=False,
    )
    assert ("does not fit" not in chosen.lost) == fits, chosen.lost


def test_knots_are_the_ends_and_sizes_between():
    assert knots([8, 16, 24]) == [8, 24] and knots([8]) == [8]
    assert knots(list(range(8, 801, 8))) == [8, 32, 128, 512, 800]
    assert knots([1, 2, 3, 1000, 1001]) == [1, 3, 1000, 1001]


@pytest.mark.parametrize("factor", [3.0, 1000.0])
def test_bounds_that_are_too_high_are_lowered_by_what_the_search_sees(pool, monkeypatch, factor):
    for name, few in (("POINTS_AT_ONCE", 4), ("CONTENDERS", 3)):
        monkeypatch.setattr(searching, name, few)
    predicting, _ = from_pool(pool)
    whole = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting, prune=False)
    right = StepBounds.bounds_us
    monkeypatch.setattr(StepBounds, "bounds_us", lambda *args: right(*args) * factor)
    plan = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    assert keys([plan.best]) == keys([whole.best]) and keys(plan.front) == keys(whole.front)


@pytest.mark.parametrize("number", range(20))
def test_pruning_never_changes_the_winner_or_the_front(pool, monkeypatch, number):
    """Twenty random spaces, searched whole and with bounds, under random constraints."""
    for name, few in (("POINTS_AT_ONCE", 4), ("CONTENDERS", 3)):
        monkeypatch.setattr(searching, name, few)
    chance = random.Random(number)
    points = chance.sample(pool[0], chance.randint(12, 60))
    objective = chance.choice(list(Objective))
    slow = max(pool[1][alike(each)].prediction.predicted_us / each.batch_size for each in points)
    limits = Limits(samples=1_000_000, deadline_s=slow * chance.choice([0.3, 2.0]))
    predicting, asked = from_pool(pool)
    whole = make_plan(objective, points, limits, predicting, prune=False)
    assert len(asked) == whole.predicted == len(points) - whole.lost.get("no price", 0)
    chosen = make_plan(objective, points, limits, predicting)
    assert keys([chosen.best]) == keys([whole.best])
    assert keys(chosen.front) == keys(whole.front)
    assert keys(chosen.contenders) == keys(whole.contenders)
    assert chosen.predicted <= whole.predicted and sum(chosen.lost.values()) == len(points) - 1


def test_progress_counts_points_of_each_stage_until_all_are_decided():
    points, told = (
        expand(["gpu=V100,T4", "model=dlrm_small", "batch_size=64", "predict.draws=64"]),
        [],
    )
    make_plan(Objective.step, points, Limits(), told=lambda stage, done: told.append((stage, done)))
    assert told[0][0] == "bounding" and ("bounding", len(points)) in told
    assert told[-1] == ("searching", len(points))
    assert [stage for stage, _ in told] == sorted(stage for stage, _ in told)


def test_the_winner_is_the_best_of_all_predictions(pool):
    predicting, asked = from_pool(pool)
    chosen = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    assert len(asked) == chosen.predicted < 0.8 * len(pool[0])  # bounds rule out the rest
    assert 1e6 / chosen.best.us_per_sample == pytest.approx(
        max(each.prediction.samples_per_s for each in pool[1].values())
    )
    assert sum(each.wins for each in chosen.contenders) == pytest.approx(1)
    times, costs = ([getattr(each, name) for each in chosen.front] for name in ("time", "cost"))
    assert times == sorted(times) and costs == sorted(costs, reverse=True)
    step = make_plan(Objective.step, pool[0], Limits(), predicting).best.prediction.predicted_us
    assert step == min(each.prediction.predicted_us for each in pool[1].values())


def test_a_predicted_point_rules_out_other_batch_sizes_of_its_step(pool, monkeypatch):
    """Bounds of a hundredth rule out nothing by themselves. Each step has 4 batch sizes, of which the largest is the best."""
    for name, few in (("POINTS_AT_ONCE", 4), ("CONTENDERS", 1)):
        monkeypatch.setattr(searching, name, few)
    right = StepBounds.bounds_us
    monkeypatch.setattr(StepBounds, "bounds_us", lambda *args: right(*args) / 100)
    predicting, asked = from_pool(pool)
    whole = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting, prune=False)
    asked.clear()
    plan = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    assert keys([plan.best]) == keys([whole.best]) and keys(plan.front) == keys(whole.front)
    assert len(asked) < 0.5 * len(pool[0])


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
        ("cost_per_epoch", [], {"samples": 10**9, "budget": 1e-6}, "USD an epoch"),
        (
            "step",
            [],
            {"memory_bytes": 1000},
            "does not fit (1); the nearest: V100 batch_size=64 needs",
        ),
        ("step", ["edit.remove=aten::rleu"], {}, "near are aten::relu"),
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
    with pytest.raises(InputError, match="the space is empty"):
        make_plan(Objective.step, [], Limits())
    with pytest.raises(InputError, match="unknown objective 'fastest': choose one of step"):
        plan("fastest", "V100", "dlrm_small")
    with pytest.raises(InputError, match="'two hours' is no time"):
        seconds("two hours")
    assert [seconds(text) for text in ("90s", "30min", "2h", "1.5d")] == [90, 1800, 7200, 129600]
    monkeypatch.setattr("sys.argv", ["steptime"])
    empty = CliRunner().invoke(app, ["plan", "step"])
    assert "the space is empty" in str(empty.exception)


def test_the_figure_shows_the_front(pool, tmp_path, monkeypatch):
    predicting, _ = from_pool(pool)
    chosen = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    write_plan_front(chosen, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert "cost of a million samples (USD)" in text and chosen.best.question.gpu.name in text
    line = next(each for each in plan_front(chosen).axes[0].lines if each.get_label() == "front")
    assert list(line.get_xdata()) == [each.us_per_sample for each in chosen.front]
    assert problems(plan_front(chosen)) == []
    with pytest.raises(InputError, match="ends in"):
        write_plan_front(chosen, tmp_path / "plan.txt")
    with pytest.raises(InputError, match="there is no folder"):
        write_plan_front(chosen, tmp_path / "none" / "plan.svg")
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    unpriced = plan_front(make_plan(Objective.samples_per_s, pool[0], Limits(), predicting))
    assert unpriced.axes[0].get_ylabel() == "batch size" and problems(unpriced) == []


def test_a_cost_needs_a_price_with_its_currency(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    with pytest.raises(InputError, match="cost_per_epoch: none of these GPUs has a price"):
        plan("cost_per_epoch", "V100", "dlrm_small", samples=1000)
    (tmp_path / "prices.yaml").write_text(
        "prices:\n- {gpu: V100, per_hour: 1, date: 2026-01-15, source: a bill}\n"
    )
    monkeypatch.setenv("STEPTIME_PRICES", str(tmp_path / "prices.yaml"))
    with pytest.raises(InputError, match="no currency"):
        plan("cost_per_epoch", "V100", "dlrm_small", samples=1000)


def test_the_command_and_python_agree():
    words = [
        "plan",
        "time_per_epoch",
        "gpu=V100,T4",
        "model=dlrm_small",
        "batch_size=64,1024",
        "predict.draws=64",
    ]
    shown = CliRunner().invoke(app, [*words, "--samples", "1000000"])
    assert (
        shown.exit_code == 0
        and "front of time against cost" in shown.output
        and "others lost" in shown.output
    )
    printed = json.loads(CliRunner().invoke(app, [*words, "--samples", "1000000", "--json"]).output)
    same = plan(
        "time_per_epoch",
        "V100,T4",
        "dlrm_small",
        samples=1_000_000,
        batch_size="64,1024",
        predict__draws=64,
    )
    assert printed == json.loads(json.dumps(same.as_dict()))
    assert printed["best"]["time_per_epoch_s"] == pytest.approx(
        1e6 / printed["best"]["samples_per_s"]
    )
    assert np.isclose(
        printed["best"]["cost_per_epoch"] * printed["best"]["samples_per_dollar"], 1e6
    )
