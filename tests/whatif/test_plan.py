"""Plans: pruning never changes the winner or the front, costs and accumulation add up, and every refusal is one line."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from pipeline.answers import plan as planning
from pipeline.answers.plan import Limits, Objective, make_plan, plan, seconds
from pipeline.answers.plan_bounds import CallSizes, sizes_between, step_bounds_us
from pipeline.answers.predict_grid import predict_points
from pipeline.answers.predict_point import graph_of
from pipeline.cli import app
from pipeline.config import expand
from pipeline.errors import InputError
from pipeline.graph.graph_cache import calls_of
from pipeline.hardware.find_gpu import load_gpu
from pipeline.report.figures.plan_front import plan_front, write_plan_front
from tests.report.test_figure_layout import problems

SPACE = ["gpu=V100,A100,H100,T4,L4,A10", "model=dlrm_small", "batch_size=64,256,1024,4096", "model.dtype=fp32,fp16",
         "predict.cuda_graph=false,true", "predict.draws=64"]  # fmt: skip


def alike(point):
    """What a prediction depends on, whatever its draws."""
    return replace(point.settings, predict=replace(point.settings.predict, draws=1, seed=0)), point.batch_size


@pytest.fixture(scope="module")
def pool():
    """All points of the space with their predictions."""
    points = expand(SPACE)
    return points, {alike(each.point): each for each in predict_points(points, keep_draws=True)}


def known(pool):
    """Answers from the pool, with the number of points that were asked for."""
    asked = []

    def predicting(points, keep_draws):
        asked.extend(points if not keep_draws else [])
        return [replace(pool[1][alike(point)], point=point) for point in points]

    return predicting, asked


def keys(choices):
    return [(each.point.gpu, each.point.batch_size, each.point.variant) for each in choices]


@pytest.mark.parametrize("number", range(20))
def test_pruning_never_changes_the_winner_or_the_front(pool, monkeypatch, number):
    """Twenty random spaces, searched whole and with bounds, under random constraints."""
    monkeypatch.setattr(planning, "POINTS_AT_ONCE", 4)
    chance = random.Random(number)
    points = chance.sample(pool[0], chance.randint(12, 60))
    objective = chance.choice(list(Objective))
    slow = max(pool[1][alike(each)].prediction.predicted_us / each.batch_size for each in points)
    limits = Limits(samples=1_000_000, deadline_s=slow * chance.choice([0.3, 2.0]))
    predicting, asked = known(pool)
    whole = make_plan(objective, points, limits, predicting, prune=False)
    assert len(asked) == whole.predicted == len(points) - whole.lost.get("no price", 0)
    found = make_plan(objective, points, limits, predicting)
    assert keys([found.best]) == keys([whole.best])
    assert keys(found.front) == keys(whole.front)
    assert found.predicted <= whole.predicted and sum(found.lost.values()) == len(points) - 1


def test_bounds_are_below_the_predictions(pool):
    for point in pool[0]:
        if point.settings.predict.cuda_graph:
            continue
        gpu = load_gpu(point.gpu)
        calls = calls_of(
            graph_of(point.settings.model, point.batch_size), point.section("model"), point.batch_size, gpu
        )
        whole, part = step_bounds_us(CallSizes.of(calls), gpu)
        assert 0 < part <= whole <= pool[1][alike(point)].prediction.predicted_us


def test_progress_counts_points_until_all_are_decided():
    points, decided = expand(["gpu=V100,T4", "model=dlrm_small", "batch_size=64", "predict.draws=64"]), []
    make_plan(Objective.step, points, Limits(), decided=decided.append)
    assert decided[0] == 0 and decided[-1] == len(points)


def test_bounds_of_many_batch_sizes_come_from_three(monkeypatch):
    points = expand(["gpu=V100,T4", "model=dlrm_small", "batch_size=64,72,80,88,96"])
    sizes = [64, 72, 80, 88, 96]
    mapped = []

    def counted(graph, *given):
        mapped.append(graph.batch_size)
        return calls_of(graph, *given)

    monkeypatch.setattr(planning, "calls_of", counted)
    step = planning._StepBounds(points[0].settings.model, points[0].settings.edit, sizes)
    for point in points:
        graph, gpu = graph_of(point.settings.model, point.batch_size), load_gpu(point.gpu)
        calls = calls_of(graph, point.section("model"), point.batch_size, gpu)
        found = step.bounds(point.settings.gpu, point.batch_size)
        assert found == pytest.approx(step_bounds_us(CallSizes.of(calls), gpu), rel=0.01)
        assert step.memory_bytes(point.batch_size) == graph.memory_bytes
    assert sorted(mapped) == [64, 64, 80, 80, 96, 96]  # for each of two architectures


def test_batch_sizes_with_other_kernels_have_no_line():
    def at(size):
        names = np.array(["gemm"] * (2 if size > 100 else 1), dtype=object)
        numbers = np.full(len(names), float(size))
        return CallSizes(names, np.full(len(names), "fp32", dtype=object), numbers < 0, numbers, numbers, numbers)

    gpu = load_gpu("V100")
    line = sizes_between([10, 20, 30, 50], at, gpu)
    assert line is not None and line[20].flops.item() == pytest.approx(20)
    assert sizes_between([10, 20, 30, 500], at, gpu) is None


def test_bounds_that_are_too_high_are_lowered_by_what_the_search_sees(pool, monkeypatch):
    monkeypatch.setattr(planning, "POINTS_AT_ONCE", 4)
    predicting, _ = known(pool)
    whole = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting, prune=False)
    for factor in (3.0, 1000.0):

        def high(*given, factor=factor):
            return factor * step_bounds_us(*given)

        monkeypatch.setattr(planning, "step_bounds_us", high)
        assert keys([make_plan(Objective.samples_per_s, pool[0], Limits(), predicting).best]) == keys([whole.best])


def test_the_winner_is_the_best_of_all_predictions(pool):
    predicting, asked = known(pool)
    found = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    assert len(asked) == found.predicted < 0.8 * len(pool[0])  # bounds rule out the rest
    assert 1e6 / found.best.us_per_sample == max(each.prediction.samples_per_s for each in pool[1].values())
    assert sum(each.wins for each in found.contenders) == pytest.approx(1)
    times, costs = ([getattr(each, name) for each in found.front] for name in ("time", "cost"))
    assert times == sorted(times) and costs == sorted(costs, reverse=True)
    step = make_plan(Objective.step, pool[0], Limits(), predicting).best.prediction.predicted_us
    assert step == min(each.prediction.predicted_us for each in pool[1].values())


def test_small_batches_are_accumulated_without_an_update():
    points = expand(["gpu=V100", "model=dlrm_small", "batch_size=64,96,128", "predict.draws=64"])
    found = make_plan(Objective.step, points, Limits(global_batch=256))
    assert found.lost["batch does not divide the global batch"] == 1
    chosen = next(each for each in found.contenders if each.point.batch_size == 64)
    plain, part = (
        next(iter(predict_points(expand(["gpu=V100", "model=dlrm_small", "batch_size=64", *more])))).prediction
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
        ("time_per_epoch", [], {"samples": 10**9, "deadline_s": 1.0}, "no point meets --deadline; the nearest is V100"),
        ("cost_per_epoch", [], {"samples": 10**9, "budget": 1e-6}, "no point meets --budget; the nearest is V100"),
        ("step", [], {"memory_bytes": 1000}, "does not fit (1); the nearest: V100 batch_size=64 needs"),
        ("step", ["edit.remove=aten::rleu"], {}, "near are aten::relu"),
        ("step", ["batch_size=48"], {"global_batch": 100}, "batch does not divide the global batch (1)"),
        ("step", ["gpu=local"], {}, "name GPUs instead of gpu=local"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_told_in_one_line(objective, more, limits, said):
    given = {"gpu": "V100", "model": "dlrm_small", "batch_size": "64", "predict.draws": "64"}
    given |= dict(text.split("=", 1) for text in more)
    with pytest.raises(InputError) as caught:
        make_plan(Objective(objective), expand([f"{key}={value}" for key, value in given.items()]), Limits(**limits))
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
    predicting, _ = known(pool)
    found = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    write_plan_front(found, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    assert "cost of a million samples (USD)" in text and found.best.point.gpu in text
    line = next(each for each in plan_front(found).axes[0].lines if each.get_label() == "front")
    assert list(line.get_xdata()) == [each.us_per_sample for each in found.front]
    assert problems(plan_front(found)) == []
    with pytest.raises(InputError, match="ends in"):
        write_plan_front(found, tmp_path / "plan.txt")
    with pytest.raises(InputError, match="there is no folder"):
        write_plan_front(found, tmp_path / "none" / "plan.svg")
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    with pytest.raises(InputError, match="needs prices"):
        plan_front(make_plan(Objective.samples_per_s, pool[0], Limits(), predicting))


def test_a_cost_needs_a_price_with_its_currency(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_PRICES", "none")
    with pytest.raises(InputError, match="cost_per_epoch: none of these GPUs has a price"):
        plan("cost_per_epoch", "V100", "dlrm_small", samples=1000)
    (tmp_path / "prices.yaml").write_text("prices:\n- {gpu: V100, per_hour: 1, date: 2026-01-15, source: a bill}\n")
    monkeypatch.setenv("STEPTIME_PRICES", str(tmp_path / "prices.yaml"))
    with pytest.raises(InputError, match="no currency"):
        plan("cost_per_epoch", "V100", "dlrm_small", samples=1000)


def test_the_command_and_python_agree():
    words = ["plan", "time_per_epoch", "gpu=V100,T4", "model=dlrm_small", "batch_size=64,128", "predict.draws=64"]
    shown = CliRunner().invoke(app, [*words, "--samples", "1000000"])
    assert shown.exit_code == 0 and "front of time against cost" in shown.output and "others lost" in shown.output
    found = json.loads(CliRunner().invoke(app, [*words, "--samples", "1000000", "--json"]).output)
    same = plan("time_per_epoch", "V100,T4", "dlrm_small", samples=1_000_000, batch_size="64,128", predict__draws=64)
    assert found == json.loads(json.dumps(same.as_dict()))
    assert found["best"]["time_per_epoch_s"] == pytest.approx(1e6 / found["best"]["samples_per_s"])
    assert np.isclose(found["best"]["cost_per_epoch"] * found["best"]["samples_per_dollar"], 1e6)
