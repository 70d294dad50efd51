"""Routes of convolutions: what kernel names show, what a route computes, and the choice between them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from evaluation.training.left_out_gpu import shortened
from evaluation.training.recipes import RECIPES
from evaluation.training.utilisation_train import train_utilisation
from pipeline.hardware.find_gpu import load_gpu
from pipeline.hardware.sustained import arithmetic_us, sustained_dram_gb_per_s
from pipeline.transfer.convolution_routes import ROUTES, convolution_routes, routes_of_kernels
from pipeline.transfer.scaling_methods import by_auto
from pipeline.transfer.shipped_models import load_models
from pipeline.transfer.utilisation import UtilisationModel

GPUS = ("A100-PCIE-40GB", "P100", "T4", "V100")


def _calls(rows: list[tuple[int, ...]], **more: object) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["B", "in_channels", "out_channels", "input_size"]).astype(
        float
    )
    return table.assign(op="conv", **{"kernel_size": 3.0, "stride": 1.0, "padding": 1.0, **more})


@pytest.fixture(scope="module")
def samples() -> pd.DataFrame:
    """Latencies of a made-up law, the shortest route at 70 % of arithmetic and bandwidth: not measurements."""
    random = np.random.default_rng(5)
    low, high = np.log([2, 16, 16, 6]), np.log([64, 1024, 1024, 100])
    rows = [tuple(int(v) for v in row) for row in np.exp(random.uniform(low, high, (400, 4)))]
    names = [
        "ampere_scudnn_128x64_relu",
        "scudnn_winograd_128x128_ldg1_relu_tile148t",
        "volta_sgemm_64x64_nn",
    ]
    parts = []
    for gpu in GPUS:
        calls, spec = _calls(rows), load_gpu(gpu)
        routes = convolution_routes(calls, spec).values()
        bandwidth = 1e3 * sustained_dram_gb_per_s(spec)
        times = np.stack(
            [(arithmetic_us(spec, r.flops) + r.bytes / bandwidth) / 0.7 for r in routes]
        )
        taken = times.argmin(axis=0)
        facts = {
            "gpu": gpu,
            "family": "conv2d_forward",
            "phase": "forward",
            "dtype": "fp32",
            "source": "law",
        }
        parts.append(
            calls.assign(
                **facts,
                latency_us=np.maximum(40.0, 20.0 + times.min(axis=0)),
                kernel_name=np.array(names)[taken],
                grid=np.where(taken == 2, "[8,2,36]", "[8,2,1]"),
            )
        )
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def model() -> UtilisationModel:
    if "conv2d_forward" not in load_models():
        pytest.skip("no cross-GPU models under packs/transfer")
    return load_models()["conv2d_forward"]


def test_kernel_names_show_the_route() -> None:
    names = [
        "cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1",
        "cudnn_infer_maxwell_scudnn_128x64_relu_small_nn_v1",
        (
            "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, false, false,"
            " true>(int)"
        ),
        "volta_sgemm_64x64_nn",
        "volta_sgemm_64x64_nn",
        "void cudnn::winograd_nonfused::winogradForwardData4x4<float, float>",
        "ampere_gcgemm_64x64_nt",
        None,
    ]
    grids = [
        "[39,2,1]",
        "[7,21,1]",
        "[30,11,1]",
        "[2,5,36]",
        "[2,36,1]",
        "[8,1,1]",
        "[1,1,544]",
        None,
    ]
    taken = routes_of_kernels(pd.DataFrame({"kernel_name": names, "grid": grids}))
    shown = [ROUTES[at] if at >= 0 else "" for at in taken]
    assert shown == ["winograd", "implicit", "implicit", "transformed", "", "transformed", "", ""]
    assert list(routes_of_kernels(pd.DataFrame({"grid": grids}))) == [-1] * len(grids)


def test_boxes_and_groups_of_images_are_padded_as_the_grids_of_the_public_table_show() -> None:
    # one block of F(2x2) is 2 x 32 x 128 outputs x 4 multiplications x channels; blocks from the table's grids
    def blocks(gpu: str, call: tuple[int, ...]) -> float:
        route = convolution_routes(_calls([call]), load_gpu(gpu))["winograd"]
        return float(route.flops[0] / (2 * 32 * 128 * 4 * 8 * np.ceil(call[1] / 8)))

    assert blocks("V100", (3, 659, 400, 12)) == 39 * 2 * 1  # tile148
    assert blocks("A100-PCIE-80GB", (20, 582, 1551, 6)) == 245 * 1 * 2  # tile442
    assert blocks("P100", (30, 1693, 481, 8)) == 240 * 1 * 1  # tile244
    # 49 images of 6 x 6 tiles make 36 blocks of 64 tiles, as 64 images would
    transformed = convolution_routes(_calls([(49, 451, 146, 24)]), load_gpu("V100"))["transformed"]
    assert transformed.flops[0] == 2 * 36 * (64 * 36) * 456 * 146


def test_only_small_windows_that_move_by_one_can_be_transformed() -> None:
    call = [(8, 64, 64, 28)]
    for more in (
        {"kernel_size": 1.0, "padding": 0.0},
        {"stride": 2.0},
        {"groups": 64.0},
        {"dilation": 2.0},
    ):
        found = convolution_routes(_calls(call, **more), load_gpu("T4"))
        assert np.isfinite(found["implicit"].flops).all()
        assert (
            np.isinf(found["winograd"].flops).all() and np.isinf(found["transformed"].flops).all()
        )
    assert all(
        np.isfinite(route.flops).all()
        for route in convolution_routes(_calls(call), load_gpu("T4")).values()
    )


@pytest.mark.nightly
def test_a_law_of_routes_holds_on_a_gpu_that_was_left_out(samples: pd.DataFrame) -> None:
    recipe = shortened(RECIPES["conv2d_forward"], 400)
    model = train_utilisation(samples[samples["gpu"] != "V100"], "conv2d_forward", recipe)
    rows = samples[samples["gpu"] == "V100"].reset_index(drop=True)
    _, latency = model.kernel_and_latency(rows, load_gpu("V100"))
    assert np.median(np.abs(latency / rows["latency_us"] - 1)) < 0.12


def test_a_known_route_is_never_shorter_than_the_shortest(
    model: UtilisationModel, samples: pd.DataFrame
) -> None:
    rows, gpu = samples[samples["gpu"] == "V100"].head(50), load_gpu("V100")
    free, _ = model.kernel_and_latency(rows, gpu)
    routes = [
        model.kernel_and_latency(rows, gpu, algorithm=np.full(50, at))[0]
        for at in range(len(ROUTES))
    ]
    assert (np.min(routes, axis=0) >= free * (1 - 1e-9)).all() and (
        np.max(routes, axis=0) > 1.5 * free
    ).any()
    unknown, _ = model.kernel_and_latency(rows, gpu, algorithm=np.full(50, -1))
    assert unknown == pytest.approx(free)


def test_the_origin_is_compared_to_the_route_that_it_took(
    model: UtilisationModel, samples: pd.DataFrame
) -> None:
    rows = samples[samples["gpu"] == "T4"].head(40).reset_index(drop=True)
    origin, gpu, models = load_gpu("T4"), load_gpu("V100"), {"conv2d_forward": model}
    known = by_auto(rows, origin, gpu, models)["predicted_us"].to_numpy(dtype=np.float64)
    blind = by_auto(rows.drop(columns="kernel_name"), origin, gpu, models)["predicted_us"].to_numpy(
        dtype=np.float64
    )
    # a made-up route that is not the shortest: the measurement was short for it, and so will the destination's be
    slow = rows.assign(kernel_name="scudnn_128x64", grid="[1,1,1]")
    other = by_auto(slow, origin, gpu, models)["predicted_us"].to_numpy(dtype=np.float64)
    assert np.median(np.abs(known / blind - 1)) < 0.1
    assert (other <= known * 1.05).all() and (other < 0.8 * known).any()


def test_an_empty_image_takes_the_floor(model: UtilisationModel) -> None:
    kernel, latency = model.kernel_and_latency(_calls([(0, 64, 64, 28)]), load_gpu("H100"))
    assert 0.0 <= kernel[0] < 1.0 and latency[0] == pytest.approx(model.floors_us["conv"], rel=0.1)
