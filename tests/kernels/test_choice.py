"""The kernel that cuBLAS chooses for a product: read from samples, learned, saved."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import InputError, PackError
from pipeline.kernels import cublas_choice as choice
from pipeline.kernels import cublas_choice_fit as choice_fit
from pipeline.kernels import cublas_choice_teachers as choice_teachers
from pipeline.kernels import distillation as distil
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import learned_variants as learned
from pipeline.kernels import tile_network_fit as tile_fit
from pipeline.kernels import trees
from pipeline.kernels.cublas_choice import TileNetwork
from pipeline.kernels.family_model import AT_FLOOR_LOG_RANGE, FittedModel
from pipeline.kernels.features import derived_features
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.network_training import train_network
from pipeline.kernels.samples import with_launches


def named(table, tile_k, tile_m, split=1, slices=1):
    """Samples with the kernel and grid that cuBLAS would show."""
    sliced = "_sliced1x4" if slices == 4 else ""
    k, m = table["K"].to_numpy(), (table["B"] * table["M"]).to_numpy()
    tile_k, tile_m, split = (np.broadcast_to(v, len(table)) for v in (tile_k, tile_m, split))
    names = [f"volta_sgemm_{a}x{b}{sliced}_tn" for a, b in zip(tile_k, tile_m, strict=True)]
    grids = zip(np.ceil(k / tile_k).astype(int), np.ceil(m / tile_m).astype(int), split, strict=True)
    return table.assign(kernel_name=names, grid=[f"[{x},{y},{z}]" for x, y, z in grids])


@pytest.fixture
def switching(gemm_samples):
    """The kernel changes with K, the split with N; the larger kernel takes 1.5 times as long, the split one half."""
    rng = np.random.default_rng(3)
    more = [gemm_samples.assign(M=rng.integers(64, 4096, len(gemm_samples))) for _ in range(3)]
    table = pd.concat([gemm_samples, *more], ignore_index=True)
    large, split = (table["K"] > 512).to_numpy(), (table["N"] > 1024).to_numpy()
    latency = 1000.0 * (table["M"] / 512) ** 0.3 * np.where(large, 1.5, 1.0) * np.where(split, 0.5, 1.0)
    table = named(table, np.where(large, 128, 32), np.where(large, 64, 128), np.where(split, 4, 1))
    return table.assign(latency_us=latency, family="gemm", phase="forward", dtype="fp32")


def seen(samples, gpu):
    inputs, columns = derived_features(samples["family"].iloc[0], samples, gpu, ("linear",))
    return choice.read_choices(samples, inputs, columns, gpu.sms), inputs


def test_the_menu_is_what_the_samples_ran(switching, v100):
    found, _ = seen(switching, v100)
    assert sorted(found.menu.names()) == ["128x64", "128x64, split 4", "32x128", "32x128, split 4"]
    large, split = switching["K"] > 512, switching["N"] > 1024
    made = found.menu.choices[found.choice]
    np.testing.assert_array_equal(made[:, 0], np.where(large, 128, 32))
    np.testing.assert_array_equal(made[:, 3], np.where(split, 4, 1))
    assert "32x32 sliced 1x4" in choice.Menu(np.array([[32, 32, 4, 1]], np.float32), 80, False, (0, 1, 2, 3)).names()


def test_rare_and_unreadable_choices_are_unknown(switching, v100):
    switching.loc[0, "kernel_name"] = "void gemv2T_kernel_val<int, float>"
    switching.loc[1, "grid"] = None
    switching.loc[2, ["kernel_name", "grid"]] = named(switching.iloc[[2]], 64, 64)[["kernel_name", "grid"]].iloc[0]
    found, _ = seen(switching, v100)
    assert found.choice[:3].tolist() == [-1, -1, -1] and (found.choice[3:] >= 0).all()
    assert len(found.menu.choices) == 4


def test_samples_that_do_not_tell(switching, v100):
    assert seen(switching.drop(columns="grid"), v100)[0] is None
    assert seen(switching.assign(kernel_name=None), v100)[0] is None
    other_grids = switching.assign(grid="[7,1,1]")  # a kernel that walks over tiles: nothing is known of its split
    assert seen(other_grids, v100)[0] is None
    assert seen(named(switching, 128, 64), v100)[0] is None  # nothing to choose


def test_batched_products_have_their_batch_in_the_grid(v100):
    table = pd.DataFrame({"family": "bmm", "op": "bmm", "phase": "forward", "dtype": "fp32", "B": [6, 6, 8, 8] * 5})
    table = table.assign(M=100, N=64, K=300, kernel_name=["sgemm_64x64_nn", "sgemm_32x128_nn"] * 10)
    table["grid"] = ["[5,2,6]", "[10,1,12]", "[5,2,8]", "[10,1,16]"] * 5
    found, inputs = seen(table, v100)
    assert sorted(found.menu.names()) == ["32x128, split 2", "64x64"]
    moving = found.menu.moving(inputs, found.choice)
    tiles = np.array([60, 60, 80, 80] * 5)
    np.testing.assert_allclose(moving[:, 0], np.log2(tiles), rtol=1e-6)
    np.testing.assert_allclose(moving[:, 2], np.log2(np.ceil(tiles * np.array([1, 2] * 10) / 80)), rtol=1e-6)


def test_the_waves_of_one_product_are_those_counted_by_hand(v100):
    menu = choice.Menu(np.array([[128, 64, 1, 3], [32, 32, 4, 1]], np.float32), 80, False, (0, 1, 2, 3))
    features = np.log2([[2, 500, 3000, 1000]])  # B, M, N, K: 1000 rows of one product
    both = menu.moving(features, np.array([[0, 1]]))
    assert both.shape == (1, 2, choice.MOVING_COLUMNS)
    np.testing.assert_array_equal(both[0, 0], menu.moving(features, np.array([0]))[0])
    tiles, blocks = 8 * 16, 8 * 16 * 3
    waves, whole = blocks / 80, 5
    expected = [
        np.log2(tiles), np.log2(blocks), np.log2(whole), waves / whole, waves / 2 / 3, waves / 3 / 2, waves / 4 / 2,
        1000 * 1000 / (tiles * 128 * 64), np.log2(1000), np.log2(whole * 1000), np.log2(whole * 1000 * 128 * 64),
    ]  # fmt: skip
    np.testing.assert_allclose(both[0, 0], expected, rtol=1e-5)


@pytest.mark.parametrize(("effort", "longer", "error"), [("long", 1, 0.02), ("quick", 3, 0.03)])
def test_the_choice_is_learned_and_saved(switching, v100, tmp_path, monkeypatch, effort, longer, error):
    for module, name, value in (
        (choice_teachers, "STEPS", 300), (choice_fit, "FOLDS", 4), (choice_fit, "SYNTHETIC_ROWS", 2000),
        (choice_fit, "CHOOSER", replace(choice_fit.CHOOSER, steps=400)), (trees, "CLASSIFIER_ROUNDS", 30),
        (learned, "STEPS", (300, 300)), (distil, "STUDENT_STEPS", 600),
        (distil, "SMALL_FAMILY_STUDENT_STEPS", 600), (learned, "SMALL_FAMILY_STEPS", 200),
        (fitter, "MAX_GAUSSIAN_PROCESS_SAMPLES", 100),
        (choice_fit, "RECIPE", replace(tile_fit.RECIPE, width=64, steps=1200 * longer)), (choice_fit, "SIZES", 6000),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    fitted = fit_family(switching, v100, "gemm", test_share=0.2, seed=1, effort=effort)
    assert fitted.model.variant == "choice"
    assert fitted.parameters["choices"] == 4 and fitted.parameters["choices_right"] > 0.9
    assert fitted.metrics["gmae"] < error
    fitted.save(tmp_path)
    loaded = FittedModel.load(tmp_path, v100)
    calls = switching.head(200)
    inputs = loaded.features(loaded.scope.clamp(calls)[0])
    found = [model.members[0].predict(inputs) for model in (loaded, fitted.model)]
    np.testing.assert_allclose(*found, atol=2e-3)  # weights are stored in half precision
    # at the floor a model keeps only what it learned beyond AT_FLOOR: rounding may move a call across that step
    clear = np.abs(np.abs(found[1]) - AT_FLOOR_LOG_RANGE) > 1e-3
    assert clear.mean() > 0.9
    before, after = (model.predict(calls).latency[clear] for model in (fitted.model, loaded))
    np.testing.assert_allclose(after, before, rtol=2e-3)
    assert isinstance(loaded.members[0], TileNetwork)
    one_by_one = np.concatenate([loaded.members[0].predict(inputs[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(one_by_one, loaded.members[0].predict(inputs)[:20], atol=1e-10)


def test_the_choice_and_its_time_are_learned_apart(switching, v100):
    found, inputs = seen(switching, v100)
    odds, log_time = np.eye(4, dtype=np.float32)[found.choice], np.log(switching["latency_us"].to_numpy())
    recipe = replace(choice_fit.CHOOSER, width=48, steps=500)
    chooser = train_network(found.menu.sizes(inputs), odds, recipe, 0)
    network = train_network(found.menu.inputs(inputs, found.choice), log_time, replace(recipe, loss="l1"), 0)
    kernel = choice_fit.ChosenKernel(found.menu, chooser, network)
    assert (kernel.choose(inputs) == found.choice).mean() > 0.95
    assert np.median(np.abs(kernel.predict(inputs) - log_time)) < 0.03


def test_what_tiles_make_of_the_sizes():
    menu = choice.Menu(
        np.array([[128, 64, 1, 1], [128, 64, 1, 3], [32, 32, 4, 1]], np.float32), 80, False, (0, 1, 2, 3)
    )
    features = np.log2([[2, 500, 3002, 1001]])  # B, M, N, K: 1000 rows of one product
    found = menu.sizes(features)
    assert found.shape == (1, 4 + menu.tile_columns)
    small, large = 32 * 32, 8 * 16
    expected = [
        0, 2, 1,
        np.log2(small), np.ceil(small / 80), small / 80 / 13, 1001 / 1024, 1000 / 1024,
        np.log2(large), 2, large / 160, 1001 / 1024, 1000 / 1024,
    ]  # fmt: skip
    np.testing.assert_allclose(found[0, 4:], expected, rtol=1e-6)


@pytest.mark.parametrize(("optimiser_steps", "rounds", "factor"), [(30, 30, 1.0), (60, 60, 0.5)])
def test_trees_judge_what_the_scorer_finds_likely(switching, v100, monkeypatch, optimiser_steps, rounds, factor):
    monkeypatch.setattr(choice_teachers, "STEPS", optimiser_steps)  # a scorer that has hardly learned
    monkeypatch.setattr(trees, "CLASSIFIER_ROUNDS", rounds)
    found, inputs = seen(switching, v100)
    odd = np.arange(len(inputs)) % 2 == 1
    teacher = choice_teachers.train_teacher(found.menu, inputs[odd], found.choice[odd], 0, factor)
    assert teacher.rating_trees.booster.num_trees() == 30
    probabilities = teacher.probabilities(found.menu, inputs[~odd])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    alone = teacher.scorer.probabilities(found.menu, inputs[~odd])
    right = [(by.argmax(axis=1) == found.choice[~odd]).mean() for by in (alone, probabilities)]
    assert right[1] > 0.95 > right[0]


class ByTile:
    """Log times that jump where another tile of the menu would need one more wave."""

    def __init__(self, menu: choice.Menu) -> None:
        self.menu = menu

    def predict(self, features, table_rows=0):
        waves = self.menu.sizes(features)[:, features.shape[1] + 4]
        return np.log2(waves) + 0.1 * features[:, self.menu.at[3]]


@pytest.fixture
def small(switching, v100):
    """A tile network of a menu of four choices, its teacher, and features of the samples."""
    found, _ = seen(switching, v100)
    recipe = replace(tile_fit.RECIPE, width=32, layers=2, steps=1500, batch=128)

    def featurise(calls):
        return derived_features("gemm", calls, v100, ("linear",))[0]

    teacher = ByTile(found.menu)
    network = tile_fit.train_tile_network(teacher, switching, featurise, recipe, 4000, 0.7, 0)
    return network, teacher, featurise(switching)


def test_the_small_network_follows_the_jumps_of_its_teacher(small):
    network, teacher, features = small
    wanted = teacher.predict(features)
    assert np.median(np.abs(network.predict(features) - wanted)) < 0.02 * np.ptp(wanted)
    assert network.network.relu and network.network.weights[0].shape[1] == 32
    large = network.predict(features, table_rows=10**6)  # float32
    np.testing.assert_allclose(large, network.predict(features), atol=1e-4)
    assert (large != network.predict(features)).any()


def test_known_times_correct_a_teacher(switching, v100):
    found, features = seen(switching, v100)

    class Wrong(ByTile):
        def predict(self, features, table_rows=0):
            return super().predict(features) + 0.5

    def featurise(calls):
        return derived_features("gemm", calls, v100, ("linear",))[0]

    teacher, true = Wrong(found.menu), ByTile(found.menu).predict(features)
    recipe = replace(tile_fit.RECIPE, width=32, layers=2, steps=400, batch=128)
    off = {}
    for copies in (0, 1, 20):
        known = [tile_fit.KnownTimes(features, true, copies)]
        network = tile_fit.train_tile_network(teacher, switching, featurise, recipe, 2000, 0.7, 0, known)
        off[copies] = np.median(network.predict(features) - true)
    assert off[20] < 0.1 < 0.4 < off[0] and off[20] < off[1]


def test_a_network_with_damaged_arrays_is_refused(small):
    network, _, features = small
    tensors = network.tensors("a.")
    loaded = TileNetwork.from_tensors(tensors, "a.")
    assert loaded.menu.names() == network.menu.names()
    np.testing.assert_allclose(loaded.predict(features), network.predict(features), atol=5e-3)
    for name in ("a.menu_choices", "a.menu_facts", "a.weight0", "a.weight2", "a.bias0", "a.mean"):
        with pytest.raises(PackError):
            TileNetwork.from_tensors({k: v for k, v in tensors.items() if k != name}, "a.")
        with pytest.raises(PackError):
            TileNetwork.from_tensors({**tensors, name: tensors[name][..., :-1]}, "a.")
    facts = tensors["a.menu_facts"].copy()
    facts[-1] = 10_000
    with pytest.raises(PackError):
        TileNetwork.from_tensors({**tensors, "a.menu_facts": facts}, "a.")


def test_sizes_to_learn_from_are_near_the_samples_and_all_over_their_range(switching):
    found = tile_fit.training_calls(switching, 4000, 0.7, 3)
    again = tile_fit.training_calls(switching, 4000, 0.7, 3)
    pd.testing.assert_frame_equal(found, again)
    assert len(found) == 4000 and not found[["M", "N", "K"]].isna().any().any()
    sizes, sampled = found[["M", "N", "K"]].to_numpy(), switching[["M", "N", "K"]].to_numpy()
    assert (sizes == np.round(sizes)).all()
    assert (sizes >= sampled.min(axis=0)).all() and (sizes <= sampled.max(axis=0)).all()
    spread, rounded = sizes[2800:3400], sizes[3400:]
    inside = (rounded > sampled.min(axis=0)) & (rounded < sampled.max(axis=0))
    mantissa = np.frexp(rounded)[0] * 8
    assert (mantissa == np.round(mantissa))[inside].all() and not (np.frexp(spread)[0] * 8 % 1 == 0).all()
    middle = np.exp((np.log(sampled.min(axis=0)) + np.log(sampled.max(axis=0))) / 2)
    assert (abs((spread < middle).mean(axis=0) - 0.5) < 0.1).all()


def test_asking_for_it_without_names(gemm_samples, v100):
    table = gemm_samples.assign(family="gemm", phase="forward", dtype="fp32")
    with pytest.raises(InputError, match="the samples have no kernel names"):
        fit_family(table, v100, "gemm", "choice")


def test_launches_by_their_public_names(switching):
    axes = switching["grid"].str.extract(r"\[(\d+),(\d+),(\d+)\]").astype(int)
    public = switching.drop(columns=["kernel_name", "grid"]).assign(
        main_kernel=switching["kernel_name"], grid_x=axes[0], grid_y=axes[1], grid_z=axes[2]
    )
    found = with_launches(public)
    pd.testing.assert_series_equal(found["grid"].astype(object), switching["grid"].astype(object))
    pd.testing.assert_series_equal(found["kernel_name"], switching["kernel_name"], check_dtype=False)
    pd.testing.assert_frame_equal(with_launches(switching), switching)


def test_clear_answers_of_trees_are_not_refined():
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (2000, 2))
    classifier = trees.train_classifier(x, x[:, 0] > 0.0, 0)
    full, found = classifier.booster.predict(x, raw_score=True), classifier.scores(x)
    unclear = np.abs(full) < trees.CLEAR_LOG_ODDS / 2
    np.testing.assert_array_equal(found[unclear], full[unclear])
    assert np.abs(found).max() < np.abs(full).max()  # evaluation ended early
    assert (np.sign(found) == np.sign(full)).all()
