"""Plans: pruning never changes the winner or the front, costs and accumulation add up, and every refusal is one line."""

import json
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from pipeline.answers import plan as planning
from pipeline.answers import plan_search as searching
from pipeline.answers.call_lines import CallLine, knots
from pipeline.answers.plan import make_plan, plan
from pipeline.answers.plan_bounds import StepBounds, modelled_us, roofline_us
from pipeline.answers.plan_results import Limits, Objective
from pipeline.answers.predict_grid import GridModels, predict_points
from pipeline.answers.predict_point import graph_of
from pipeline.cli import app
from pipeline.config import expand
from pipeline.errors import InputError
from pipeline.graph.graph_cache import calls_of
from pipeline.hardware.find_gpu import load_gpu
from pipeline.readable import seconds
from pipeline.show.figures.costs import plan_front, write_plan_front
from tests.show.figure_texts import problems

SPACE = ["gpu=V100,A100,H100,T4,L4,A10", "model=dlrm_small", "batch_size=64,256,1024,4096", "model.dtype=fp32,fp16",
         "predict.cuda_graph=false,true", "predict.draws=64"]  # fmt: skip


@pytest.fixture(scope="module")
def models():
    return GridModels(None)


@pytest.fixture(autouse=True)
def read_once(models, monkeypatch):
    """All searches share models, which takes 0.1 s per GPU to read."""
    monkeypatch.setattr(planning, "GridModels", lambda results: models)


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
    for name, few in (("POINTS_AT_ONCE", 4), ("REFINED_AT_ONCE", 8), ("CONTENDERS", 3)):
        monkeypatch.setattr(searching, name, few)
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
    assert keys(found.contenders) == keys(whole.contenders)
    assert found.predicted <= whole.predicted and sum(found.lost.values()) == len(points) - 1


def both_bounds(points, models):
    """Bounds of each point in both stages, shape (points, stages), and of a step without an update."""
    found, parts = [], []
    steps = {}
    for point in points:
        sizes = sorted({each.batch_size for each in points if each.settings.model == point.settings.model})
        step = steps.setdefault(point.settings.model, StepBounds(point.settings.model, point.settings.edit, sizes))
        gpu, kernels = models.gpu(point), models.kernels(point)
        rough, failed = step.roofline(gpu, [point.batch_size])
        assert not failed
        shared = step.shared_calls(gpu, [point.batch_size])
        (times,) = modelled_us(kernels, shared)
        programs = shared[0].programs(models.overheads(point))
        tight = shared[0].bounds_us(times, programs, point.settings.predict)
        found.append((rough[0, 0], tight[0, 0]))
        parts.append((rough[0, 1], tight[0, 1]))
    return np.array(found), np.array(parts)


def test_bounds_are_below_the_predictions(pool, models):
    predicted = np.array([pool[1][alike(point)].prediction.predicted_us for point in pool[0]])
    bounds, parts = both_bounds(pool[0], models)
    assert (bounds <= predicted[:, None] * (1 + 1e-3)).all() and (parts > 0).all() and (parts <= bounds).all()
    assert np.median(bounds[:, 1] / predicted) > 0.99 and np.median(bounds[:, 0] / predicted) < 0.5
    mapped = [place for place, point in enumerate(pool[0]) if point.batch_size in (64, 4096)]  # the knots
    assert bounds[mapped, 1] == pytest.approx(predicted[mapped], rel=1e-9)


def test_progress_counts_points_of_each_stage_until_all_are_decided():
    points, told = expand(["gpu=V100,T4", "model=dlrm_small", "batch_size=64", "predict.draws=64"]), []
    make_plan(Objective.step, points, Limits(), told=lambda stage, done: told.append((stage, done)))
    assert told[0][0] == "bounding" and ("bounding", len(points)) in told
    assert told[-1] == ("searching", len(points))
    assert [stage for stage, _ in told] == sorted(stage for stage, _ in told)


