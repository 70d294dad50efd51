"""The kernel that cuBLAS chooses for a product: read from samples, learned, saved."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from pipeline.errors import InputError, PackError
from pipeline.hardware.find_gpu import load_gpu
from pipeline.kernels import cublas_choice as choice
from pipeline.kernels import cublas_choice_fit as choice_fit
from pipeline.kernels import fit_family as fitter
from pipeline.kernels import learned_variants as learned
from pipeline.kernels.cublas_choice import TileNetwork
from pipeline.kernels.family_model import AT_FLOOR_LOG_RANGE, FittedModel
from pipeline.kernels.features import derived_features
from pipeline.kernels.fit_gpu import fit_family
from pipeline.kernels.samples import with_launches


def named(table, tile_k, tile_m, split=1, slices=1):
    """Samples with the kernel and grid that cuBLAS would show."""
    sliced = "_sliced1x4" if slices == 4 else ""
    k, m = table["K"].to_numpy(), (table["B"] * table["M"]).to_numpy()
    tile_k, tile_m, split = (np.broadcast_to(v, len(table)) for v in (tile_k, tile_m, split))
    names = [f"volta_sgemm_{a}x{b}{sliced}_tn" for a, b in zip(tile_k, tile_m, strict=True)]
    grids = zip(np.ceil(k / tile_k).astype(int), np.ceil(m / tile_m).astype(int), split, strict=True)
    return table.assign(kernel_name=names, grid=[f"[{x},{y},{z}]" for x, y, z in grids])


@pytest.fixture(scope="module")
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


def test_the_menu_lists_the_kernels_of_the_samples(switching, v100):
    found, _ = seen(switching, v100)
    assert found.menu.choices.tolist() == [[32, 128, 1, 1], [32, 128, 1, 4], [128, 64, 1, 1], [128, 64, 1, 4]]
    large, split = switching["K"] > 512, switching["N"] > 1024
    made = found.menu.choices[found.choice]
    np.testing.assert_array_equal(made[:, 0], np.where(large, 128, 32))
    np.testing.assert_array_equal(made[:, 3], np.where(split, 4, 1))
    assert seen(named(switching.head(400), 32, 32, [1, 4] * 200, 4), v100)[0].menu.choices[:, 2].tolist() == [4, 4]


def test_rare_and_unreadable_choices_are_unknown(switching, v100):
    switching = switching.copy()
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
    assert found.menu.choices.tolist() == [[32, 128, 1, 2], [64, 64, 1, 1]]
    moving = found.menu.moving(inputs, found.choice)
    tiles = np.array([60, 60, 80, 80] * 5)
    np.testing.assert_allclose(moving[:, 0], np.log2(tiles), rtol=1e-6)
    np.testing.assert_allclose(moving[:, 2], np.log2(np.ceil(tiles * np.array([1, 2] * 10) / 80)), rtol=1e-6)


def test_the_waves_of_one_product_are_those_counted_by_hand(v100):
    menu = choice.Menu(np.array([[128, 64, 1, 3], [32, 32, 4, 1]], np.float32), 80, False, (0, 1, 2, 3))
    features = np.log2([[2, 500, 3000, 1000]])  # B, M, N, K: 1000 rows of one product
    moving = menu.moving(features, np.array([0]))
    tiles, blocks = 8 * 16, 8 * 16 * 3
    waves, whole = blocks / 80, 5
    expected = [
        np.log2(tiles), np.log2(blocks), np.log2(whole), waves / whole, waves / 2 / 3, waves / 3 / 2, waves / 4 / 2,
        1000 * 1000 / (tiles * 128 * 64), np.log2(1000), np.log2(whole * 1000), np.log2(whole * 1000 * 128 * 64),
    ]  # fmt: skip
    np.testing.assert_allclose(moving[0], expected, rtol=1e-5)


@pytest.fixture(scope="module")
def fitted(switching):
    """A fit of all samples of which the kernel is known, with few steps."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, value in (
            (choice_fit, "SYNTHETIC_ROWS", 4000), (choice_fit, "FOREST", choice_fit.FOREST | {"n_estimators": 20}),
            (choice_fit, "STUDENT", replace(choice_fit.STUDENT, width=64, steps=1500, batch=128)),
            (learned, "STEPS", (200, 200)),
            (learned, "MEMBER", replace(learned.MEMBER, width=64, layers=3)), (fitter, "MAX_GAUSSIAN_PROCESS_SAMPLES", 100),
        ):  # fmt: skip
            patch.setattr(module, name, value)
        return fit_family(switching, load_gpu("V100"), "gemm", test_share=0.2, seed=1)


def test_the_choice_is_learned_and_saved(fitted, switching, v100, tmp_path):
    assert fitted.model.variant == "choice"
    assert fitted.parameters["choices"] == 4 and fitted.parameters["choices_right"] > 0.9
    assert fitted.metrics["gmae"] < 0.03
    fitted.save(tmp_path)
    loaded = FittedModel.load(tmp_path, v100)
    network = loaded.members[0]
    assert isinstance(network, TileNetwork)
    calls = switching.head(200)
    inputs = loaded.features(loaded.scope.clamp(calls)[0])
    log_times = [model.members[0].predict(inputs) for model in (loaded, fitted.model)]
    np.testing.assert_allclose(*log_times, atol=2e-3)  # weights are stored in half precision
    # at the floor a model keeps only what it learned beyond AT_FLOOR: rounding may move a call across that step
    clear = np.abs(np.abs(log_times[1]) - AT_FLOOR_LOG_RANGE) > 1e-3
    assert clear.mean() > 0.9
    before, after = (model.predict(calls).latency[clear] for model in (fitted.model, loaded))
    np.testing.assert_allclose(after, before, rtol=2e-3)
    one_by_one = np.concatenate([network.predict(inputs[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(one_by_one, network.predict(inputs)[:20], atol=1e-10)
    in_single_precision = network.predict(inputs, table_rows=10**6)
    np.testing.assert_allclose(in_single_precision, network.predict(inputs), atol=1e-4)


def test_inputs_of_the_network_count_blocks_and_waves_of_every_tile():
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


def test_a_network_with_damaged_arrays_is_refused(fitted, switching):
    network = fitted.model.members[0]
    features = fitted.model.features(fitted.model.scope.clamp(switching.head(50))[0])
    tensors = network.tensors("a.")
    loaded = TileNetwork.from_tensors(tensors, "a.")
    np.testing.assert_array_equal(loaded.menu.choices, network.menu.choices)
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
