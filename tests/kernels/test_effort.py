"""The quick and the long way to fit: same form of the model, fewer samples seen; a student can start from a member."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import InputError, UnknownNameError
from pipeline.kernels import distillation as distil
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import learned_variants as learned
from pipeline.kernels import trees
from pipeline.kernels.effort import LONG, QUICK
from pipeline.kernels.families import Law
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.network_training import train_network
from pipeline.kernels.networks import Network, Recipe
from pipeline.kernels.samples import with_families
from pipeline.question.question import expand

RECIPE = Recipe(width=24, layers=3, steps=150, frequencies=2)


@pytest.fixture(scope="module")
def problem():
    """Features of four columns, and a smooth target."""
    features = np.random.default_rng(5).normal(1.0, 2.0, (300, 4))
    return features, np.sin(features[:, 0]) + 0.3 * features[:, 1]


@pytest.fixture(scope="module")
def member(problem):
    return train_network(*problem, RECIPE, 0)


@pytest.fixture
def trained(monkeypatch):
    """Networks that a fit trains: their recipes, and whether they started from another network."""
    seen: list[tuple[Recipe, bool]] = []

    def noting(features, target, recipe, seed, start=None):
        seen.append((recipe, start is not None))
        return train_network(features, target, recipe, seed, start)

    monkeypatch.setattr(learned, "train_network", noting)
    monkeypatch.setattr(distil, "train_network", noting)
    for module, name, value in (
        (learned, "SMALL_FAMILY_WIDTH", (24, 2)), (learned, "NARROW_SMALL_FAMILY_WIDTH", (24, 2)),
        (learned, "WIDTHS", {}), (learned, "SMALL_FAMILY_STEPS", 90),
        (learned, "STEPS", (90, 90)), (distil, "SMALL_FAMILY_STUDENT_STEPS", 135), (distil, "SYNTHETIC_ROWS", 300),
        (trees, "REGRESSION_ROUNDS", 40), (fitter, "MAX_GAUSSIAN_PROCESS_SAMPLES", 100),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    return seen


def samples_seen(trained: list[tuple[Recipe, bool]]) -> int:
    return sum(recipe.steps * recipe.batch for recipe, _ in trained)


def test_the_quick_way_shows_its_networks_less_than_half_of_the_samples_and_starts_its_student_from_one(
    gemm_samples, v100, trained
):
    table = with_families(gemm_samples, "t")
    quick = fit_family(table, v100, "gemm", "average")
    few, started = samples_seen(trained), [start for _, start in trained]
    assert started == [False] * learned.FOLDS + [True]
    trained.clear()
    long = fit_family(table, v100, "gemm", "average", effort="long")
    assert 2 * few < samples_seen(trained)
    assert not any(start for _, start in trained)
    assert [fitted.parameters["effort"] for fitted in (quick, long)] == ["quick", "long"]
    assert [[type(member) for member in fitted.model.members] for fitted in (quick, long)] == [[Network]] * 2
    assert quick.metrics["gmae"] < 0.1


def test_an_effort_that_does_not_exist_is_named_with_the_ones_that_do(gemm_samples, v100):
    with pytest.raises(UnknownNameError, match=r"hasty.*long, quick"):
        fit_family(with_families(gemm_samples, "t"), v100, "gemm", effort="hasty")


def test_the_option_selects_the_effort_and_packs_are_made_the_long_way():
    assert expand([])[0].kernels.effort == "quick"
    assert expand(["kernels=long"])[0].kernels.effort == "long"
    assert expand(["kernels.effort=long"])[0].kernels.effort == "long"
    with pytest.raises(InputError, match=r"kernels\.effort"):
        expand(["kernels.effort=hasty"])
    rules = (Path(__file__).parents[2] / "workflow" / "rules" / "packs.smk").read_text()
    assert 'FLOW.models("{gpu}", "long"' in rules and "gemm/long" in rules and "auto" not in rules


def test_training_that_goes_on_starts_at_the_answers_of_the_network_and_leaves_it_alone(problem, member):
    features, target = problem
    before = member.predict(features)
    moved = 3.0 * features  # other means and scales, which must not be taken
    gone_on = train_network(moved, target, replace(RECIPE, steps=1, learning_rate=1e-9), 1, member)
    np.testing.assert_allclose(gone_on.predict(features), before, atol=1e-5)
    further = train_network(features, target, replace(RECIPE, width=99, steps=100), 1, member)
    assert further.weights[0].shape == member.weights[0].shape  # the form is that of the network
    assert np.abs(further.predict(features) - target).mean() < np.abs(before - target).mean()
    np.testing.assert_array_equal(member.predict(features), before)


def test_a_recipe_recognises_networks_of_its_form(member):
    assert RECIPE.has_form(member)
    for other in ({"width": 25}, {"layers": 2}, {"frequencies": 0}):
        assert not replace(RECIPE, **other).has_form(member)


@pytest.mark.parametrize(("rows", "law"), [(5001, Law.COMPUTE), (1000, Law.COMPUTE), (1000, Law.MOVEMENT)])
def test_networks_of_the_quick_way_are_narrower_and_have_sines(rows, law):
    long, quick = (learned.member_recipe(rows, law, effort=effort) for effort in (LONG, QUICK))
    assert quick.width * quick.layers < long.width * long.layers
    assert quick.frequencies == learned.INPUT_FREQUENCIES
    assert (quick.learning_rate > long.learning_rate) == (rows > learned.SMALL_FAMILY_SAMPLES)
    assert (quick.steps, quick.batch, quick.loss) == (long.steps, long.batch, long.loss)


def test_networks_that_are_averaged_with_gaussian_processes_have_no_sines_where_samples_are_many():
    recipe = learned.member_recipe(QUICK.gaussian_process_samples, Law.COMPUTE, effort=QUICK)
    assert recipe.frequencies == 0 and recipe.learning_rate == learned.NARROW_MATRIX_RATE


def test_trees_of_the_quick_way_are_fewer_and_learn_faster(problem, trained):
    full, fewer = trees.train_trees(*problem, 0), trees.train_fewer_trees(0.5, *problem, 0)
    assert [found.booster.num_trees() for found in (full, fewer)] == [40, 20]
    rates = [float(found.booster.params["learning_rate"]) for found in (full, fewer)]
    assert rates[1] == 2 * rates[0]
    assert trees.train_fewer_trees(1.0, *problem, 0).text() == full.text()
    assert QUICK.tree_rounds < LONG.tree_rounds == 1.0


def test_large_families_that_move_memory_have_the_same_networks_in_both_ways():
    assert learned.member_recipe(9000, Law.MOVEMENT, effort=QUICK) == learned.member_recipe(9000, Law.MOVEMENT)


def test_the_long_way_changes_no_recipe():
    assert LONG.member(RECIPE) == LONG.student(RECIPE) == LONG.choice_student(RECIPE) == RECIPE