def test_memory_is_not_asked_for_where_fewer_samples_do_not_fit(monkeypatch):
    asked = []
    monkeypatch.setattr(searching, "memory_of", lambda model, batch: asked.append(batch) or batch * 2**20)
    points = expand(["gpu=V100", "model=dlrm_small", "batch_size=1000000,2000000,4000000"])
    with pytest.raises(InputError, match="does not fit \\(3\\); the nearest: V100 batch_size=1000000 needs"):
        make_plan(Objective.step, points, Limits())
    assert asked == [1000000]


def test_knots_are_the_ends_and_sizes_between():
    assert knots([8, 16, 24]) == [8, 16, 24]
    assert knots(list(range(8, 801, 8))) == [8, 32, 128, 512, 800]
    assert knots([1, 2, 3, 1000, 1001]) == [1, 3, 1000, 1001]


def test_calls_between_knots_lie_on_a_line():
    model = expand(["gpu=V100", "model=dlrm_default"])[0].settings.model
    gpu, sizes = load_gpu("V100"), (64, 128, 192, 256)
    tables = [calls_of(graph_of(model, size), model.plain(), size, gpu) for size in sizes]
    line = CallLine.between(tables[0], tables[3], (64, 256))
    assert (line.at_low >= 0).mean() > 0.9
    assert line.moving  # a copy has the batch in its attributes
    for size, calls in zip(sizes, tables, strict=True):
        whole, here = CallLine.of(calls, size), np.array([size])
        bound, exact = ((roofline_us(each, here, gpu) * each.count).sum() for each in (line, whole))
        assert 0.97 * exact < bound <= exact * (1 + 1e-9)
        dims = line.table(here)
        assert set(dims["attributes"].dropna()) <= set(calls["attributes"].dropna())
        assert set(dims["M"].dropna().astype(int)) <= set(calls["M"].dropna().astype(int))


def test_calls_of_one_end_alone_are_left_out():
    def calls(size, number):
        rows = range(number)
        columns = {"node_id": list(rows), "api": "cudaLaunchKernel", "family": "gemm", "op": "mm", "phase": "forward",
                   "dtype": "fp32", "attributes": None, "flops": float(size), "bytes_read": 1.0, "bytes_written": 1.0}  # fmt: skip
        return pd.DataFrame(columns, index=rows)

    line = CallLine.between(calls(10, 2), calls(50, 3), (10, 50))
    assert line.count.tolist() == [2] and line.at_low.tolist() == [0, 0] and line.at_high.tolist() == [0, 0, -1]
    assert line.number("flops", np.array([10, 20, 50])).tolist() == [[10], [20], [50]]


@pytest.mark.parametrize("stage", ["roofline", "models"])
@pytest.mark.parametrize("factor", [3.0, 1000.0])
def test_bounds_that_are_too_high_are_lowered_by_what_the_search_sees(pool, monkeypatch, stage, factor):
    for name, few in (("POINTS_AT_ONCE", 4), ("REFINED_AT_ONCE", 8), ("CONTENDERS", 3)):
        monkeypatch.setattr(searching, name, few)
    predicting, _ = known(pool)
    whole = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting, prune=False)
    place = (StepBounds, "roofline") if stage == "roofline" else (searching.Search, "_refined")
    right = getattr(*place)

    def high(*given):
        found = right(*given)
        return (found[0] * factor, found[1]) if stage == "roofline" else found * factor

    monkeypatch.setattr(*place, high)
    found = make_plan(Objective.samples_per_s, pool[0], Limits(), predicting)
    assert keys([found.best]) == keys([whole.best]) and keys(found.front) == keys(whole.front)


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
        ("cost_per_epoch", [], {"samples": 10**9, "budget": 1e-6}, "USD an epoch"),
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
    unpriced = plan_front(make_plan(Objective.samples_per_s, pool[0], Limits(), predicting))
    assert unpriced.axes[0].get_ylabel() == "batch size" and problems(unpriced) == []


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
